//! Control test of the suite on the node. On a kernel without the node's protections, every attack of the list
//! succeeds, or fails with a different error than the protection returns. This shows that no case of the suite passes
//! because the attack itself is wrong.
#![deny(unsafe_code)]

#[expect(unsafe_code, reason = "BPF links have no wrapper in nix")]
mod sys;

use std::ffi::{CStr, CString};
use std::fs::{self, File, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use attack::{ATTACKS, Attack, MODULE, TENANT, Target, Tenant, without_signature};
use fsquota::{Allocator, Limits};
use ktest_support::process::Child;
use ktest_support::{Mount, XfsDisk};
use loopdev::{Config, Control, Device};
use nix::errno::Errno;
use nix::kmod::{DeleteModuleFlags, delete_module};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use units::Bytes;

const LIMIT: u64 = 16 << 20;
const DEVICE: u64 = 4 << 20;
const USER: u32 = TENANT;
/// The kernel permits this attack only for a read-only device.
const READ_ONLY: &str = "change_loop_file";

struct Pod {
    // Declared before the disk, so that the layer is unmounted first.
    layer: Mount,
    volume: PathBuf,
    module: PathBuf,
    disk: XfsDisk,
}

impl Pod {
    /// Waits for the only disk, so only one test runs at a time.
    fn new() -> Self {
        let disk = XfsDisk::with_project_quota();
        let ids = Allocator::open(File::open(disk.path()).unwrap()).unwrap();
        let [volume, other] = ["volume", "other"].map(|name| disk.path().join(name));
        for directory in [&volume, &other] {
            fs::create_dir(directory).unwrap();
            fsquota::set(File::open(directory).unwrap(), Limits::for_size(Bytes::new(LIMIT)), &ids).unwrap();
        }
        // File of the other tenant, for `open_by_handle`.
        fs::write(other.join("file"), "").unwrap();
        chown(other.join("file"), Some(TENANT), Some(TENANT)).unwrap();
        let layer = overlay(&volume.join("layer"));
        chown(&volume, Some(USER), Some(USER)).unwrap();
        Self { layer, volume, module: unsigned_module(), disk }
    }

    /// While the returned value exists, the kernel defers a detach.
    fn device(&self, read_only: bool) -> Device {
        attach(&self.disk.path().join("image"), &Config { read_only, autoclear: true, ..Config::default() })
    }

    fn run(&self, user: u32, device: &Device, selected: impl Fn(&Attack) -> bool) -> String {
        let [volume, device, layer, module] =
            [&*self.volume, &*device.path(), self.layer.path(), &*self.module].map(c_string);
        let target = Target { volume: &volume, limit: LIMIT, device: &device, layer: &layer, module: &module };
        let path = std::env::temp_dir().join("output");
        let output = File::create(&path).unwrap();
        let child = Child::start(|| {
            if user != 0 {
                setgroups(&[]).unwrap();
                let (group, user) = (Gid::from_raw(user), Uid::from_raw(user));
                setresgid(group, group, group).unwrap();
                setresuid(user, user, user).unwrap();
            }
            attack::run(&target, selected, attack::File::descriptor(output.as_raw_fd()));
        });
        child.wait();
        fs::read_to_string(path).unwrap()
    }
}

/// Mounts an overlayfs whose upper directory is in the volume's project, like the root file system of a container.
fn overlay(above: &Path) -> Mount {
    let lower = std::env::temp_dir().join("lower");
    let [upper, work] = ["upper", "work"].map(|name| above.join(name));
    for directory in [&lower, &upper, &work] {
        fs::create_dir_all(directory).unwrap();
    }
    let [lower, upper, work] = [&lower, &upper, &work].map(|path| path.display());
    Mount::new("overlay", Path::new("overlay"), &format!("lowerdir={lower},upperdir={upper},workdir={work}"))
}

/// Writes the module without its signature to a file. The guest has loaded the signed module before the test.
fn unsigned_module() -> PathBuf {
    match delete_module(MODULE, DeleteModuleFlags::O_NONBLOCK) {
        Ok(()) | Err(Errno::ENOENT) => {}
        Err(errno) => panic!("cannot unload the module: {errno}"),
    }
    let module = fs::read(format!("/modules/{}.ko", MODULE.to_str().unwrap())).unwrap();
    let path = std::env::temp_dir().join("module.ko");
    fs::write(&path, without_signature(&module).unwrap()).unwrap();
    path
}

/// Attaches a loop device that any user may use.
fn attach(image: &Path, config: &Config) -> Device {
    let image = File::options().read(true).write(true).create(true).truncate(false).open(image).unwrap();
    image.set_len(DEVICE).unwrap();
    let device = Control::open().unwrap().attach(&image, config).unwrap();
    fs::set_permissions(device.path(), Permissions::from_mode(0o666)).unwrap();
    device
}

fn c_string(path: &Path) -> CString {
    CString::new(path.as_os_str().as_encoded_bytes()).unwrap()
}

fn wrong(user: u32, output: &str) -> Vec<String> {
    let attacks = ATTACKS.iter().filter(|attack| attack.by.includes(user as usize));
    let result = |attack: &Attack| output.lines().find_map(|line| line.strip_prefix(attack.name)?.strip_prefix(": "));
    let wrong = attacks.filter_map(|attack| {
        let result = result(attack).unwrap_or("not run");
        let expected = attack.unprotected;
        (!expected.is(result)).then(|| format!("{} of uid {user}: {result}, expected {expected}", attack.name))
    });
    wrong.collect()
}

fn every_attack_of(user: u32) -> Vec<String> {
    let pod = Pod::new();
    let needs_read_only = |attack: &Attack| attack.name.starts_with(READ_ONLY);
    let mut output = pod.run(user, &pod.device(false), |attack| !needs_read_only(attack));
    output.push_str(&pod.run(user, &pod.device(true), needs_read_only));
    wrong(user, &output)
}

#[test]
fn every_attack_of_a_user_succeeds_without_the_protections() {
    assert_eq!(every_attack_of(USER), [""; 0]);
}

#[test]
fn every_attack_of_root_succeeds_without_the_protections() {
    let cgroups = Mount::new("cgroup2", Path::new("cgroup2"), "");
    // The attack `detach_bpf_links` detaches this link.
    let _link = sys::link(&File::open(cgroups.path()).unwrap());
    assert_eq!(every_attack_of(0), [""; 0]);
}

/// Regression: the device loses its backing file, the next volume gets the same device number, and the first tenant
/// still has the device open.
#[test]
fn without_protections_a_tenant_overwrites_the_next_volume() {
    const MARKS: [&CStr; 2] = [c"the first tenant", c"the next tenant"];
    let pod = Pod::new();
    // A child process closes the tenant's descriptors when it ends.
    let child = Child::start(|| {
        // With this configuration, the kernel does not detach the device at its last close.
        let path = attach(&pod.disk.path().join("first"), &Config::default()).path();
        let [volume, device] = [&pod.volume, &path].map(|path| c_string(path));
        let target = Target { volume: &volume, limit: LIMIT, device: &device, layer: &volume, module: &volume };
        let [mark, foreign] = MARKS;
        let mut tenant = Tenant::new(target, mark, foreign).unwrap();
        let turn = tenant.turn();
        assert!(turn.foreign == Ok(false) && turn.created.is_ok(), "{turn}");
        assert!(!is_attached(&path), "the tenant detached its device");

        let image = pod.disk.path().join("next");
        fs::write(&image, foreign.to_bytes()).unwrap();
        let next = attach(&image, &Config::default()).path();
        assert_eq!(next, path, "the next volume gets the number");
        let turn = tenant.turn();
        assert_eq!(turn.foreign, Ok(true), "{turn}");
        let mut found = vec![0; mark.count_bytes()];
        File::open(&image).unwrap().read_exact_at(&mut found, 1 << 20).unwrap();
        assert_eq!(found, mark.to_bytes(), "the first tenant wrote to the next volume");
    });
    child.wait();
}

fn is_attached(device: &Path) -> bool {
    Path::new("/sys/block").join(device.file_name().unwrap()).join("loop/backing_file").exists()
}
