//! The service that restricts pods: it creates the pods' cgroup, loads [`lsm::Guard`] for it, and verifies by a self-test
//! that the kernel denies what it must. containerd starts only after that.

use std::collections::BTreeSet;
use std::error::Error;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lsm::{Abi, Btf, Cgroup, DeviceNumber, Guard, Operation, Probe, Recent};
use supervisor::Context;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::sleep;
use tracing::{info, warn};

/// kubelet's name for the cgroup of all pods (`--cgroup-root` is the root, the driver `cgroupfs`).
const PODS: &str = "kubepods";
/// Of the self-test, below [`PODS`].
const SELF_TEST: &str = "self-test";
/// The argument with which this program is the self-test's child.
const ARGUMENT: &str = "guard-self-test";
/// How long the self-test may take; it makes about twenty system calls.
const SELF_TEST_TIME: Duration = Duration::from_secs(30);
/// `/dev/loop0`: of the devices that the driver creates when it is loaded. Volumes get higher numbers.
const FIRST_LOOP: DeviceNumber = DeviceNumber { major: 7, minor: 0 };
/// How often the cgroup is verified and denials are logged.
const INTERVAL: Duration = Duration::from_secs(10);

/// Pods are not restricted, so none may run.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// A cgroup cannot be created or opened.
    #[error("cannot create the cgroup {path}")]
    CreateCgroup {
        /// Its directory.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The cgroup cannot be identified.
    #[error("cannot use the cgroup of the pods")]
    Cgroup(#[from] lsm::CgroupError),
    /// The kernel's types cannot be read.
    #[error("cannot read the kernel's BTF")]
    Btf(#[from] lsm::BtfError),
    /// The programs cannot be loaded.
    #[error("cannot restrict pods")]
    Load(#[from] lsm::Error),
    /// The self-test's directory on the data disk.
    #[error("cannot create the self-test's directory {path}")]
    Directory {
        /// Where.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The self-test's process cannot be started.
    #[error("cannot start the self-test of the pods' restrictions")]
    Start(#[source] io::Error),
    /// It ended without a result.
    #[error("the self-test of the pods' restrictions failed: {0}")]
    Failed(String),
    /// It found a call that is not denied.
    #[error("the kernel does not deny pods what would remove the limits of volumes: {0}")]
    NotDenied(String),
    /// The thread that waits for the kernel panicked.
    #[error("loading the restrictions of the pods ended early")]
    Panicked(#[from] JoinError),
}

/// The restrictions of the pods. They outlive a restart of the service.
#[derive(Debug)]
pub struct PodGuard {
    /// The root of the cgroup hierarchy.
    cgroups: PathBuf,
    /// Where the data disk is mounted.
    data: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    guard: Option<Guard>,
    /// Loop devices of published volumes, also those that came before a guard.
    published: BTreeSet<DeviceNumber>,
    /// Denials that former guards have counted.
    past: [u64; Operation::ALL.len()],
}

impl PodGuard {
    /// For the hierarchy at `cgroups` and the disk that is mounted at `data`.
    pub fn new(cgroups: impl Into<PathBuf>, data: impl Into<PathBuf>) -> Self {
        Self { cgroups: cgroups.into(), data: data.into(), state: Mutex::default() }
    }

    /// The service. Healthy when pods are restricted and the self-test has verified it.
    ///
    /// # Errors
    /// [`GuardError`].
    pub async fn run(self: Arc<Self>, cx: Context) -> Result<(), GuardError> {
        let this = Arc::clone(&self);
        spawn_blocking(move || this.ensure()).await??;
        cx.healthy();
        loop {
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                () = sleep(INTERVAL) => {}
            }
            let this = Arc::clone(&self);
            spawn_blocking(move || this.verify()).await??;
        }
    }

    /// From now on, pods may not change this loop device.
    ///
    /// # Errors
    /// The kernel does not take the number.
    pub fn publish(&self, device: DeviceNumber) -> Result<(), lsm::Error> {
        let mut state = self.state();
        // A guard that is loaded later gets it although the present one does not take it.
        state.published.insert(device);
        match &state.guard {
            Some(guard) => guard.publish(device),
            None => Ok(()),
        }
    }

    /// Reverts [`PodGuard::publish`].
    ///
    /// # Errors
    /// The kernel does not remove the number.
    pub fn withdraw(&self, device: DeviceNumber) -> Result<(), lsm::Error> {
        let mut state = self.state();
        if let Some(guard) = &state.guard {
            guard.withdraw(device)?;
        }
        state.published.remove(&device);
        Ok(())
    }

    /// How many calls of pods were denied since the node started.
    pub fn denied(&self) -> [(Operation, u64); Operation::ALL.len()] {
        let state = self.state();
        let now = state.guard.as_ref().and_then(|guard| guard.denied().ok()).unwrap_or_default();
        let mut past = state.past.into_iter();
        Operation::ALL.map(|operation| (operation, past.next().unwrap_or_default() + now.of(operation)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads the programs for the pods' cgroup if they are not loaded for it yet, and runs the self-test.
    fn ensure(&self) -> Result<(), GuardError> {
        let cgroup = self.cgroup()?;
        let is_loaded = self.state().guard.as_ref().is_some_and(|guard| guard.cgroup() == cgroup);
        if !is_loaded {
            let guard = Guard::load(&Btf::of_kernel()?, cgroup, self.disk()?)?;
            let mut state = self.state();
            for &device in &state.published {
                guard.publish(device)?;
            }
            if let Some(former) = state.guard.replace(guard) {
                let counted = former.denied().unwrap_or_default();
                for (past, operation) in state.past.iter_mut().zip(Operation::ALL) {
                    *past += counted.of(operation);
                }
            }
        }
        self.self_test()?;
        info!(cgroup = %cgroup.id(), "pods are restricted");
        Ok(())
    }

    /// A cgroup that was removed and created again has another ID, and the programs would apply to nothing.
    fn verify(&self) -> Result<(), GuardError> {
        let cgroup = self.cgroup()?;
        let recent = match &self.state().guard {
            Some(guard) if guard.cgroup() == cgroup => Some(guard.recent()?),
            _ => None,
        };
        match recent {
            Some(recent) => self.log(&recent)?,
            None => {
                warn!("the cgroup of the pods was created again: its restrictions are loaded again");
                self.ensure()?;
            }
        }
        Ok(())
    }

    /// kubelet names a pod's cgroup after the pod's UID.
    fn log(&self, denied: &[Recent]) -> Result<(), GuardError> {
        if denied.is_empty() {
            return Ok(());
        }
        let pods = self.open()?;
        for Recent { cgroup, operation, count } in denied {
            let path = cgroup.path(&pods)?;
            let path = path.as_deref().unwrap_or_else(|| Path::new("of a pod that has ended"));
            warn!(%operation, count, cgroup = %path.display(), "calls of a pod were denied");
        }
        Ok(())
    }

    fn pods(&self) -> PathBuf {
        self.cgroups.join(PODS)
    }

    fn open(&self) -> Result<File, GuardError> {
        let path = self.pods();
        let created = create(&path).and_then(|()| File::open(&path));
        created.map_err(|source| GuardError::CreateCgroup { path, source })
    }

    fn cgroup(&self) -> Result<Cgroup, GuardError> {
        Ok(Cgroup::of(self.open()?)?)
    }

    fn disk(&self) -> Result<DeviceNumber, GuardError> {
        let found = fs::metadata(&self.data);
        let found = found.map_err(|source| GuardError::Directory { path: self.data.clone(), source })?;
        let [major, minor] = [nix::sys::stat::major(found.dev()), nix::sys::stat::minor(found.dev())];
        // The kernel's numbers have 12 and 20 bits.
        let [major, minor] = [major, minor].map(|part| u32::try_from(part).unwrap_or(u32::MAX));
        Ok(DeviceNumber { major, minor })
    }

    /// Runs each denied call in a process below the pods' cgroup: this program once more, since a process with threads
    /// cannot move a single one of them. The first loop device, which the driver creates and no volume uses, is published
    /// meanwhile.
    fn self_test(&self) -> Result<(), GuardError> {
        let cgroup = self.pods().join(SELF_TEST);
        // It stays: while it exists, nobody can remove the cgroup of the pods and create another one.
        create(&cgroup).map_err(|source| GuardError::CreateCgroup { path: cgroup.clone(), source })?;
        let directory = self.data.join(SELF_TEST);
        create(&directory).map_err(|source| GuardError::Directory { path: directory.clone(), source })?;
        self.publish(FIRST_LOOP)?;
        let tried = run(Command::new("/proc/self/exe").arg(ARGUMENT).args([&cgroup, &directory]));
        self.withdraw(FIRST_LOOP)?;
        // An empty directory harms nothing; the next self-test uses it again.
        if let Err(error) = fs::remove_dir(&directory) {
            warn!(path = %directory.display(), %error, "cannot remove the self-test's directory");
        }
        match tried? {
            calls if calls.is_empty() => Ok(()),
            calls => Err(GuardError::NotDenied(calls)),
        }
    }
}

/// What the self-test's child prints, if it succeeds in time. On a disk that does not answer it never ends.
fn run(child: &mut Command) -> Result<String, GuardError> {
    let child = child.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().map_err(GuardError::Start)?;
    let end = Instant::now() + SELF_TEST_TIME;
    while child.try_wait().map_err(GuardError::Start)?.is_none() {
        if Instant::now() > end {
            let _ = child.kill();
            return Err(GuardError::Failed(format!("it did not end in {} s", SELF_TEST_TIME.as_secs())));
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

fn create(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Has pods denied the ioctls of the loop devices that the CSI plugin publishes.
#[derive(Debug)]
pub struct Devices(pub Arc<PodGuard>);

impl csi::Published for Devices {
    fn publish(&self, device: DeviceNumber) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(self.0.publish(device)?)
    }

    fn withdraw(&self, device: DeviceNumber) {
        if let Err(error) = self.0.withdraw(device) {
            let error: &dyn Error = &error;
            warn!(error, %device, "pods stay denied the ioctls of a loop device that was removed");
        }
    }
}

/// The self-test's child, if these are its arguments: prints each call that was not denied.
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
    use super::*;

    fn guard() -> (tempfile::TempDir, PodGuard) {
        let scratch = tempfile::tempdir().unwrap();
        let guard = PodGuard::new(scratch.path().join("cgroups"), scratch.path().join("data"));
        (scratch, guard)
    }

    #[test]
    fn the_program_is_the_child_only_with_the_childs_arguments() {
        let arguments = |all: &[&str]| all.iter().map(OsString::from).collect::<Vec<_>>().into_iter();
        for other in [&["init"][..], &["init", "quiet", "a", "b"], &["init", ARGUMENT, "a"]] {
            assert!(self_test(arguments(other)).is_none(), "{other:?}");
        }
        // There is no such cgroup: the self-test fails, and does not pass.
        assert!(self_test(arguments(&["init", ARGUMENT, "/nonexistent", "/nonexistent"])).is_some());
    }

    #[test]
    fn a_device_that_is_published_before_the_guard_is_loaded_is_kept_for_it() {
        let (_scratch, guard) = guard();
        let device = DeviceNumber { major: 7, minor: 3 };
        guard.publish(device).unwrap();
        assert!(guard.state().published.contains(&device));
        guard.withdraw(device).unwrap();
        assert!(guard.state().published.is_empty());
        assert_eq!(guard.denied().map(|(_, count)| count), [0; 3]);
    }

    #[test]
    fn pods_are_not_called_restricted_where_there_are_no_cgroups() {
        let (scratch, guard) = guard();
        assert!(matches!(guard.ensure(), Err(GuardError::CreateCgroup { .. })));
        // An ordinary directory is no cgroup.
        fs::create_dir(scratch.path().join("cgroups")).unwrap();
        assert!(matches!(guard.ensure(), Err(GuardError::Cgroup(_))));
    }
}
