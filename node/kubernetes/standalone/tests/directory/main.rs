//! What the program does with a directory of a real machine. Needs root and scratch disks.

mod limits;

use std::env;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser as _;
use fsquota::FsError;
use ktest_support::{Disk, Tmpfs, XfsDisk, unmount};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use standalone::arguments::{Arguments, Place, Task};
use standalone::directory::{Directory, DirectoryError};
use standalone::kubelet::{self, KubeletError};
use standalone::program;
use tempfile::TempDir;
use units::Bytes;
use volume::{Claim, Mode, Neighbours, Request, Volumes as _};

fn place(directory: &Path, more: &[&str]) -> Place {
    let directory = format!("--directory={}", directory.display());
    let words = ["granary-storage", "check", &directory].into_iter().chain(more.iter().copied());
    match Arguments::try_parse_from(words).unwrap().task {
        Task::Check(place) => place,
        other => panic!("{other:?}"),
    }
}

fn refused(directory: &Path, more: &[&str]) -> DirectoryError {
    Directory::open(&place(directory, more)).expect_err("it is refused")
}

fn run(words: &[&str]) -> ExitCode {
    program::run(std::iter::once("granary-storage").chain(words.iter().copied()).map(Into::into))
}

#[test]
fn a_directory_that_is_not_there_is_not_made() {
    let path = Path::new("/nowhere");
    assert!(matches!(refused(path, &[]), DirectoryError::Open { source, .. } if source.is_not_found()));
    assert!(!path.exists());
}

#[test]
fn another_file_system_is_refused_and_nothing_is_written_to_it() {
    let tmpfs = Tmpfs::mount();
    let refusal = refused(tmpfs.path(), &["--file-system=shared"]);
    assert!(matches!(refusal, DirectoryError::Quota { source: FsError::NotXfs, .. }), "{refusal}");
    assert_eq!(fs::read_dir(tmpfs.path()).unwrap().count(), 0);
    assert_eq!(run(&["check", &format!("--directory={}", tmpfs.path().display())]), ExitCode::FAILURE);
}

#[test]
fn ext4_is_refused_although_it_has_project_quotas_too() {
    let disk = Disk::take();
    let made = Command::new("mke2fs").args(["-q", "-F", "-t", "ext4"]).arg(disk.path()).status().unwrap();
    assert!(made.success());
    let target = tempfile::tempdir().unwrap();
    mount(Some(disk.path()), target.path(), Some("ext4"), MsFlags::empty(), None::<&str>).unwrap();
    let refusal = refused(target.path(), &[]);
    assert!(matches!(refusal, DirectoryError::Quota { source: FsError::NotXfs, .. }), "{refusal}");
    assert!(!target.path().join("volumes").exists());
    unmount(target.path()).unwrap();
}

#[test]
fn an_xfs_that_does_not_count_is_refused_with_the_mount_option() {
    let disk = XfsDisk::without_quota();
    let refusal = refused(disk.path(), &[]);
    let DirectoryError::Quota { source, .. } = refusal else { panic!("{refusal}") };
    assert_eq!(source, FsError::AccountingOff);
    assert!(source.to_string().contains("mount the file system with the option prjquota"));
    assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 0);
}

#[test]
fn a_directory_below_a_mount_has_to_be_called_shared() {
    let disk = XfsDisk::with_project_quota();
    let below = disk.path().join("granary");
    fs::create_dir(&below).unwrap();
    assert!(matches!(refused(&below, &[]), DirectoryError::NotOwn { .. }));
    // As a pod gets it: a mount, and still not the root of the file system.
    mount(Some(&below), &below, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    assert!(matches!(refused(&below, &[]), DirectoryError::NotOwn { .. }));
    assert!(Directory::open(&place(&below, &["--file-system=shared"])).is_ok());
    unmount(&below).unwrap();
    assert!(Directory::open(&place(disk.path(), &[])).is_ok());
}

#[test]
fn one_process_at_a_time_has_a_directory() {
    let disk = XfsDisk::with_project_quota();
    let first = Directory::open(&place(disk.path(), &[])).unwrap();
    assert!(matches!(refused(disk.path(), &[]), DirectoryError::Busy { .. }));
    drop(first);
    assert!(Directory::open(&place(disk.path(), &[])).is_ok());
}

#[test]
fn what_others_write_is_not_promised_and_volumes_do_not_get_the_projects_of_others() {
    let disk = XfsDisk::with_project_quota();
    let directory = Directory::open(&place(disk.path(), &["--reserve=64M"])).unwrap();
    let volumes = directory.volumes();
    let before = volumes.space().unwrap();
    assert!(before.reserve > Bytes::new(64 << 20), "what XFS keeps is measured too: {before:?}");

    let size = Bytes::new(128 << 20);
    fs::write(disk.path().join("of others"), vec![1; 128 << 20]).unwrap();
    fsquota::sync(volumes.file_system()).unwrap();
    let after = volumes.space().unwrap();
    let more = after.reserve.saturating_sub(before.reserve);
    assert!(more >= size && more < Bytes::new(130 << 20), "{more}");
    assert_eq!(before.free().saturating_sub(after.free()), more);

    let claim = Claim { uid: "u".into(), namespace: "default".into(), name: "c".into() };
    let mode = Mode::Filesystem { inodes: fsquota::default_inodes(size) };
    let id = "pvc-1".parse().unwrap();
    volumes.provision(&id, &Request { claim, class: "local".into(), mode, size }).unwrap();
    volumes.announce(&id).unwrap();
    let volume = volumes.open_volume(&id).unwrap();
    assert!(volume.project() >= Neighbours::FIRST_PROJECT);
    // What a volume writes was promised, and is nobody else's.
    let promised = volumes.space().unwrap();
    fs::write(disk.path().join("volumes/live/pvc-1/data"), vec![1; 100 << 20]).unwrap();
    fsquota::sync(volumes.file_system()).unwrap();
    let written = volumes.space().unwrap();
    assert!(written.reserve.saturating_sub(promised.reserve) < Bytes::MIB, "{promised:?} {written:?}");

    // A project of somebody else is no stray of ours.
    let others = disk.path().join("project");
    fs::create_dir(&others).unwrap();
    let others = File::open(others).unwrap();
    fsquota::assign(&others, fsquota::ProjectId::new(7).unwrap(), fsquota::Limits::for_size(size)).unwrap();
    assert_eq!(volumes.strays().unwrap(), volume::Strays::default());
    drop((volume, volumes, others));
}

/// A mount of its own, as a pod gets kubelet's directory.
struct Kubelet(TempDir);

impl Kubelet {
    fn new(propagation: MsFlags) -> Self {
        let directory = tempfile::tempdir().unwrap();
        mount(Some("none"), directory.path(), Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        mount(None::<&str>, directory.path(), None::<&str>, propagation, None::<&str>).unwrap();
        Self(directory)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        umount2(self.path(), MntFlags::MNT_DETACH).expect("unmount");
    }
}

#[test]
fn a_directory_of_kubelet_that_is_not_shared_is_refused() {
    let private = Kubelet::new(MsFlags::MS_PRIVATE);
    assert!(matches!(kubelet::check(private.path()), Err(KubeletError::Private { .. })));
    assert!(matches!(kubelet::check(Path::new("/nowhere")), Err(KubeletError::Open { .. })));
    kubelet::check(Kubelet::new(MsFlags::MS_SHARED).path()).unwrap();
}

/// What a pod has of the API server, and kubelet of its plugins.
fn account(kubelet: &Kubelet) {
    let account = Path::new("/var/run/secrets/kubernetes.io/serviceaccount");
    fs::create_dir_all(account).unwrap();
    let authority = rcgen::generate_simple_self_signed(vec!["kubernetes".to_owned()]).unwrap().cert.pem();
    for (name, content) in [("token", "t"), ("namespace", "kube-system"), ("ca.crt", &authority)] {
        fs::write(account.join(name), content).unwrap();
    }
    for directory in ["plugins", "plugins_registry"] {
        fs::create_dir(kubelet.path().join(directory)).unwrap();
    }
}

/// What the child of the last test runs.
const PROGRAM: &str = "PROGRAM";

/// The whole program, with an API server that is away: pods whose volumes exist must be able to start.
#[test]
fn a_node_serves_kubelet_until_it_is_asked_to_end() {
    if let Ok(words) = env::var(PROGRAM) {
        assert_eq!(run(&words.split(' ').collect::<Vec<_>>()), ExitCode::SUCCESS);
        return;
    }
    let disk = XfsDisk::with_project_quota();
    let kubelet = Kubelet::new(MsFlags::MS_SHARED);
    account(&kubelet);
    let [directory, shared] = [disk.path(), kubelet.path()].map(|path| path.display().to_string());
    let words = format!("node --node=n1 --directory={directory} --kubelet={shared} --listen=127.0.0.1:0");
    let mut child = Command::new("/proc/self/exe")
        .args(["--exact", "a_node_serves_kubelet_until_it_is_asked_to_end", "--nocapture"])
        .env(PROGRAM, words)
        .env("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        .env("KUBERNETES_SERVICE_PORT", "6443")
        .spawn()
        .unwrap();
    let sockets = ["plugins/local.granary.dev.sock", "plugins_registry/local.granary.dev-reg.sock"];
    let is_there = |socket: &str| kubelet.path().join(socket).exists();
    let begun = Instant::now();
    while !sockets.into_iter().all(is_there) {
        assert_eq!(child.try_wait().unwrap(), None, "it ended");
        assert!(begun.elapsed() < Duration::from_secs(60), "no sockets");
        thread::sleep(Duration::from_millis(20));
    }
    assert!(matches!(refused(disk.path(), &[]), DirectoryError::Busy { .. }));
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(!sockets.into_iter().any(is_there));
    assert!(Directory::open(&place(disk.path(), &[])).is_ok());
}
