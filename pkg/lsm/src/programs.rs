//! The programs, as BPF instructions that decide which calls to deny.
//!
//! A program gets its hook's arguments as an array of 8 bytes each (R1). Its result is 0, or the negative error that
//! the call fails with. Calls of helpers change R0 to R5.

use loopdev::DeviceNumber;

use crate::assembler::Register::{R0, R1, R2, R3, R4, R6, R7, R8, R10};
use crate::assembler::{AssembleError, Assembler, Helper, Instruction, Label, When, WhenRegisters, Width};
use crate::cgroup::Cgroup;
use crate::denials::Operation;
use crate::layout::{Attributes, Layout};

/// `FS_IOC_FSSETXATTR`: `struct fsxattr` is the same for 32-bit programs.
pub(crate) const FSSETXATTR: u32 = 0x401c_5820;
/// `FS_IOC_SETFLAGS` of 64-bit programs.
pub(crate) const SETFLAGS: u32 = 0x4008_6602;
/// `FS_IOC32_SETFLAGS`.
pub(crate) const SETFLAGS32: u32 = 0x4004_6602;

/// The commands of loop devices and of `/dev/loop-control`, include/uapi/linux/loop.h.
const LOOP_FIRST: u32 = 0x4c00;
const LOOP_LAST: u32 = 0x4c82;
const LOOP_GET_STATUS: u32 = 0x4c03;
const LOOP_GET_STATUS64: u32 = 0x4c05;

/// The `quotactl` commands that change nothing: `Q_SYNC`, `Q_GETFMT`, `Q_GETINFO`, `Q_GETQUOTA`, `Q_GETNEXTQUOTA`
/// (include/uapi/linux/quota.h), `Q_XGETQUOTA`, `Q_XGETQSTAT`, `Q_XQUOTASYNC`, `Q_XGETQSTATV`, `Q_XGETNEXTQUOTA`
/// (include/uapi/linux/dqblk_xfs.h).
const QUOTA_QUERIES: [u32; 10] =
    [0x80_0001, 0x80_0004, 0x80_0005, 0x80_0007, 0x80_0009, 0x5803, 0x5805, 0x5807, 0x5808, 0x5809];

/// `S_IFMT` and its values.
const TYPE_MASK: i32 = 0xf000;
const DIRECTORY: u32 = 0x4000;
const CHARACTER_DEVICE: u32 = 0x2000;
const BLOCK_DEVICE: u32 = 0x6000;

/// `/dev/loop-control`: `MISC_MAJOR`, `LOOP_CTRL_MINOR`.
const LOOP_CONTROL: DeviceNumber = DeviceNumber { major: 10, minor: 237 };

/// `FS_XFLAG_PROJINHERIT` and `XFS_DIFLAG_PROJINHERIT`.
const PROJINHERIT: i32 = 0x200;

/// -`EPERM`.
const DENIED: i32 = -1;

/// The descriptors of the maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Maps {
    pub(crate) denied: i32,
    pub(crate) exempt: i32,
    pub(crate) published: i32,
    pub(crate) recent: i32,
}

/// Tasks and objects that the programs restrict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scope {
    pub(crate) pods: Cgroup,
    pub(crate) disk: DeviceNumber,
    pub(crate) maps: Maps,
}

/// Device number in the kernel's format: `MKDEV`, include/linux/kdev_t.h.
pub(crate) const fn kernel_number(device: DeviceNumber) -> u32 {
    device.major << 20 | device.minor
}

/// Program for `file_ioctl` and `file_ioctl_compat`, with the arguments file, command and argument. Like the kernel,
/// the program uses only the lower half of the command.
pub(crate) fn ioctl(layout: &Layout, scope: &Scope) -> Result<Vec<Instruction>, AssembleError> {
    let mut program = Assembler::default();
    let [loops, above, project, flags, end] = std::array::from_fn(|_| program.label());
    let [on_disk, pods, allow] = std::array::from_fn(|_| program.label());
    let judges_attributes = layout.attributes.is_none();

    // All ioctls execute these instructions. Most commands are below, between or above the denied ones, in this order.
    program.load(Width::Double, R2, R1, 8);
    program.set(R0, 0);
    if judges_attributes {
        program.jump_if(When::Above32, R2, FSSETXATTR, end);
        program.jump_if(When::Above32, R2, LOOP_LAST, above);
    } else {
        program.jump_if(When::Above32, R2, LOOP_LAST, end);
    }
    program.jump_if(When::AtLeast32, R2, LOOP_FIRST, loops);
    program.place(end);
    program.exit();

    if judges_attributes {
        program.place(above);
        program.jump_if(When::Equal32, R2, FSSETXATTR, project);
        program.jump_if(When::Equal32, R2, SETFLAGS, flags);
        program.jump_if(When::Equal32, R2, SETFLAGS32, flags);
        program.exit();

        program.place(flags);
        inode_of_file(&mut program, layout, allow);
        program.load(Width::Half, R3, R1, layout.i_mode);
        program.and32(R3, TYPE_MASK);
        program.jump_if(When::Differs32, R3, DIRECTORY, allow);
        program.jump(on_disk);

        program.place(project);
        inode_of_file(&mut program, layout, allow);
        program.place(on_disk);
        program.load(Width::Double, R1, R1, layout.i_sb);
        program.load(Width::Word, R1, R1, layout.s_dev);
        program.jump_if(When::Differs32, R1, kernel_number(scope.disk), allow);
        program.set(R7, operation(Operation::Project));
        program.jump(pods);
    }

    program.place(loops);
    let block = program.label();
    program.jump_if(When::Equal32, R2, LOOP_GET_STATUS64, allow);
    program.jump_if(When::Equal32, R2, LOOP_GET_STATUS, allow);
    inode_of_file(&mut program, layout, allow);
    program.load(Width::Half, R3, R1, layout.i_mode);
    program.and32(R3, TYPE_MASK);
    program.load(Width::Word, R4, R1, layout.i_rdev);
    program.set(R7, operation(Operation::Loop));
    program.jump_if(When::Equal32, R3, BLOCK_DEVICE, block);
    program.jump_if(When::Differs32, R3, CHARACTER_DEVICE, allow);
    program.jump_if(When::Differs32, R4, kernel_number(LOOP_CONTROL), allow);
    program.jump(pods);
    program.place(block);
    program.store_word(R10, -8, R4);
    lookup(&mut program, scope.maps.published, -8);
    program.jump_if(When::Equal, R0, 0, allow);

    program.place(pods);
    deny_pods(&mut program, scope, allow);
    program.finish()
}

/// Program for `quotactl`, with the arguments command, type, ID and super block. The program never reads the super
/// block: the pointer is NULL for `quotactl(Q_SYNC, NULL)`, which needs no privilege, and the verifier would not reject
/// a read through it.
pub(crate) fn quotactl(scope: &Scope) -> Result<Vec<Instruction>, AssembleError> {
    let mut program = Assembler::default();
    let allow = program.label();
    program.load(Width::Double, R2, R1, 0);
    for command in QUOTA_QUERIES {
        program.jump_if(When::Equal32, R2, command, allow);
    }
    program.set(R7, operation(Operation::Quota));
    deny_pods(&mut program, scope, allow);
    program.finish()
}

/// Program for `inode_file_setattr`, with the arguments dentry and new attributes. The kernel has completed the
/// attributes from the old ones and holds the inode's lock. The kernel calls the hook for every way to change
/// attributes, on overlayfs for the upper inode too.
pub(crate) fn setattr(
    layout: &Layout,
    attributes: &Attributes,
    scope: &Scope,
) -> Result<Vec<Instruction>, AssembleError> {
    let mut program = Assembler::default();
    let [pods, allow] = std::array::from_fn(|_| program.label());
    program.load(Width::Double, R6, R1, 0);
    program.load(Width::Double, R8, R1, 8);
    program.load(Width::Double, R6, R6, attributes.d_inode);
    program.jump_if(When::Equal, R6, 0, allow);
    program.load(Width::Double, R2, R6, layout.i_sb);
    program.load(Width::Word, R2, R2, layout.s_dev);
    program.jump_if(When::Differs32, R2, kernel_number(scope.disk), allow);
    program.set(R7, operation(Operation::Project));

    // The inode is part of a struct xfs_inode. If that cannot be read, the call is denied.
    probe_read(&mut program, attributes.to_projid, 4, pods);
    program.load(Width::Word, R1, R10, -8);
    program.load(Width::Word, R2, R8, attributes.fsx_projid);
    program.jump_if_registers(WhenRegisters::Differ32, R1, R2, pods);
    probe_read(&mut program, attributes.to_diflags, 2, pods);
    program.load(Width::Half, R1, R10, -8);
    program.load(Width::Word, R2, R8, attributes.fsx_xflags);
    program.xor32(R1, R2);
    program.and32(R1, PROJINHERIT);
    program.jump_if(When::Equal32, R1, 0, allow);

    program.place(pods);
    deny_pods(&mut program, scope, allow);
    program.finish()
}

/// Replaces the context in R1 with the inode of its file.
fn inode_of_file(program: &mut Assembler, layout: &Layout, allow: Label) {
    program.load(Width::Double, R1, R1, 0);
    program.load(Width::Double, R1, R1, layout.f_inode);
    program.jump_if(When::Equal, R1, 0, allow);
}

/// Copies `length` bytes at a distance from the inode in R6 to the stack at -8. Jumps to `failed` on errors.
fn probe_read(program: &mut Assembler, distance: i32, length: i32, failed: Label) {
    program.copy(R1, R10);
    program.add(R1, -8);
    program.set(R2, length);
    program.copy(R3, R6);
    program.add(R3, distance);
    program.call(Helper::ProbeReadKernel);
    program.jump_if(When::Differs32, R0, 0, failed);
}

/// Sets R0 to the address of the value in a map, or to 0. The key is at the offset `key` of the stack.
fn lookup(program: &mut Assembler, map: i32, key: i16) {
    program.set_map(R1, map);
    program.copy(R2, R10);
    program.add(R2, i32::from(key));
    program.call(Helper::MapLookup);
}

/// End of each program: denies and counts a call of the operation in R7 if the task is below the pods' cgroup and its
/// own cgroup is not exempt.
fn deny_pods(program: &mut Assembler, scope: &Scope, allow: Label) {
    let [recent, first, deny] = std::array::from_fn(|_| program.label());
    program.set(R1, scope.pods.level().cast_signed());
    program.call(Helper::CurrentAncestorCgroupId);
    program.set64(R1, scope.pods.id().get());
    program.jump_if_registers(WhenRegisters::Differ, R0, R1, allow);

    // The first half of the key of `recent` is the key of `exempt`, and the second half starts with the key of
    // `denied`.
    program.call(Helper::CurrentCgroupId);
    program.store(R10, -16, R0);
    program.store(R10, -8, R7);
    lookup(program, scope.maps.exempt, -16);
    program.jump_if(When::Differs, R0, 0, allow);

    lookup(program, scope.maps.denied, -8);
    program.jump_if(When::Equal, R0, 0, recent);
    program.set(R1, 1);
    program.add_atomically(R0, R1);
    program.place(recent);
    lookup(program, scope.maps.recent, -16);
    program.jump_if(When::Equal, R0, 0, first);
    program.set(R1, 1);
    program.add_atomically(R0, R1);
    program.jump(deny);
    program.place(first);
    program.set(R1, 1);
    program.store(R10, -24, R1);
    program.set_map(R1, scope.maps.recent);
    program.copy(R2, R10);
    program.add(R2, -16);
    program.copy(R3, R10);
    program.add(R3, -24);
    program.set(R4, 0);
    program.call(Helper::MapUpdate);

    program.place(deny);
    program.set(R0, DENIED);
    program.exit();
    program.place(allow);
    program.set(R0, 0);
    program.exit();
}

fn operation(operation: Operation) -> i32 {
    operation.number().cast_signed()
}

#[cfg(test)]
mod tests;
