//! Calls of a tenant, as uid 1000 and as root with all capabilities, in a container of a node. Needs root and one
//! scratch disk. The tests wait for each other, so that none forks while another unmounts.

mod calls;
mod stage;
#[expect(unsafe_code, reason = "the calls of an attacker have no wrapper")]
mod sys;

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;

use ktest_support::eventually_is;
use ktest_support::process::Child;
use lsm::{Abi, Btf, Cgroup, CgroupError, CgroupId, Denials, DeviceNumber, Error, Guard, Operation, Pins, Probe};
use nix::errno::Errno;

use crate::calls::{Call, Kind};
use crate::stage::{Stage, User};

fn calls_of(user: User) -> Vec<Call> {
    match user {
        User::Tenant => calls::of_any_user(),
        User::Root => calls::of_any_user().into_iter().chain(calls::of_root()).collect(),
    }
}

/// Results of the calls without the programs.
fn allowed(calls: &[Call]) -> Vec<(&'static str, Result<(), Errno>)> {
    calls.iter().map(|call| (call.name, call.allowed)).collect()
}

/// Results of the calls below the pods' cgroup.
fn denied(calls: &[Call]) -> Vec<(&'static str, Result<(), Errno>)> {
    let result = |call: &Call| if call.kind == Kind::Harmless { call.allowed } else { Err(Errno::EPERM) };
    calls.iter().map(|call| (call.name, result(call))).collect()
}

fn count(calls: &[Call], kind: Kind) -> u64 {
    calls.iter().filter(|call| call.kind == kind).count() as u64
}

fn counts(denials: Denials) -> [u64; 3] {
    Operation::ALL.map(|operation| denials.of(operation))
}

const USERS: [User; 2] = [User::Tenant, User::Root];

#[test]
fn every_call_is_denied_in_a_container_and_works_elsewhere() {
    let stage = Stage::new();
    let root = Path::new("/sys/fs/cgroup");
    for user in USERS {
        let calls = calls_of(user);
        assert_eq!(stage.try_in(&stage.container, user, &calls), allowed(&calls), "{user:?}, no program");
    }
    let guard = stage.guard();
    assert_eq!(guard.denied().unwrap(), Denials::default());
    let mut expected = [0; 3];
    for user in USERS {
        let calls = calls_of(user);
        assert_eq!(stage.try_in(&stage.container, user, &calls), denied(&calls), "{user:?} in a container");
        assert_eq!(stage.try_in(root, user, &calls), allowed(&calls), "{user:?} outside");
        for (sum, kind) in expected.iter_mut().zip([Kind::Project, Kind::Quota, Kind::Loop]) {
            *sum += count(&calls, kind);
        }
    }
    assert_eq!(counts(guard.denied().unwrap()), expected);
    // All denied calls came from one cgroup.
    let container = CgroupId::of(File::open(&stage.container).unwrap()).unwrap();
    let mut recent = guard.recent().unwrap();
    recent.sort_by_key(|recent| recent.operation);
    let found: Vec<_> = recent.iter().map(|recent| (recent.cgroup, recent.operation, recent.count)).collect();
    let [project, quota, loops] = expected;
    assert_eq!(
        found,
        [
            (container, Operation::Project, project),
            (container, Operation::Quota, quota),
            (container, Operation::Loop, loops),
        ]
    );
    assert_eq!(guard.recent().unwrap(), []);
    assert_eq!(container.path(File::open(root).unwrap()), Ok(Some(stage.container.clone())));

    drop(guard);
    let calls = calls_of(User::Tenant);
    eventually_is(&allowed(&calls), || stage.try_in(&stage.container, User::Tenant, &calls));
}

#[test]
fn the_pods_cgroup_itself_and_later_descendants_are_restricted() {
    let stage = Stage::new();
    // The pods' cgroup is below another cgroup, as the kubelet of kind creates it.
    let pods = stage.pods.join("kubelet/kubepods");
    fs::create_dir_all(&pods).unwrap();
    let cgroup = Cgroup::of(File::open(&pods).unwrap()).unwrap();
    assert_eq!(cgroup.level(), 3);
    let guard = Guard::load(&Btf::of_kernel().unwrap(), cgroup, stage.disk_number()).unwrap();
    guard.publish(stage.device.dev()).unwrap();
    assert_eq!(guard.cgroup(), cgroup);
    let later = pods.join("pod/c/d");
    fs::create_dir_all(&later).unwrap();
    let calls = calls_of(User::Tenant);
    for restricted in [&pods, &later] {
        assert_eq!(stage.try_in(restricted, User::Tenant, &calls), denied(&calls), "{}", restricted.display());
    }
    for free in [&stage.pods, &stage.container] {
        assert_eq!(stage.try_in(free, User::Tenant, &calls), allowed(&calls), "{}", free.display());
    }
}

#[test]
fn only_published_loop_devices_are_restricted() {
    let stage = Stage::new();
    let guard = stage.guard();
    let loops: Vec<_> = calls::of_any_user().into_iter().filter(|call| call.kind == Kind::Loop).collect();
    let attempt = || stage.try_in(&stage.container, User::Root, &loops);
    assert_eq!(attempt(), denied(&loops));
    guard.withdraw(stage.device.dev()).unwrap();
    guard.withdraw(stage.device.dev()).unwrap();
    assert_eq!(attempt(), allowed(&loops));
    guard.publish(stage.device.dev()).unwrap();
    guard.publish(stage.device.dev()).unwrap();
    assert_eq!(attempt(), denied(&loops));
    let disk = stage.disk_number();
    assert!(matches!(guard.publish(disk), Err(Error::NotALoopDevice(found)) if found == disk));
    // A full map is an error. No entry is dropped.
    let published = (0..8192).map(|minor| DeviceNumber { major: 7, minor: 1000 + minor });
    let full = published.map(|device| guard.publish(device)).find_map(Result::err);
    assert!(matches!(full, Some(Error::UseMap { source: Errno::E2BIG, .. })), "{full:?}");
    assert_eq!(attempt(), denied(&loops));
}

#[test]
fn an_exempt_cgroup_is_not_restricted_until_another_one_is() {
    let stage = Stage::new();
    let pins = pins("exempt");
    let guard = stage.pinned(&pins);
    let calls = calls_of(User::Root);
    let other = stage.pods.join("pod/other");
    fs::create_dir(&other).unwrap();
    let exempt = |path: &Path| guard.exempt(CgroupId::of(File::open(path).unwrap()).unwrap()).unwrap();
    exempt(&stage.container);
    assert_eq!(stage.try_in(&stage.container, User::Root, &calls), allowed(&calls));
    assert_eq!(stage.try_in(&other, User::Root, &calls), denied(&calls));
    exempt(&other);
    assert_eq!(stage.try_in(&stage.container, User::Root, &calls), denied(&calls));
    assert_eq!(stage.try_in(&other, User::Root, &calls), allowed(&calls));

    pins.remove().unwrap();
    assert!(!pins.path().exists());
    assert_eq!(stage.try_in(&stage.container, User::Root, &calls), denied(&calls), "the guard has the links open");
    drop(guard);
    eventually_is(&allowed(&calls), || stage.try_in(&stage.container, User::Root, &calls));
    pins.remove().unwrap();
}

/// The node's own processes are not below the pods' cgroup, so that a node needs no exempt cgroup.
#[test]
fn no_cgroup_can_be_exempt_from_programs_that_are_not_pinned() {
    let stage = Stage::new();
    let guard = stage.guard();
    let container = CgroupId::of(File::open(&stage.container).unwrap()).unwrap();
    let error = guard.exempt(container).unwrap_err();
    assert!(matches!(error, Error::UseMap { source: Errno::EPERM, .. }), "{error}");
    let calls = calls_of(User::Root);
    assert_eq!(stage.try_in(&stage.container, User::Root, &calls), denied(&calls));
    // The other maps are not frozen.
    guard.withdraw(stage.device.dev()).unwrap();
    assert!(!guard.recent().unwrap().is_empty());
}

/// A frozen map rejects changes by bpf(2), but not by programs. Root in the container gets a descriptor of the map by
/// its ID.
#[test]
fn no_program_of_a_container_can_exempt_its_cgroup() {
    let stage = Stage::new();
    let _guard = stage.guard();
    let container = CgroupId::of(File::open(&stage.container).unwrap()).unwrap().get();
    let found = stage.run_in(&stage.container, User::Root, || {
        let load = |name: &[u8]| {
            let maps = (1..1000).filter_map(|id| sys::map(id).ok());
            let map = maps.filter(|map| sys::map_name(map).is_ok_and(|found| found == name)).last().expect("the map");
            sys::load_writer(&map, container).map_or_else(|errno| errno as i32, |_| 0)
        };
        // Control: `published` is not protected. Its keys are shorter, and the program writes as many bytes as they
        // have.
        [b"exempt".as_slice(), b"published"].map(load).to_vec()
    });
    assert_eq!(found, [Errno::EACCES as i32, 0]);
}

/// Root in the container gets descriptors of all links and programs by their IDs.
#[test]
fn root_in_a_container_can_neither_detach_nor_replace_a_program() {
    let stage = Stage::new();
    let _guard = stage.guard();
    let found = stage.run_in(&stage.container, User::Root, || {
        let program = (1..1000).find_map(|id| sys::program(id).ok()).expect("a program");
        let number = |result: Result<(), Errno>| result.map_or_else(|error| error as i32, |()| 0);
        let links = (1..1000).filter_map(|id| sys::link(id).ok());
        links.flat_map(|link| [sys::link_detach(&link), sys::link_update(&link, &program)].map(number)).collect()
    });
    assert!(found.len() >= 6, "three hooks: {found:?}");
    for ends in found.chunks_exact(2) {
        assert_eq!(ends, [Errno::EOPNOTSUPP as i32, Errno::EINVAL as i32]);
    }
    let calls = calls_of(User::Root);
    assert_eq!(stage.try_in(&stage.container, User::Root, &calls), denied(&calls));
}

/// Pins in the guest's bpffs.
fn pins(directory: &str) -> Pins<'_> {
    Pins { sys: Path::new("/sys"), directory }
}

#[test]
fn pinned_programs_outlive_their_process_without_a_gap() {
    let stage = Stage::new();
    let pins = pins("granary");
    let directory = pins.path();
    let load = || stage.pinned(&pins);
    let calls = calls_of(User::Tenant);
    let attempt = || stage.try_in(&stage.container, User::Tenant, &calls);
    Child::start(|| load().publish(stage.device.dev()).unwrap()).wait();
    assert_eq!(attempt(), denied(&calls), "the process has ended");

    // An earlier process ended between the pin and the rename.
    fs::rename(directory.join("file_ioctl"), directory.join("file_ioctl-new")).unwrap();
    let second = load();
    assert_eq!(attempt(), denied(&calls));
    // Both processes used the same maps.
    let twice = [Kind::Project, Kind::Quota, Kind::Loop].map(|kind| 2 * count(&calls, kind));
    assert_eq!(counts(second.denied().unwrap()), twice);
    let mut pinned: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    pinned.sort();
    let names = ["denied", "exempt", "file_ioctl", "file_ioctl_compat", "published", "quotactl", "recent"];
    assert_eq!(pinned, names);

    drop(second);
    assert_eq!(attempt(), denied(&calls));
    pins.remove().unwrap();
    eventually_is(&allowed(&calls), attempt);
}

#[test]
fn pins_need_a_bpffs_and_an_active_lsm() {
    let stage = Stage::new();
    let btf = Btf::of_kernel().unwrap();
    let sys = std::env::temp_dir().join("sys");
    for directory in ["fs/bpf", "kernel/security"] {
        fs::create_dir_all(sys.join(directory)).unwrap();
    }
    let load = || {
        let pins = Pins { sys: &sys, directory: "granary" };
        Guard::load_pinned(&btf, stage.cgroup(), stage.disk_number(), &pins).unwrap_err()
    };
    assert!(matches!(load(), Error::Securityfs { .. }));
    fs::write(sys.join("kernel/security/lsm"), "capability,yama\n").unwrap();
    assert!(matches!(load(), Error::Inactive { active } if active == "capability,yama"));
    fs::write(sys.join("kernel/security/lsm"), "capability,bpf\n").unwrap();
    assert!(matches!(load(), Error::Pin { .. }));
    let calls = calls_of(User::Tenant);
    eventually_is(&allowed(&calls), || stage.try_in(&stage.container, User::Tenant, &calls));
}

#[test]
fn pins_of_another_release_are_replaced() {
    let stage = Stage::new();
    let pins = pins("other");
    let directory = pins.path();
    drop(stage.pinned(&pins));
    // A map with keys of another length, and a link of a hook that this release does not use.
    fs::remove_file(directory.join("denied")).unwrap();
    fs::rename(directory.join("recent"), directory.join("denied")).unwrap();
    fs::rename(directory.join("quotactl"), directory.join("former")).unwrap();
    let guard = stage.pinned(&pins);
    let calls = calls_of(User::Root);
    let once = [Kind::Project, Kind::Quota, Kind::Loop].map(|kind| count(&calls, kind));
    // The former programs count in another map until the kernel has detached them.
    eventually_is(&once, || {
        let before = counts(guard.denied().unwrap());
        assert_eq!(stage.try_in(&stage.container, User::Root, &calls), denied(&calls));
        let after = counts(guard.denied().unwrap());
        std::array::from_fn(|kind| after[kind] - before[kind])
    });
    assert!(!directory.join("former").exists());
    assert!(["denied", "recent", "quotactl"].iter().all(|name| directory.join(name).exists()));
    pins.remove().unwrap();
}

/// The node runs the same probe at its start.
#[test]
fn a_probe_finds_each_call_that_is_not_denied() {
    let stage = Stage::new();
    let scratch = stage.pods.join("self-test");
    fs::create_dir(&scratch).unwrap();
    let breaches = |abi| {
        let numbers = stage.run_in(&scratch, User::Root, || {
            let (directory, control, device) = (stage.directory(), stage.loop_control(), stage.loop_device());
            let probe = Probe { directory: directory.as_fd(), control: control.as_fd(), device: Some(device.as_fd()) };
            let found = probe.run(abi).unwrap();
            found.iter().map(|breach| breach.result.map_or_else(|error| error as i32, |()| 0)).collect()
        });
        numbers
            .into_iter()
            .map(|number| if number == 0 { None } else { Some(Errno::from_raw(number)) })
            .collect::<Vec<_>>()
    };
    let project = || fsquota::project(stage.directory()).unwrap().map(fsquota::ProjectId::get);
    let (invalid, argument) = (Some(Errno::EFAULT), Some(Errno::EINVAL));
    let devices = [argument, Some(Errno::EBADF), invalid, invalid];
    let native = [&[None; 4][..], &[invalid; 5], &devices].concat();
    let compat = [&[None; 2][..], &devices].concat();
    assert_eq!((breaches(Abi::Native), breaches(Abi::Compat)), (native, compat), "no program");
    assert_eq!(project(), Some(Stage::PROJECT), "the changes are reverted");
    let _guard = stage.guard();
    assert_eq!((breaches(Abi::Native), breaches(Abi::Compat)), (vec![], vec![]));
    assert_eq!(project(), Some(Stage::PROJECT));
}

#[test]
fn a_cgroup_that_is_created_again_has_another_id() {
    let stage = Stage::new();
    let path = stage.pods.join("again");
    let id = || {
        fs::create_dir(&path).unwrap();
        let directory = File::open(&path).unwrap();
        let id = CgroupId::of(&directory).unwrap();
        assert_eq!(id.get(), fs::metadata(&path).map(|found| std::os::unix::fs::MetadataExt::ino(&found)).unwrap());
        fs::remove_dir(&path).unwrap();
        id
    };
    let (first, second) = (id(), id());
    assert_ne!(first, second);
    assert_eq!(first.path(File::open(&stage.pods).unwrap()), Ok(None), "it was removed");
    let of = |path: &str| Cgroup::of(File::open(path).unwrap()).unwrap_err();
    assert_eq!(of("/sys/fs/cgroup"), CgroupError::Root);
    assert_eq!(of("/sys/fs"), CgroupError::NotCgroup2);
    assert_eq!(stage.cgroup().level(), 1);
}
