//! Tests of the calls that the programs deny, run by the interpreter of [`crate::interpreter`].

use proptest::prelude::*;

use super::*;
use crate::btf::Btf;
use crate::interpreter::{Machine, Run};
use crate::sample::{Sample, kernel_6_12, kernel_6_17};

const DISK: DeviceNumber = DeviceNumber { major: 254, minor: 3 };
const OTHER_DISK: DeviceNumber = DeviceNumber { major: 254, minor: 4 };
const LOOP: DeviceNumber = DeviceNumber { major: 7, minor: 12 };
const OTHER_LOOP: DeviceNumber = DeviceNumber { major: 7, minor: 13 };
const NO_DEVICE: DeviceNumber = DeviceNumber { major: 0, minor: 0 };

const MAPS: Maps = Maps { denied: 3, exempt: 4, published: 5, recent: 6 };

const PODS: u64 = 0x1_0000_0042;
const CONTAINER: u64 = 99;

/// Modes, include/uapi/linux/stat.h.
const DIRECTORY_MODE: u16 = 0o040_755;
const FILE_MODE: u16 = 0o100_644;
const BLOCK_MODE: u16 = 0o060_660;
const CHARACTER_MODE: u16 = 0o020_660;

const FILE: u64 = 0x10_0000;
const INODE: u64 = 0x20_0000;
const SUPER_BLOCK: u64 = 0x30_0000;
const DENTRY: u64 = 0x40_0000;
const ATTRIBUTES: u64 = 0x50_0000;
/// Offset of `i_vnode` in `struct xfs_inode` of the sample.
const VNODE: u64 = 200;

const EPERM: i64 = -1;

fn layout(sample: &Sample) -> Layout {
    Layout::of(&Btf::parse(sample.bytes()).unwrap()).unwrap()
}

fn scope() -> Scope {
    Scope { pods: Cgroup::new(PODS, 1), disk: DISK, maps: MAPS }
}

/// A machine with a task in a container.
fn machine() -> Machine {
    machine_in(&[1, PODS, 77, CONTAINER])
}

fn machine_in(cgroups: &[u64]) -> Machine {
    let mut machine = Machine::new(cgroups);
    for (map, key_bytes) in [(MAPS.denied, 4), (MAPS.exempt, 8), (MAPS.published, 4), (MAPS.recent, 16)] {
        machine.map(map, key_bytes);
    }
    for operation in Operation::ALL {
        machine.set(MAPS.denied, &operation.number().to_le_bytes(), 0);
    }
    machine.set(MAPS.published, &kernel_number(LOOP).to_le_bytes(), 0);
    machine
}

fn put(bytes: &mut [u8], at: u64, value: &[u8]) {
    bytes[at as usize..][..value.len()].copy_from_slice(value);
}

/// An inode at its offsets in the samples, inside a `struct xfs_inode` with a project and flags.
fn inode(machine: &mut Machine, mode: u16, device: DeviceNumber, disk: DeviceNumber) {
    let mut bytes = vec![0; 400];
    put(&mut bytes, VNODE, &mode.to_le_bytes());
    put(&mut bytes, VNODE + 40, &SUPER_BLOCK.to_le_bytes());
    put(&mut bytes, VNODE + 76, &kernel_number(device).to_le_bytes());
    put(&mut bytes, 100, &42_u32.to_le_bytes());
    put(&mut bytes, 120, &(PROJINHERIT as u16).to_le_bytes());
    machine.object(INODE - VNODE, bytes);
    let mut bytes = vec![0; 32];
    put(&mut bytes, 16, &kernel_number(disk).to_le_bytes());
    machine.object(SUPER_BLOCK, bytes);
}

fn ioctl_in(machine: &mut Machine, command: u64) -> Run {
    let mut bytes = vec![0; 64];
    put(&mut bytes, 32, &INODE.to_le_bytes());
    machine.object(FILE, bytes);
    machine.run(&ioctl(&layout(&kernel_6_12()), &scope()).unwrap(), &[FILE, command, 0])
}

fn ioctl_of(mode: u16, device: DeviceNumber, disk: DeviceNumber, command: u64) -> i64 {
    let mut machine = machine();
    inode(&mut machine, mode, device, disk);
    ioctl_in(&mut machine, command).result
}

#[test]
fn a_project_cannot_be_changed_on_the_disk_in_any_encoding() {
    for command in [FSSETXATTR, SETFLAGS, SETFLAGS32].map(u64::from) {
        for upper in [0, 0xdead_beef_0000_0000, u64::MAX << 32] {
            let command = command | upper;
            assert_eq!(ioctl_of(DIRECTORY_MODE, NO_DEVICE, DISK, command), EPERM, "{command:#x}");
            assert_eq!(ioctl_of(DIRECTORY_MODE, NO_DEVICE, OTHER_DISK, command), 0, "{command:#x}");
        }
    }
}

#[test]
fn flags_can_be_changed_on_files_and_projects_cannot() {
    for mode in [FILE_MODE, CHARACTER_MODE, BLOCK_MODE] {
        assert_eq!(ioctl_of(mode, NO_DEVICE, DISK, SETFLAGS.into()), 0);
        assert_eq!(ioctl_of(mode, NO_DEVICE, DISK, SETFLAGS32.into()), 0);
        assert_eq!(ioctl_of(mode, NO_DEVICE, DISK, FSSETXATTR.into()), EPERM);
    }
}

#[test]
fn a_published_loop_device_answers_only_queries_of_its_status() {
    for command in 0x4b00_u64..=0x4d00 {
        let allowed = !(0x4c00..=0x4c82).contains(&command) || [0x4c03, 0x4c05].contains(&command);
        let expected = if allowed { 0 } else { EPERM };
        for command in [command, command | 0xdead_beef << 32] {
            assert_eq!(ioctl_of(BLOCK_MODE, LOOP, OTHER_DISK, command), expected, "{command:#x}");
            assert_eq!(ioctl_of(BLOCK_MODE, OTHER_LOOP, OTHER_DISK, command), 0, "{command:#x}");
            // The character device vcs12 has the same numbers as the loop device.
            assert_eq!(ioctl_of(CHARACTER_MODE, LOOP, OTHER_DISK, command), 0, "{command:#x}");
            assert_eq!(ioctl_of(FILE_MODE, NO_DEVICE, DISK, command), 0, "{command:#x}");
        }
    }
}

#[test]
fn loop_devices_can_be_neither_added_nor_removed() {
    for command in [0x4c80, 0x4c81, 0x4c82] {
        assert_eq!(ioctl_of(CHARACTER_MODE, LOOP_CONTROL, OTHER_DISK, command), EPERM, "{command:#x}");
        assert_eq!(ioctl_of(BLOCK_MODE, LOOP_CONTROL, OTHER_DISK, command), 0, "{command:#x}");
    }
}

#[test]
fn only_tasks_below_the_pods_are_restricted() {
    let result = |cgroups: &[u64]| {
        let mut machine = machine_in(cgroups);
        inode(&mut machine, DIRECTORY_MODE, NO_DEVICE, DISK);
        ioctl_in(&mut machine, FSSETXATTR.into()).result
    };
    assert_eq!(result(&[1, PODS]), EPERM);
    assert_eq!(result(&[1, PODS, 5, 6, 7]), EPERM);
    assert_eq!(result(&[1]), 0);
    assert_eq!(result(&[1, 8]), 0);
    // The programs compare all 64 bits of an ID, and the level.
    assert_eq!(result(&[1, PODS & 0xffff_ffff]), 0);
    assert_eq!(result(&[1, 8, PODS]), 0);
}

#[test]
fn an_exempt_cgroup_is_not_restricted() {
    let mut machine = machine();
    inode(&mut machine, DIRECTORY_MODE, NO_DEVICE, DISK);
    machine.set(MAPS.exempt, &CONTAINER.to_le_bytes(), 0);
    assert_eq!(ioctl_in(&mut machine, FSSETXATTR.into()).result, 0);
    assert_eq!(machine.get(MAPS.denied, &0_u32.to_le_bytes()), Some(0));
    machine.cgroups.push(100);
    assert_eq!(ioctl_in(&mut machine, FSSETXATTR.into()).result, EPERM);
}

#[test]
fn denials_are_counted_by_operation_and_cgroup() {
    let mut machine = machine();
    let recent = |cgroup: u64, operation: u64| [cgroup.to_le_bytes(), operation.to_le_bytes()].concat();
    inode(&mut machine, BLOCK_MODE, LOOP, DISK);
    for _ in 0..3 {
        assert_eq!(ioctl_in(&mut machine, 0x4c01).result, EPERM);
    }
    assert_eq!(ioctl_in(&mut machine, 0x4c05).result, 0);
    machine.cgroups.push(100);
    assert_eq!(ioctl_in(&mut machine, FSSETXATTR.into()).result, EPERM);
    let quota = quotactl(&scope()).unwrap();
    assert_eq!(machine.run(&quota, &[0x5804, 2, 7, SUPER_BLOCK]).result, EPERM);
    let denied = Operation::ALL.map(|operation| machine.get(MAPS.denied, &operation.number().to_le_bytes()));
    assert_eq!(denied, [Some(1), Some(1), Some(3)]);
    assert_eq!(machine.get(MAPS.recent, &recent(CONTAINER, 2)), Some(3));
    assert_eq!(machine.get(MAPS.recent, &recent(100, 0)), Some(1));
    assert_eq!(machine.get(MAPS.recent, &recent(100, 1)), Some(1));
    assert_eq!(machine.get(MAPS.recent, &recent(100, 2)), None);
}

/// All commands of `include/uapi/linux/quota.h` and `dqblk_xfs.h`.
#[test]
fn quotas_can_be_read_and_synced_and_not_changed() {
    let program = quotactl(&scope()).unwrap();
    for command in [0x80_0001, 0x80_0004, 0x80_0005, 0x80_0007, 0x80_0009, 0x5803, 0x5805, 0x5807, 0x5808, 0x5809] {
        assert_eq!(machine().run(&program, &[command, 2, 7, SUPER_BLOCK]).result, 0, "{command:#x}");
    }
    for command in [0x80_0002, 0x80_0003, 0x80_0006, 0x80_0008, 0x5801, 0x5802, 0x5804, 0x5806] {
        for command in [command, command | 0xdead_beef << 32] {
            assert_eq!(machine().run(&program, &[command, 2, 7, SUPER_BLOCK]).result, EPERM, "{command:#x}");
            let mut outside = machine_in(&[1, 8]);
            assert_eq!(outside.run(&program, &[command, 2, 7, SUPER_BLOCK]).result, 0, "{command:#x}");
        }
    }
}

/// Runs the program of Linux 6.17 with new attributes for an inode with project 42 and the inherit flag.
fn setattr_of(disk: DeviceNumber, flags: u32, project: u32) -> Run {
    let mut machine = machine();
    inode(&mut machine, DIRECTORY_MODE, NO_DEVICE, disk);
    let mut bytes = vec![0; 64];
    put(&mut bytes, 48, &INODE.to_le_bytes());
    machine.object(DENTRY, bytes);
    let mut bytes = vec![0; 32];
    put(&mut bytes, 4, &flags.to_le_bytes());
    put(&mut bytes, 16, &project.to_le_bytes());
    machine.object(ATTRIBUTES, bytes);
    let layout = layout(&kernel_6_17());
    machine.run(&setattr(&layout, &layout.attributes.unwrap(), &scope()).unwrap(), &[DENTRY, ATTRIBUTES])
}

#[test]
fn new_kernels_deny_only_changes_of_project_or_inherit_flag() {
    let inherit = PROJINHERIT.cast_unsigned();
    for other in [0, 0x8, 0x8000_0000, 0x8000_0008] {
        assert_eq!(setattr_of(DISK, inherit | other, 42).result, 0);
        assert_eq!(setattr_of(DISK, other, 42).result, EPERM);
        for project in [0, 1, 43, 42 | 1 << 31] {
            assert_eq!(setattr_of(DISK, inherit | other, project).result, EPERM);
        }
        assert_eq!(setattr_of(OTHER_DISK, other, 0).result, 0);
    }
}

#[test]
fn an_inode_that_cannot_be_read_cannot_be_changed() {
    let mut layout = layout(&kernel_6_17());
    let mut attributes = layout.attributes.unwrap();
    attributes.to_projid = -0x1_0000;
    layout.attributes = Some(attributes);
    let mut machine = machine();
    inode(&mut machine, DIRECTORY_MODE, NO_DEVICE, DISK);
    let mut bytes = vec![0; 64];
    put(&mut bytes, 48, &INODE.to_le_bytes());
    machine.object(DENTRY, bytes);
    machine.object(ATTRIBUTES, vec![0; 32]);
    let program = setattr(&layout, &attributes, &scope()).unwrap();
    assert_eq!(machine.run(&program, &[DENTRY, ATTRIBUTES]).result, EPERM);
}

#[test]
fn new_kernels_judge_attributes_in_one_place() {
    let program = ioctl(&layout(&kernel_6_17()), &scope()).unwrap();
    for command in [FSSETXATTR, SETFLAGS, SETFLAGS32] {
        let run = machine().run(&program, &[FILE, command.into(), 0]);
        assert_eq!((run.result, run.elsewhere), (0, vec![]));
    }
}

/// Whether some inode exists for which the command is denied.
fn may_be_denied(command: u64) -> bool {
    match command as u32 {
        FSSETXATTR | SETFLAGS | SETFLAGS32 => true,
        LOOP_GET_STATUS | LOOP_GET_STATUS64 => false,
        command => (LOOP_FIRST..=LOOP_LAST).contains(&command),
    }
}

/// Runs the program without a file, so that a program that reads more than the context fails.
fn assert_short(command: u64) {
    for sample in [kernel_6_12(), kernel_6_17()] {
        let program = ioctl(&layout(&sample), &scope()).unwrap();
        let run = machine().run(&program, &[0, command, 0]);
        assert!(run.count <= 12, "{command:#x}: {} instructions", run.count);
        assert_eq!((run.result, run.context, run.elsewhere), (0, vec![8], vec![]), "{command:#x}");
    }
}

#[test]
fn other_ioctls_execute_12_instructions_and_read_the_context() {
    let edges =
        [0, LOOP_FIRST, LOOP_LAST, LOOP_GET_STATUS, LOOP_GET_STATUS64, FSSETXATTR, SETFLAGS, SETFLAGS32, u32::MAX];
    let near = edges.iter().flat_map(|edge| (-2..=2).map(|distance| edge.wrapping_add_signed(distance)));
    // FIONREAD, TCGETS, SIOCGIFADDR, FS_IOC_GETFLAGS, FS_IOC_FSGETXATTR.
    let frequent = [0x541b, 0x5401, 0x8915, 0x8008_6601, 0x801c_581f];
    let commands = near.chain(frequent).map(u64::from).filter(|command| !may_be_denied(*command));
    commands.for_each(assert_short);
}

proptest! {
    #[test]
    fn any_other_ioctl_is_short(command in any::<u64>().prop_filter("a denied one", |command| !may_be_denied(*command))) {
        assert_short(command);
    }

    /// The super block is NULL for `quotactl(Q_SYNC, NULL)`: the program reads the command and nothing else.
    #[test]
    fn quotactl_reads_only_the_command(command: u32, upper: u32) {
        let command = u64::from(upper) << 32 | u64::from(command);
        let run = machine().run(&quotactl(&scope()).unwrap(), &[command]);
        prop_assert_eq!(run.context, [0]);
        // The program reads no value of a map.
        prop_assert!(run.elsewhere.is_empty());
        prop_assert_eq!(run.result == 0, QUOTA_QUERIES.contains(&(command as u32)));
    }
}
