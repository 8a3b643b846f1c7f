//! The service that restricts pods: it creates the pods' cgroup, loads [`lsm::Guard`] for it, and runs a self-test that
//! checks that the kernel denies each call. containerd starts only afterwards, and the kubelet runs only while pods are
//! restricted.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, pending};
use lsm::{Abi, Btf, Cgroup, DeviceNumber, Guard, Probe};
use podguard::{Enforcement, Restrictions};
use provisioner::Notices;
use supervisor::{BoxError, Context};
use tokio::sync::watch;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::status::chain;

/// The kubelet's name for the cgroup of all pods (`--cgroup-root` is the root, the driver `cgroupfs`).
const PODS: &str = "kubepods";
/// Cgroup of the self-test, below [`PODS`].
const SELF_TEST: &str = "self-test";
const ARGUMENT: &str = "guard-self-test";
/// Deadline of the self-test, which makes about twenty system calls.
const SELF_TEST_TIME: Duration = Duration::from_secs(30);
/// `/dev/loop0`, one of the devices that the driver creates when it is loaded. Volumes get higher numbers.
const FIRST_LOOP: DeviceNumber = DeviceNumber { major: 7, minor: 0 };
/// Links to the logs of containers, by the names of their pods. The kubelet has no option for this directory.
const LOG_LINKS: &str = "/var/log/containers";
/// Interval of the verification of the cgroup and of the reports of denials. For a container that ends within the
/// interval, only the number of denials is reported.
const INTERVAL: Duration = Duration::from_secs(5);

/// Pods are not restricted, so no pod may run.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    #[error("cannot create the cgroup {path}")]
    CreateCgroup { path: PathBuf, source: io::Error },
    #[error("cannot use the cgroup of the pods")]
    Cgroup(#[from] lsm::CgroupError),
    #[error("cannot read the kernel's BTF")]
    Btf(#[from] lsm::BtfError),
    #[error("cannot restrict pods")]
    Load(#[from] lsm::Error),
    #[error("cannot create the self-test's directory {path}")]
    Directory { path: PathBuf, source: io::Error },
    #[error("cannot start the self-test of the pods' restrictions")]
    Start(#[source] io::Error),
    #[error("the self-test of the pods' restrictions failed: {0}")]
    Failed(String),
    #[error("the kernel does not deny pods the calls that remove the limits of volumes: {0}")]
    NotDenied(String),
    #[error("the task that restricts pods panicked")]
    Panicked(#[from] JoinError),
}

/// Pods are not restricted any more, so the kubelet must not start pods.
#[derive(Debug, thiserror::Error)]
#[error("kubelet does not run because pods are not restricted: {0}")]
pub struct NotRestricted(Arc<str>);

#[derive(Debug)]
pub struct PodGuard {
    cgroups: PathBuf,
    data: PathBuf,
    restrictions: Arc<Restrictions>,
}

impl PodGuard {
    /// Guard for the cgroup hierarchy at `cgroups` and the disk that is mounted at `data`.
    pub fn new(cgroups: impl Into<PathBuf>, data: impl Into<PathBuf>, notices: Notices) -> Self {
        let restrictions = Arc::new(Restrictions::new(LOG_LINKS, notices));
        Self { cgroups: cgroups.into(), data: data.into(), restrictions }
    }

    /// The restrictions in force. They stay loaded when the service restarts.
    pub fn restrictions(&self) -> Arc<Restrictions> {
        Arc::clone(&self.restrictions)
    }

    /// The service. Healthy when pods are restricted and the self-test has verified it.
    pub async fn run(self: Arc<Self>, cx: Context) -> Result<(), GuardError> {
        let ended = self.keep(&cx).await;
        if let Err(error) = &ended {
            self.restrictions.set(Enforcement::Failed(chain(error, ": ").into()));
        }
        ended
    }

    async fn keep(self: &Arc<Self>, cx: &Context) -> Result<(), GuardError> {
        let guard = Arc::clone(self);
        spawn_blocking(move || guard.ensure()).await??;
        cx.healthy();
        loop {
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                () = sleep(INTERVAL) => {}
            }
            let guard = Arc::clone(self);
            spawn_blocking(move || guard.verify()).await??;
        }
    }

    /// Wraps a service that runs only while pods are restricted: the kubelet, without which the node is not Ready.
    pub fn while_restricted<F, Fut, E>(
        self: &Arc<Self>,
        service: F,
    ) -> impl Fn(Context) -> BoxFuture<'static, Result<(), BoxError>> + Send + Sync + use<F, Fut, E>
    where
        F: Fn(Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        let (guard, service) = (Arc::clone(self), Arc::new(service));
        move |cx| {
            let (service, enforcement) = (Arc::clone(&service), guard.restrictions.enforcement());
            Box::pin(async move {
                tokio::select! {
                    biased;
                    reason = failure(enforcement) => Err(NotRestricted(reason).into()),
                    ended = service(cx) => ended.map_err(Into::into),
                }
            })
        }
    }

    /// Loads the BPF programs for the pods' cgroup if necessary, and runs the self-test.
    fn ensure(&self) -> Result<(), GuardError> {
        let cgroup = self.cgroup()?;
        if self.restrictions.cgroup() != Some(cgroup) {
            self.restrictions.replace(Guard::load(&Btf::of_kernel()?, cgroup, self.disk()?)?)?;
        }
        self.self_test()?;
        self.restrictions.set(Enforcement::Enforced);
        info!(cgroup = %cgroup.id(), "pods are restricted");
        Ok(())
    }

    /// Loads the restrictions again if the cgroup has another ID: a cgroup that was removed and created again has a new
    /// ID, to which the loaded programs do not apply.
    fn verify(&self) -> Result<(), GuardError> {
        if self.restrictions.cgroup() == Some(self.cgroup()?) {
            self.restrictions.report(&self.cgroups);
            return Ok(());
        }
        warn!("the cgroup of the pods was created again: loading its restrictions again");
        self.ensure()
    }

    fn pods(&self) -> PathBuf {
        self.cgroups.join(PODS)
    }

    fn open(&self) -> Result<File, GuardError> {
        let path = self.pods();
        let created = ensure_directory(&path).and_then(|()| File::open(&path));
        created.map_err(|source| GuardError::CreateCgroup { path, source })
    }

    fn cgroup(&self) -> Result<Cgroup, GuardError> {
        Ok(Cgroup::of(self.open()?)?)
    }

    fn disk(&self) -> Result<DeviceNumber, GuardError> {
        let found = fs::metadata(&self.data);
        let found = found.map_err(|source| GuardError::Directory { path: self.data.clone(), source })?;
        Ok(DeviceNumber::from_stat(found.dev()))
    }

    /// Runs each denied call in a process in a cgroup below that of the pods. The process runs this program again,
    /// because cgroup2 does not move single threads. The first loop device, which the driver creates and no volume
    /// uses, is published during the test.
    fn self_test(&self) -> Result<(), GuardError> {
        let cgroup = self.pods().join(SELF_TEST);
        // The cgroup stays: while it exists, no process can remove the cgroup of the pods.
        ensure_directory(&cgroup).map_err(|source| GuardError::CreateCgroup { path: cgroup.clone(), source })?;
        let directory = self.data.join(SELF_TEST);
        ensure_directory(&directory).map_err(|source| GuardError::Directory { path: directory.clone(), source })?;
        self.restrictions.publish(FIRST_LOOP)?;
        let tried = run(Command::new("/proc/self/exe").arg(ARGUMENT).args([&cgroup, &directory]));
        self.restrictions.withdraw(FIRST_LOOP)?;
        // The next self-test uses a directory that remains.
        if let Err(error) = fs::remove_dir(&directory) {
            warn!(path = %directory.display(), %error, "cannot remove the self-test's directory");
        }
        match tried? {
            calls if calls.is_empty() => Ok(()),
            calls => Err(GuardError::NotDenied(calls)),
        }
    }
}

/// Waits until the restrictions fail, and returns the reason. Cancel-safe.
async fn failure(mut enforcement: watch::Receiver<Enforcement>) -> Arc<str> {
    loop {
        if let Enforcement::Failed(reason) = &*enforcement.borrow_and_update() {
            return Arc::clone(reason);
        }
        if enforcement.changed().await.is_err() {
            pending().await
        }
    }
}

/// Returns the output of the self-test's child. The child may block on a disk that does not respond, so it has a
/// deadline.
fn run(child: &mut Command) -> Result<String, GuardError> {
    let child = child.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().map_err(GuardError::Start)?;
    let end = Instant::now() + SELF_TEST_TIME;
    while child.try_wait().map_err(GuardError::Start)?.is_none() {
        if Instant::now() > end {
            let _ = child.kill();
            return Err(GuardError::Failed(format!("it did not end within {} s", SELF_TEST_TIME.as_secs())));
        }
        thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().map_err(GuardError::Start)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().replace('\n', ", ");
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(GuardError::Failed(format!("{}: {}", output.status, text(&output.stderr))))
    }
}

fn ensure_directory(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Entry point of the self-test's child; `None` for other arguments. Prints each call that the kernel did not deny.
pub fn self_test(mut arguments: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let [mode, cgroup, directory] = [arguments.nth(1)?, arguments.next()?, arguments.next()?];
    if mode != ARGUMENT {
        return None;
    }
    match probe(Path::new(&cgroup), Path::new(&directory)) {
        Ok(breaches) => {
            breaches.iter().for_each(|breach| println!("{breach}"));
            Some(ExitCode::SUCCESS)
        }
        Err(error) => {
            eprintln!("{error}");
            Some(ExitCode::FAILURE)
        }
    }
}

fn probe(cgroup: &Path, directory: &Path) -> io::Result<Vec<lsm::Breach>> {
    fs::write(cgroup.join("cgroup.procs"), "0")?;
    let control = File::options().read(true).write(true).open("/dev/loop-control")?;
    let directory = File::open(directory)?;
    let device = File::open("/dev/loop0")?;
    let probe = Probe { directory: directory.as_fd(), control: control.as_fd(), device: Some(device.as_fd()) };
    let mut breaches = Vec::new();
    for abi in [Abi::Native, Abi::Compat] {
        breaches.extend(probe.run(abi).map_err(io::Error::other)?);
    }
    Ok(breaches)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use envtest::{Seen, eventually};
    use supervisor::{Settings, State, Supervisor};

    use super::*;

    fn guard() -> (tempfile::TempDir, Arc<PodGuard>) {
        let scratch = tempfile::tempdir().unwrap();
        let (cgroups, data) = (scratch.path().join("cgroups"), scratch.path().join("data"));
        (scratch, Arc::new(PodGuard::new(cgroups, data, provisioner::notices().0)))
    }

    #[test]
    fn the_program_is_the_child_only_with_the_childs_arguments() {
        let arguments = |all: &[&str]| all.iter().map(OsString::from).collect::<Vec<_>>().into_iter();
        for other in [&["init"][..], &["init", "quiet", "a", "b"], &["init", ARGUMENT, "a"]] {
            assert!(self_test(arguments(other)).is_none(), "{other:?}");
        }
        assert!(self_test(arguments(&["init", ARGUMENT, "/nonexistent", "/nonexistent"])).is_some());
        // This cgroup does not exist: the self-test must fail.
        assert!(probe(Path::new("/nonexistent"), Path::new("/nonexistent")).is_err());
    }

    #[test]
    fn without_cgroups_pods_are_not_restricted() {
        let (scratch, guard) = guard();
        assert!(matches!(guard.ensure(), Err(GuardError::CreateCgroup { .. })));
        // An ordinary directory is not a cgroup.
        fs::create_dir(scratch.path().join("cgroups")).unwrap();
        assert!(matches!(guard.ensure(), Err(GuardError::Cgroup(_))));
        assert_eq!(*guard.restrictions.enforcement().borrow(), Enforcement::Unknown);
    }

    #[tokio::test]
    async fn kubelet_stops_with_the_reason_when_restrictions_end() {
        const PATIENCE: Duration = Duration::from_secs(30);
        let (_scratch, guard) = guard();
        guard.restrictions.set(Enforcement::Enforced);
        let shared = Arc::clone(&guard);
        let tree = Supervisor::start("node", Settings::default(), move |cx| {
            let guard = Arc::clone(&shared);
            async move {
                let kubelet = |cx: Context| async move {
                    cx.healthy();
                    pending::<Result<(), Infallible>>().await
                };
                let kubelet = cx.start("kubelet", guard.while_restricted(kubelet));
                kubelet.healthy().await?;
                cx.healthy();
                // The service fails, because there are no cgroups.
                cx.start("pod-guard", move |cx| Arc::clone(&guard).run(cx));
                cx.cancelled().await;
                Ok::<(), BoxError>(())
            }
        });
        let kubelet = || tree.status().walk().map(|(_, status)| status.clone()).find(|status| status.name == "kubelet");
        let reason = eventually(PATIENCE, "kubelet to fail", async || {
            Ok::<_, Infallible>(match kubelet() {
                Some(status) if status.state != State::Healthy && status.last_error.is_some() => {
                    Seen::Done(status.last_error.unwrap_or_default())
                }
                other => Seen::NotYet(format!("{other:?}")),
            })
        });
        let reason = reason.await.unwrap();
        assert!(reason.contains("pods are not restricted: cannot create the cgroup"), "{reason}");
        // Simulates that the guard's next attempt succeeds.
        guard.restrictions.set(Enforcement::Enforced);
        eventually(PATIENCE, "kubelet to run", async || {
            guard.restrictions.set(Enforcement::Enforced);
            let state = kubelet().map(|status| status.state);
            Ok::<_, Infallible>(if state == Some(State::Healthy) {
                Seen::Done(())
            } else {
                Seen::NotYet(format!("{state:?}"))
            })
        })
        .await
        .unwrap();
        tree.stop(PATIENCE).await.unwrap();
    }
}
