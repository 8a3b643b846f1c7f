//! Fixtures: cgroups as the kubelet creates them, a volume, a loop device.

use std::fs::{self, File, Permissions};
use std::io::{Read, Write, pipe};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use fsquota::{Limits, ProjectId};
use ktest_support::process::Child;
use ktest_support::{Tmpfs, XfsDisk, unmount};
use loopdev::{Config, Control, Device};
use lsm::{Btf, Cgroup, DeviceNumber, Guard, Pins};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use units::Bytes;

use crate::calls::{Call, LOOP_CLR_FD};
use crate::sys::{self, Argument};

const CGROUPS: &str = "/sys/fs/cgroup";

/// The owner of the volume.
const TENANT: u32 = 1000;

/// User of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// Root with all capabilities.
    Root,
    /// The owner of the volume, without capabilities.
    Tenant,
}

/// A data disk with a volume, and the cgroup of pods with a container. The tests take turns, because all need the disk.
pub struct Stage {
    pub pods: PathBuf,
    pub container: PathBuf,
    pub device: Device,
    merged: PathBuf,
    tmpfs: Tmpfs,
    // Dropped last: the disk can only be unmounted when no file on it is open.
    disk: XfsDisk,
}

impl Stage {
    /// Project of the volume.
    pub const PROJECT: u32 = 77;

    pub fn new() -> Self {
        mount_all();
        let disk = XfsDisk::with_project_quota();
        let volume = disk.path().join("volume");
        fs::create_dir(&volume).unwrap();
        let limits = Limits { bytes: Some(Bytes::GIB), inodes: None };
        fsquota::assign(File::open(&volume).unwrap(), ProjectId::new(Self::PROJECT).unwrap(), limits).unwrap();
        let tmpfs = Tmpfs::mount();
        for directory in ["lower", "upper", "work", "upper/directory"] {
            fs::create_dir(volume.join(directory)).unwrap();
        }
        File::create(volume.join("file")).unwrap();
        File::create(volume.join("upper/file")).unwrap();
        for owned in ["", "file", "upper", "upper/file", "upper/directory"] {
            chown(volume.join(owned), Some(TENANT), Some(TENANT)).unwrap();
        }
        chown(tmpfs.path(), Some(TENANT), Some(TENANT)).unwrap();

        let image = File::options().read(true).write(true).create_new(true).open(disk.path().join("image")).unwrap();
        image.set_len(16 << 20).unwrap();
        let device = Control::open().unwrap().attach(&image, &Config::default()).unwrap();
        for node in [device.path().as_path(), Path::new("/dev/loop-control")] {
            fs::set_permissions(node, Permissions::from_mode(0o666)).unwrap();
        }

        // Each test has its own cgroup, so that the programs of one test do not apply to the others.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let pods = Path::new(CGROUPS).join(format!("kubepods{number}"));
        let container = pods.join("pod/c");
        fs::create_dir_all(&container).unwrap();

        let merged = std::env::temp_dir().join(format!("merged-{number}"));
        fs::create_dir(&merged).unwrap();
        let path = |name| volume.join(name).display().to_string();
        let layers = format!("lowerdir={},upperdir={},workdir={}", path("lower"), path("upper"), path("work"));
        mount(Some("overlay"), &merged, Some("overlay"), MsFlags::empty(), Some(layers.as_str())).unwrap();
        Self { pods, container, device, merged, tmpfs, disk }
    }

    /// Loads programs that apply to the pods of this stage.
    pub fn guard(&self) -> Guard {
        let guard = Guard::load(&Btf::of_kernel().unwrap(), self.cgroup(), self.disk_number()).unwrap();
        guard.publish(self.device.dev()).unwrap();
        guard
    }

    /// Like [`Self::guard`], with pins, which the caller removes.
    pub fn pinned(&self, pins: &Pins<'_>) -> Guard {
        let btf = Btf::of_kernel().unwrap();
        let guard = Guard::load_pinned(&btf, self.cgroup(), self.disk_number(), pins).unwrap();
        guard.publish(self.device.dev()).unwrap();
        guard
    }

    pub fn cgroup(&self) -> Cgroup {
        Cgroup::of(File::open(&self.pods).unwrap()).unwrap()
    }

    pub fn disk_number(&self) -> DeviceNumber {
        DeviceNumber::from_stat(fs::metadata(self.disk.path()).unwrap().dev())
    }

    pub fn disk_device(&self) -> &Path {
        self.disk.device()
    }

    pub fn directory(&self) -> File {
        File::open(self.disk.path().join("volume")).unwrap()
    }

    pub fn file(&self) -> File {
        File::open(self.disk.path().join("volume/file")).unwrap()
    }

    pub fn overlay_file(&self) -> File {
        File::open(self.merged.join("file")).unwrap()
    }

    pub fn overlay_directory(&self) -> File {
        File::open(self.merged.join("directory")).unwrap()
    }

    /// A directory on another file system.
    pub fn elsewhere(&self) -> File {
        File::open(self.tmpfs.path()).unwrap()
    }

    pub fn loop_device(&self) -> File {
        File::options().read(true).write(true).open(self.device.path()).unwrap()
    }

    pub fn loop_control(&self) -> File {
        File::options().read(true).write(true).open("/dev/loop-control").unwrap()
    }

    /// Runs the calls in a process in a cgroup. Returns their names and results.
    pub fn try_in(&self, cgroup: &Path, user: User, calls: &[Call]) -> Vec<(&'static str, Result<(), Errno>)> {
        let numbers = self.run_in(cgroup, user, || {
            let results = calls.iter().map(|call| (call.run)(self));
            results.map(|result| result.map_or_else(|error| error as i32, |()| 0)).collect()
        });
        assert_eq!(numbers.len(), calls.len(), "the process ended early");
        let result = |number| if number == 0 { Ok(()) } else { Err(Errno::from_raw(number)) };
        calls.iter().zip(numbers).map(|(call, number)| (call.name, result(number))).collect()
    }

    /// Runs `work` in a process in a cgroup, and returns the resulting numbers.
    pub fn run_in(&self, cgroup: &Path, user: User, work: impl FnOnce() -> Vec<i32>) -> Vec<i32> {
        let (mut found, give) = pipe().unwrap();
        let child = Child::start(|| {
            fs::write(cgroup.join("cgroup.procs"), "0").unwrap();
            if user == User::Tenant {
                setgroups(&[]).unwrap();
                let (uid, gid) = (Uid::from_raw(TENANT), Gid::from_raw(TENANT));
                setresgid(gid, gid, gid).unwrap();
                setresuid(uid, uid, uid).unwrap();
            }
            let bytes: Vec<u8> = work().into_iter().flat_map(i32::to_ne_bytes).collect();
            (&give).write_all(&bytes).unwrap();
        });
        drop(give);
        let mut bytes = Vec::new();
        found.read_to_end(&mut bytes).unwrap();
        child.wait();
        bytes.chunks_exact(4).map(|number| i32::from_ne_bytes(number.try_into().unwrap())).collect()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = unmount(&self.merged);
        // The last descriptor, that of `device`, detaches the device.
        let _ = sys::ioctl(&self.loop_device(), LOOP_CLR_FD.into(), Argument::Number(0));
    }
}

/// Mounts that the guest's init does not create.
fn mount_all() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for (kind, path, options) in [
            ("cgroup2", CGROUPS, Some("nsdelegate")),
            ("securityfs", "/sys/kernel/security", None),
            ("bpf", "/sys/fs/bpf", None),
        ] {
            mount(Some(kind), path, Some(kind), MsFlags::empty(), options)
                .unwrap_or_else(|error| panic!("{kind}: {error}"));
        }
    });
}
