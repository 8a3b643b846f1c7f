//! An external program as a service.

use std::collections::VecDeque;
use std::fmt;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nodelog::Redactor;
use supervisor::Context;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;
use tracing::{debug, error, info, warn};
use units::Bytes;

use crate::cgroup::Cgroup;
use crate::klog::{Level, Line};
use crate::lines::{LONGEST, Lines};
use crate::ready::NotReady;
use crate::rights::{Confinement, Rights};
use crate::sandbox::{Sandbox, SandboxError};
use crate::{Paths, memory, ownership, sys, user};

const TAIL: usize = 12;
/// Time from SIGTERM to SIGKILL. Shorter than the supervisor's deadline, so that this module sends SIGKILL.
const STOP_DEADLINE: Duration = Duration::from_secs(7);
/// Time to read the output of an ended program. A child process may keep the pipe open.
const DRAIN_DEADLINE: Duration = Duration::from_millis(500);

pub type Service = Box<dyn Fn(Context) -> Running + Send + Sync>;

pub type Running = Pin<Box<dyn Future<Output = Result<(), ProgramError>> + Send>>;

#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error("{program} needs {path}, which cannot be prepared")]
    Prepare { program: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot confine {program}")]
    Confine { program: &'static str, source: Box<SandboxError> },
    #[error("cannot start {path}")]
    Start { path: PathBuf, source: io::Error },
    #[error("{program} ended with {status}; last output: {tail}")]
    Ended { program: &'static str, status: ExitStatus, tail: Tail },
    #[error("{program} was killed: it exceeded its memory limit of {limit}; last output: {tail}")]
    OutOfMemory { program: &'static str, limit: Bytes, tail: Tail },
    #[error("{program} is not ready; last output: {tail}")]
    NotReady { program: &'static str, tail: Tail, source: Box<NotReady> },
    #[error("{program} is not started before {awaited} is ready")]
    Awaits { program: &'static str, awaited: &'static str, source: Box<NotReady> },
    #[error("cannot list the images in {path}")]
    Images { path: PathBuf, source: io::Error },
}

impl ProgramError {
    pub(crate) fn says(&self, text: &str) -> bool {
        match self {
            Self::Ended { tail, .. } | Self::OutOfMemory { tail, .. } | Self::NotReady { tail, .. } => {
                tail.0.iter().any(|line| line.contains(text))
            }
            Self::Prepare { .. }
            | Self::Confine { .. }
            | Self::Start { .. }
            | Self::Awaits { .. }
            | Self::Images { .. } => false,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Tail(VecDeque<String>);

impl Tail {
    pub(crate) fn push(&mut self, line: &str) {
        if self.0.len() == TAIL {
            self.0.pop_front();
        }
        self.0.push_back(line.to_owned());
    }

    pub(crate) fn lines(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

impl fmt::Display for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("nothing");
        }
        for (index, line) in self.0.iter().enumerate() {
            write!(f, "{}{line}", if index == 0 { "" } else { " | " })?;
        }
        Ok(())
    }
}

#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Name of the executable, of the cgroup, and of `service` in the log.
    pub name: &'static str,
    pub arguments: Vec<String>,
    pub directories: Vec<(PathBuf, u32)>,
    pub files: Vec<(PathBuf, String)>,
    /// Files that only root may read.
    pub secrets: Vec<(PathBuf, Secret)>,
    pub environment: Vec<(&'static str, PathBuf)>,
    /// Memory limit that replaces the share of [`Paths::memory`]. Needs [`Paths::cgroups`].
    pub memory: Option<Bytes>,
    /// Rights of a confined program. [`Paths::confinement`] enables their enforcement.
    pub rights: Option<Rights>,
}

/// Content of a file that must not appear in a log.
#[derive(Clone)]
pub struct Secret(String);

impl From<String> for Secret {
    fn from(content: String) -> Self {
        Self(content)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.0.len())
    }
}

struct Prepared {
    cgroup: Option<Cgroup>,
    sandbox: Option<Sandbox>,
}

impl Program {
    /// The service that runs the program, and is healthy when `ready` succeeds.
    pub fn service<R, F>(self, paths: &Paths, ready: R) -> Service
    where
        R: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), NotReady>> + Send,
    {
        let shared = Arc::new((self, paths.clone(), ready));
        Box::new(move |cx| {
            let shared = Arc::clone(&shared);
            Box::pin(async move {
                let (program, paths, ready) = &*shared;
                program.run(paths, &cx, ready()).await
            })
        })
    }

    async fn run(
        &self,
        paths: &Paths,
        cx: &Context,
        ready: impl Future<Output = Result<(), NotReady>>,
    ) -> Result<(), ProgramError> {
        let mut process = self.start(paths).await?;
        let mut ready = std::pin::pin!(ready);
        let mut is_ready = false;
        loop {
            tokio::select! {
                biased;
                () = cx.cancelled() => {
                    process.stop().await;
                    return Ok(());
                }
                status = process.child.wait() => return Err(process.ended(status).await),
                checked = &mut ready, if !is_ready => match checked {
                    Ok(()) => {
                        is_ready = true;
                        cx.healthy();
                    }
                    Err(source) => {
                        process.stop().await;
                        let source = Box::new(source);
                        return Err(ProgramError::NotReady { program: self.name, tail: process.tail(), source });
                    }
                },
            }
        }
    }

    /// Runs the program to its end, which must be successful, and returns its last output. A stop of the service stops
    /// the program.
    pub(crate) async fn complete(&self, paths: &Paths, cx: &Context) -> Result<Tail, ProgramError> {
        let mut process = self.start(paths).await?;
        tokio::select! {
            biased;
            () = cx.cancelled() => {
                process.stop().await;
                Ok(process.tail())
            }
            status = process.child.wait() => match status {
                Ok(status) if status.success() => {
                    process.drain().await;
                    Ok(process.tail())
                }
                status => Err(process.ended(status).await),
            },
        }
    }

    async fn start(&self, paths: &Paths) -> Result<Process, ProgramError> {
        let (program, prepared) = (self.clone(), paths.clone());
        // A panic of `prepare` becomes a panic of the service.
        let Prepared { cgroup, sandbox } = match spawn_blocking(move || program.prepare(&prepared)).await {
            Ok(prepared) => prepared?,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime shuts down, and drops this future.
                Err(_) => std::future::pending().await,
            },
        };

        let path = paths.programs.join(self.name);
        let kills = cgroup.as_ref().map_or(0, Cgroup::kills);
        let mut command = self.command(&path, paths);
        sys::inherit_no_descriptors(&mut command);
        if let Some(processes) = cgroup.as_ref().and_then(Cgroup::processes) {
            sys::begin_in(&mut command, processes);
        }
        if let Some(sandbox) = sandbox {
            sys::confine(&mut command, sandbox);
        }
        let mut child = command.spawn().map_err(|source| ProgramError::Start { path: path.clone(), source })?;
        debug!(service = self.name, process = child.id(), "program started");
        if let (Some(cgroup), Some(process)) = (&cgroup, child.id()) {
            cgroup.add(process);
        }
        let tail = Arc::default();
        let mut output = JoinSet::new();
        if let Some(stdout) = child.stdout.take() {
            output.spawn(copy(self.name, stdout, Arc::clone(&tail)));
        }
        if let Some(stderr) = child.stderr.take() {
            output.spawn(copy(self.name, stderr, Arc::clone(&tail)));
        }
        let memory = cgroup.zip(self.limit(paths)).map(|(cgroup, limit)| Memory { cgroup, limit, kills });
        Ok(Process { program: self.name, child, output, tail, memory })
    }

    fn limit(&self, paths: &Paths) -> Option<Bytes> {
        self.memory.or_else(|| user::memory_limit(self.name, paths.memory?))
    }

    fn command(&self, path: &Path, paths: &Paths) -> Command {
        let (home, temporary) = if self.rights.is_some() {
            (paths.scratch(self.name), paths.scratch(self.name))
        } else {
            (paths.ephemeral.clone(), paths.temporary())
        };
        let mut command = Command::new(path);
        command
            .args(&self.arguments)
            .env_clear()
            .env("PATH", format!("{}:{}", paths.programs.display(), paths.cni_programs.display()))
            .env("HOME", home)
            .env("TMPDIR", temporary)
            // Memory is available, so Go's garbage collector should use little CPU time during the boot.
            .env("GOGC", "400")
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // In its own process group, the program does not receive the terminal's signals: the node stops the
            // programs in order.
            .process_group(0)
            .kill_on_drop(true);
        if let Some(limit) = self.limit(paths).filter(|_| paths.cgroups.is_some()) {
            command.env("GOMEMLIMIT", memory::heap(limit).get().to_string());
        }
        command
    }

    fn prepare(&self, paths: &Paths) -> Result<Prepared, ProgramError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| ProgramError::Prepare { program: self.name, path, source }
        };
        let make = |path: &Path, mode| DirBuilder::new().recursive(true).mode(mode).create(path).map_err(failed(path));
        let make_parent = |path: &Path, mode| path.parent().map_or(Ok(()), |parent| make(parent, mode));
        make(&paths.temporary(), 0o700)?;
        if let Some(rights) = &self.rights {
            make(&paths.scratches(), 0o711)?;
            for path in rights.owns.iter().chain([&paths.scratch(self.name)]) {
                make(path, 0o700)?;
            }
        }
        for (path, mode) in &self.directories {
            // Other programs share the parent directory.
            make_parent(path, 0o755)?;
            make(path, *mode)?;
        }
        for (path, content) in &self.files {
            make_parent(path, 0o755)?;
            fs::write(path, content).map_err(failed(path))?;
        }
        for (path, content) in &self.secrets {
            make_parent(path, 0o700)?;
            write_secret(path, &content.0).map_err(failed(path))?;
        }
        let cgroup = paths.cgroups.as_deref().and_then(|root| Cgroup::ensure(root, self.name, self.limit(paths)));
        let sandbox = match (&self.rights, paths.confinement) {
            (Some(rights), Confinement::Enforced) => Some(self.sandbox(rights, paths)?),
            (None, _) | (_, Confinement::Disabled) => None,
        };
        Ok(Prepared { cgroup, sandbox })
    }

    fn sandbox(&self, rights: &Rights, paths: &Paths) -> Result<Sandbox, ProgramError> {
        let (program, scratch) = (paths.programs.join(self.name), paths.scratch(self.name));
        let failed = |(path, source)| ProgramError::Prepare { program: self.name, path, source };
        ownership::ensure(rights, &scratch).map_err(failed)?;
        let made = Sandbox::new(rights, &program, &scratch);
        made.map_err(|source| ProgramError::Confine { program: self.name, source: Box::new(source) })
    }
}

/// Sets the mode even if the file exists with another mode.
fn write_secret(path: &Path, content: &str) -> io::Result<()> {
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.write_all(content.as_bytes())
}

struct Process {
    program: &'static str,
    child: Child,
    output: JoinSet<()>,
    tail: Arc<Mutex<Tail>>,
    memory: Option<Memory>,
}

struct Memory {
    cgroup: Cgroup,
    limit: Bytes,
    kills: u64,
}

impl Process {
    /// Sends SIGTERM, and SIGKILL after a deadline. Returns when the program has ended.
    async fn stop(&mut self) {
        // The kernel does not reuse the process ID before the wait.
        if let Some(id) = self.child.id().and_then(|id| i32::try_from(id).ok())
            && let Err(errno) = kill(Pid::from_raw(id), Signal::SIGTERM)
        {
            debug!(service = self.program, %errno, "cannot send SIGTERM");
        }
        if timeout(STOP_DEADLINE, self.child.wait()).await.is_err() {
            warn!(service = self.program, "program killed, it did not end in time");
            if let Err(error) = self.child.kill().await {
                warn!(service = self.program, %error, "cannot send SIGKILL");
            }
        }
        self.drain().await;
    }

    async fn ended(&mut self, status: io::Result<ExitStatus>) -> ProgramError {
        self.drain().await;
        if let Some(Memory { limit, .. }) = self.memory.take_if(|memory| memory.cgroup.kills() > memory.kills) {
            return ProgramError::OutOfMemory { program: self.program, limit, tail: self.tail() };
        }
        match status {
            Ok(status) => ProgramError::Ended { program: self.program, status, tail: self.tail() },
            Err(source) => ProgramError::Start { path: self.program.into(), source },
        }
    }

    /// Reads the output that the program wrote before its end.
    async fn drain(&mut self) {
        let all = async { while self.output.join_next().await.is_some() {} };
        if timeout(DRAIN_DEADLINE, all).await.is_err() {
            self.output.abort_all();
        }
    }

    fn tail(&self) -> Tail {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn copy(program: &'static str, mut pipe: impl AsyncRead + Unpin, tail: Arc<Mutex<Tail>>) {
    let (mut lines, mut redactor, mut buffer) = (Lines::default(), Redactor::default(), vec![0; 8 * 1024]);
    let mut each = |line: &str| {
        // Redacts before the line is stored: a private key has several lines, and the status page shows the last lines.
        let line = nodelog::clip(redactor.line(line).into_owned(), LONGEST);
        let line = Line::parse(&line);
        log(program, &line);
        tail.lock().unwrap_or_else(PoisonError::into_inner).push(&line.text);
    };
    while let Ok(length @ 1..) = pipe.read(&mut buffer).await {
        lines.push(&buffer[..length], &mut each);
    }
    lines.end(each);
}

fn log(service: &'static str, line: &Line<'_>) {
    let (caller, text) = (line.caller.as_deref(), &*line.text);
    match line.level {
        Level::Debug => debug!(target: "program", service, caller, "{text}"),
        Level::Info => info!(target: "program", service, caller, "{text}"),
        Level::Warning => warn!(target: "program", service, caller, "{text}"),
        Level::Error => error!(target: "program", service, caller, "{text}"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::symlink;

    use cluster::{Credentials, Images, Registry, Server, Verification};
    use supervisor::{Backoff, Settings, State, Supervisor};
    use tempfile::TempDir;
    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::config::with_credentials;
    use crate::{Config, containerd, kubelet, registries};

    const LIMIT: Duration = Duration::from_secs(30);

    /// A directory with one program: a copy of the shell under another name, with a script as its argument.
    struct Scratch {
        directory: TempDir,
        paths: Paths,
        script: &'static str,
    }

    impl Scratch {
        fn new(script: &'static str) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let root = directory.path();
            let paths = Paths {
                programs: root.join("bin"),
                ephemeral: root.join("ephemeral"),
                cgroups: None,
                ..Paths::default()
            };
            fs::create_dir(&paths.programs).unwrap();
            symlink("/bin/sh", paths.programs.join("program")).unwrap();
            Self { directory, paths, script }
        }

        /// The script's `$1` is the path of a file with a greeting. The script can use only the shell's built-in
        /// commands.
        fn start<F>(&self, ready: impl Fn() -> F + Send + Sync + 'static) -> Supervisor
        where
            F: Future<Output = Result<(), NotReady>> + Send + 'static,
        {
            let greeting = self.paths.generated("greeting");
            let program = Program {
                name: "program",
                arguments: ["-c", self.script, "program", &greeting.to_string_lossy()].map(str::to_owned).into(),
                files: vec![(greeting, "hello\n".into())],
                ..Program::default()
            };
            start_once(program.service(&self.paths, ready))
        }
    }

    pub(crate) fn start_once(service: Service) -> Supervisor {
        let backoff = Backoff { first: Duration::from_secs(1000), ..Backoff::default() };
        Supervisor::start("program", Settings { backoff, ..Settings::default() }, service)
    }

    pub(crate) async fn error_of(tree: &Supervisor) -> String {
        let end = Instant::now() + LIMIT;
        loop {
            let status = tree.status();
            if status.state == State::Failed {
                return status.last_error.unwrap();
            }
            assert!(Instant::now() < end, "never failed: {status:#?}");
            sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn a_program_that_ends_is_reported_with_status_and_last_words() {
        let scratch =
            Scratch::new("read line <$1; echo \"$line\"; echo \"E0102 15:04:05.123456 7 a.go:1] no disk\" >&2; exit 3");
        let tree = scratch.start(std::future::pending);
        let error = error_of(&tree).await;
        assert!(error.starts_with("program ended with exit status: 3; last output: "), "{error}");
        // stdout and stderr are two pipes, so the order of the lines is undefined.
        let (_, said) = error.split_once("last output: ").unwrap();
        assert!(said == "hello | no disk" || said == "no disk | hello", "{said}");
    }

    #[tokio::test]
    async fn the_last_words_of_a_program_have_no_secret() {
        let scratch = Scratch::new(
            "echo 'token abcdef.0123456789abcdef'; echo '-----BEGIN PRIVATE KEY-----'; echo MHcCAQEE; \
             echo '-----END PRIVATE KEY-----'; exit 1",
        );
        let tree = scratch.start(std::future::pending);
        let error = error_of(&tree).await;
        let (_, said) = error.split_once("last output: ").unwrap();
        assert_eq!(said, "token REDACTED | REDACTED | REDACTED | REDACTED");
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_named_with_its_path() {
        let scratch = Scratch::new("");
        fs::remove_file(scratch.paths.programs.join("program")).unwrap();
        let tree = scratch.start(std::future::pending);
        let error = error_of(&tree).await;
        let path = scratch.directory.path().join("bin/program");
        assert_eq!(error, format!("cannot start {}: No such file or directory (os error 2)", path.display()));
    }

    #[tokio::test]
    async fn a_ready_program_is_healthy_and_a_stop_lets_it_finish() {
        let scratch = Scratch::new("trap 'echo >stopped; exit 0' TERM; cd ${1%/*}; echo >started; while :; do :; done");
        let started = scratch.paths.generated("started");
        let tree = scratch.start(move || {
            let started = started.clone();
            async move {
                while !started.exists() {
                    sleep(Duration::from_millis(10)).await;
                }
                Ok(())
            }
        });
        timeout(LIMIT, tree.handle().healthy()).await.unwrap().unwrap();
        tree.stop(LIMIT).await.unwrap();
        assert!(scratch.paths.generated("stopped").exists(), "it had SIGTERM");
    }

    #[tokio::test]
    async fn a_program_that_never_gets_ready_is_stopped_and_says_why() {
        let scratch = Scratch::new("echo waiting; while :; do :; done");
        let tree = scratch.start(|| async {
            Err(NotReady { limit: LIMIT, last: crate::ready::ProbeFailure::Answer("HTTP/1.0 503".into()) })
        });
        let error = error_of(&tree).await;
        assert!(error.starts_with("program is not ready; last output: "), "{error}");
        assert!(error.ends_with("not ready within 30 s: unexpected response \"HTTP/1.0 503\""), "{error}");
    }

    #[test]
    fn only_root_can_read_the_passwords_of_registries() {
        let scratch = tempfile::tempdir().unwrap();
        let path = |name: &str| scratch.path().join(name);
        let paths = Paths {
            cgroups: None,
            kubelet: path("kubelet"),
            kubelet_pki: path("kubelet-pki"),
            containerd: path("containerd"),
            pod_logs: path("pods"),
            ephemeral: path("ephemeral"),
            ..Paths::default()
        };
        let password = || Credentials::new("user", "secret").ok();
        let mirror = Server { endpoint: "https://mirror.example".parse().unwrap(), cas: None, credentials: password() };
        let registry = Registry {
            name: "registry.example".parse().unwrap(),
            mirrors: vec![mirror],
            server: None,
            cas: None,
            verification: Verification::Required,
            credentials: password(),
        };
        let (mut config, credentials, _pki) = with_credentials(Config { paths, ..Config::default() });
        config.settings.images = Images { cas: Vec::new(), registries: vec![registry] };
        let hosts = registries::directory(&config.paths).join("registry.example/hosts.toml");
        let json = config.paths.ephemeral.join(".docker/config.json");
        let files = [(containerd::program(&config), hosts), (kubelet::program(&config, &credentials), json)];
        for (program, file) in files {
            let prepared_mode = || {
                program.prepare(&config.paths).unwrap();
                fs::metadata(&file).unwrap().permissions().mode() & 0o7777
            };
            assert_eq!(prepared_mode(), 0o600, "{}", file.display());
            assert!(fs::read_to_string(&file).unwrap().contains("dXNlcjpzZWNyZXQ="), "{}", file.display());
            fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
            assert_eq!(prepared_mode(), 0o600, "{} existed with the mode 0644", file.display());
        }
    }

    #[test]
    fn the_tail_keeps_the_last_lines() {
        let mut tail = Tail::default();
        assert_eq!(tail.to_string(), "nothing");
        for line in 0..100 {
            tail.push(&line.to_string());
        }
        assert_eq!(tail.to_string(), "88 | 89 | 90 | 91 | 92 | 93 | 94 | 95 | 96 | 97 | 98 | 99");
    }
}
