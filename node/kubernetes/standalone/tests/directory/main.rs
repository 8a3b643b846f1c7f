//! Tests of the program with directories on real file systems. Need root and scratch disks.

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
use volume::{Claim, Mode, Neighbours, Owner, Request, Volumes as _};

fn place(directory: &Path, more: &[&str]) -> Place {
    let directory = format!("--directory={}", directory.display());
    let words = ["granary-storage", "check", &directory].into_iter().chain(more.iter().copied());
    match Arguments::try_parse_from(words).unwrap().task {
        Task::Check(place) => place,
        other => panic!("{other:?}"),
    }
}

fn rejected(directory: &Path, more: &[&str]) -> DirectoryError {
    Directory::open(&place(directory, more)).expect_err("rejected")
}

fn run(words: &[&str]) -> ExitCode {
    program::run(std::iter::once("granary-storage").chain(words.iter().copied()).map(Into::into))
}

#[test]
fn a_missing_directory_is_not_created() {
    let path = Path::new("/nowhere");
    assert!(matches!(rejected(path, &[]), DirectoryError::Open { source, .. } if source.is_not_found()));
    assert!(!path.exists());
}

#[test]
fn other_file_systems_are_rejected_without_a_write() {
    let tmpfs = Tmpfs::mount();
    let error = rejected(tmpfs.path(), &["--file-system=shared"]);
    assert!(matches!(error, DirectoryError::Quota { source: FsError::NotXfs, .. }), "{error}");
    assert_eq!(fs::read_dir(tmpfs.path()).unwrap().count(), 0);
    assert_eq!(run(&["check", &format!("--directory={}", tmpfs.path().display())]), ExitCode::FAILURE);
}

#[test]
fn ext4_is_rejected_although_it_has_project_quotas() {
    let disk = Disk::take();
    execute("mke2fs", &["-q", "-F", "-t", "ext4", disk.path().to_str().unwrap()]);
    let target = tempfile::tempdir().unwrap();
    mount(Some(disk.path()), target.path(), Some("ext4"), MsFlags::empty(), None::<&str>).unwrap();
    let error = rejected(target.path(), &[]);
    assert!(matches!(error, DirectoryError::Quota { source: FsError::NotXfs, .. }), "{error}");
    assert!(!target.path().join("volumes").exists());
    unmount(target.path()).unwrap();
}

#[test]
fn xfs_without_accounting_is_rejected_with_the_mount_option() {
    let disk = XfsDisk::without_quota();
    let error = rejected(disk.path(), &[]);
    let DirectoryError::Quota { source, .. } = error else { panic!("{error}") };
    assert_eq!(source, FsError::AccountingOff);
    assert!(source.to_string().contains("mount the file system with the option prjquota"));
    assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 0);
}

#[test]
fn a_directory_below_a_mount_requires_shared() {
    let disk = XfsDisk::with_project_quota();
    let below = disk.path().join("granary");
    fs::create_dir(&below).unwrap();
    assert!(matches!(rejected(&below, &[]), DirectoryError::NotOwn { .. }));
    // As in a pod, the directory is a mount, but not the root of the file system.
    mount(Some(&below), &below, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    assert!(matches!(rejected(&below, &[]), DirectoryError::NotOwn { .. }));
    assert!(Directory::open(&place(&below, &["--file-system=shared"])).is_ok());
    unmount(&below).unwrap();
    assert!(Directory::open(&place(disk.path(), &[])).is_ok());
}

fn execute(program: &str, arguments: &[&str]) -> String {
    ktest_support::run(Command::new(program).args(arguments))
}

/// Formats and mounts a device as docs/operations/other-clusters.md describes, and checks it with the program.
fn holds_volumes(device: &str) {
    execute("mkfs.xfs", &["-q", "-f", "-K", device]);
    let target = tempfile::tempdir().unwrap();
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some(device), target.path(), Some("xfs"), flags, Some("prjquota")).unwrap();
    let directory = format!("--directory={}", target.path().display());
    assert_eq!(run(&["check", &directory]), ExitCode::SUCCESS, "{device}");
    assert!(target.path().join("volumes").is_dir());
    unmount(target.path()).unwrap();
}

#[test]
fn a_loop_file_holds_volumes() {
    let disk = XfsDisk::without_quota();
    let path = disk.path().join("granary.img");
    File::create(&path).unwrap().set_len(400 << 20).unwrap();
    let device = execute("losetup", &["--find", "--show", path.to_str().unwrap()]);
    holds_volumes(device.trim());
    execute("losetup", &["--detach", device.trim()]);
}

/// A logical volume of LVM is a device-mapper device of one or more linear targets.
#[test]
fn a_device_mapper_volume_holds_volumes() {
    let disk = Disk::take();
    let half = 400 << 11;
    let path = disk.path().display();
    let table = format!("0 {half} linear {path} {half}\n{half} {half} linear {path} 0\n");
    let tables = tempfile::NamedTempFile::new().unwrap();
    fs::write(tables.path(), table).unwrap();
    let dmsetup = |arguments: &[&str]| execute("dmsetup", &[&["--noudevsync", "--noudevrules"], arguments].concat());
    dmsetup(&["create", "granary-volumes", tables.path().to_str().unwrap()]);
    holds_volumes("/dev/dm-0");
    dmsetup(&["remove", "granary-volumes"]);
}

#[test]
fn one_process_at_a_time_uses_a_directory() {
    let disk = XfsDisk::with_project_quota();
    let first = Directory::open(&place(disk.path(), &[])).unwrap();
    assert!(matches!(rejected(disk.path(), &[]), DirectoryError::Busy { .. }));
    drop(first);
    assert!(Directory::open(&place(disk.path(), &[])).is_ok());
}

#[test]
fn space_and_projects_of_other_programs_are_not_allocated() {
    let disk = XfsDisk::with_project_quota();
    let directory = Directory::open(&place(disk.path(), &["--reserve=64M"])).unwrap();
    let volumes = directory.volumes();
    let before = volumes.space().unwrap();
    assert!(before.reserve > Bytes::new(64 << 20), "the metadata of XFS is measured too: {before:?}");

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
    volumes
        .provision(&id, &Request { claim, owner: Owner::Provisioner, class: "local".into(), mode, size, source: None })
        .unwrap();
    volumes.announce(&id).unwrap();
    let volume = volumes.open_volume(&id).unwrap();
    assert!(volume.project() >= Neighbours::FIRST_PROJECT);
    // Writing data to a volume uses the volume's own reservation.
    let allocated = volumes.space().unwrap();
    fs::write(disk.path().join("volumes/live/pvc-1/data"), vec![1; 100 << 20]).unwrap();
    fsquota::sync(volumes.file_system()).unwrap();
    let written = volumes.space().unwrap();
    assert!(written.reserve.saturating_sub(allocated.reserve) < Bytes::MIB, "{allocated:?} {written:?}");

    // A project of another program does not count as a stray.
    let others = disk.path().join("project");
    fs::create_dir(&others).unwrap();
    let others = File::open(others).unwrap();
    fsquota::assign(&others, fsquota::ProjectId::new(7).unwrap(), fsquota::Limits::for_size(size)).unwrap();
    assert_eq!(volumes.strays().unwrap(), volume::Strays::default());
    drop((volume, volumes, others));
}

/// A mount like the kubelet's directory in a pod.
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
fn a_private_mount_of_the_kubelets_directory_is_rejected() {
    let private = Kubelet::new(MsFlags::MS_PRIVATE);
    assert!(matches!(kubelet::check(private.path()), Err(KubeletError::Private { .. })));
    assert!(matches!(kubelet::check(Path::new("/nowhere")), Err(KubeletError::Open { .. })));
    kubelet::check(Kubelet::new(MsFlags::MS_SHARED).path()).unwrap();
}

/// Creates a service account, and the kubelet's directories of plugins.
fn account(kubelet: &Kubelet) {
    let account = Path::new("/var/run/secrets/kubernetes.io/serviceaccount");
    fs::create_dir_all(account).unwrap();
    let ca = rcgen::generate_simple_self_signed(vec!["kubernetes".to_owned()]).unwrap().cert.pem();
    for (name, content) in [("token", "t"), ("namespace", "kube-system"), ("ca.crt", &ca)] {
        fs::write(account.join(name), content).unwrap();
    }
    for directory in ["plugins", "plugins_registry"] {
        fs::create_dir(kubelet.path().join(directory)).unwrap();
    }
}

/// Environment variable with the arguments of the last test's child process.
const PROGRAM: &str = "PROGRAM";

/// The API server is unreachable. Pods with existing volumes must still start.
#[test]
fn a_node_serves_the_kubelet_until_sigterm() {
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
        .args(["--exact", "a_node_serves_the_kubelet_until_sigterm", "--nocapture"])
        .env(PROGRAM, words)
        .env("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        .env("KUBERNETES_SERVICE_PORT", "6443")
        .spawn()
        .unwrap();
    let sockets = ["plugins/local.granary.dev.sock", "plugins_registry/local.granary.dev-reg.sock"];
    let is_there = |socket: &str| kubelet.path().join(socket).exists();
    let start = Instant::now();
    while !sockets.into_iter().all(is_there) {
        assert_eq!(child.try_wait().unwrap(), None, "the program ended");
        assert!(start.elapsed() < Duration::from_secs(60), "no sockets");
        thread::sleep(Duration::from_millis(20));
    }
    assert!(matches!(rejected(disk.path(), &[]), DirectoryError::Busy { .. }));
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(!sockets.into_iter().any(is_there));
    assert!(Directory::open(&place(disk.path(), &[])).is_ok());
}
