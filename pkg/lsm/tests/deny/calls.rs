//! The calls of an attacker, and the result of each without the programs.

use std::fs::File;

use nix::errno::Errno;

use crate::stage::Stage;
use crate::sys::{self, Argument, ioctl, ioctl32, quotactl, quotactl_fd};

/// Upper half of a command, which the kernel does not read.
const UPPER: u64 = 0xdead_beef_0000_0000;

const FSGETXATTR: u64 = 0x801c_581f;
const FSSETXATTR: u32 = 0x401c_5820;
const GETFLAGS: u64 = 0x8008_6601;
const SETFLAGS: u64 = 0x4008_6602;
const SETFLAGS32: u32 = 0x4004_6602;
/// `FS_PROJINHERIT_FL`, `FS_NODUMP_FL`.
const PROJINHERIT: u32 = 0x2000_0000;
const NODUMP: u32 = 0x40;

pub const LOOP_CLR_FD: u32 = 0x4c01;
const LOOP_SET_STATUS64: u32 = 0x4c04;
const LOOP_GET_STATUS64: u32 = 0x4c05;
const LOOP_CHANGE_FD: u32 = 0x4c06;
const LOOP_SET_CAPACITY: u32 = 0x4c07;
const LOOP_SET_DIRECT_IO: u32 = 0x4c08;
const LOOP_SET_BLOCK_SIZE: u32 = 0x4c09;
const LOOP_CONFIGURE: u32 = 0x4c0a;
const LOOP_CTL_ADD: u32 = 0x4c80;
const LOOP_CTL_REMOVE: u32 = 0x4c81;
const LOOP_CTL_GET_FREE: u32 = 0x4c82;

const NULL: Argument = Argument::Number(0);
const INVALID: Argument = Argument::Number(-1);

/// A number that no loop device of the tests has.
const ABSENT: Argument = Argument::Number(300);

/// Operation that a denial is counted as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Project,
    Quota,
    Loop,
    /// Calls that are never denied.
    Harmless,
}

/// A call of an attacker. If the call is allowed, it reverts its change.
pub struct Call {
    pub name: &'static str,
    pub kind: Kind,
    /// Result without the programs.
    pub allowed: Result<(), Errno>,
    pub run: fn(&Stage) -> Result<(), Errno>,
}

const fn call(name: &'static str, kind: Kind, run: fn(&Stage) -> Result<(), Errno>) -> Call {
    Call { name, kind, allowed: Ok(()), run }
}

const fn failing(name: &'static str, kind: Kind, errno: Errno, run: fn(&Stage) -> Result<(), Errno>) -> Call {
    Call { name, kind, allowed: Err(errno), run }
}

/// Calls that any user can attempt.
pub fn of_any_user() -> Vec<Call> {
    let mut calls = vec![
        call("FS_IOC_FSSETXATTR of a directory", Kind::Project, |stage| set_project(&stage.directory(), native)),
        call("FS_IOC_FSSETXATTR of a file", Kind::Project, |stage| set_project(&stage.file(), native)),
        call("FS_IOC_FSSETXATTR with upper bits", Kind::Project, |stage| {
            set_project(&stage.directory(), with_upper_bits)
        }),
        call("FS_IOC_FSSETXATTR of a 32-bit program", Kind::Project, |stage| set_project(&stage.directory(), ioctl32)),
        call("FS_IOC_FSSETXATTR through overlayfs", Kind::Project, |stage| set_project(&stage.overlay_file(), native)),
        call("FS_IOC_SETFLAGS of a directory", Kind::Project, |stage| {
            set_flag(&stage.directory(), PROJINHERIT, native_flags)
        }),
        call("FS_IOC_SETFLAGS with upper bits", Kind::Project, |stage| {
            set_flag(&stage.directory(), PROJINHERIT, |file| ioctl(file, SETFLAGS | UPPER, Argument::Memory))
        }),
        call("FS_IOC_SETFLAGS of a 32-bit program", Kind::Project, |stage| {
            set_flag(&stage.directory(), PROJINHERIT, |file| ioctl32(file, SETFLAGS32, Argument::Memory))
        }),
        call("FS_IOC_SETFLAGS through overlayfs", Kind::Project, |stage| {
            set_flag(&stage.overlay_directory(), NODUMP, native_flags)
        }),
        call("FS_IOC_SETFLAGS of a file", Kind::Harmless, |stage| set_flag(&stage.file(), NODUMP, native_flags)),
        call("FS_IOC_FSGETXATTR", Kind::Harmless, |stage| ioctl(&stage.directory(), FSGETXATTR, Argument::Memory)),
        call("FS_IOC_SETFLAGS of a directory elsewhere", Kind::Harmless, |stage| {
            set_flag(&stage.elsewhere(), NODUMP, native_flags)
        }),
        call("Q_SYNC without a device", Kind::Harmless, |_| quotactl(command(0x80_0001), None, 0, NULL)),
        call("LOOP_GET_STATUS64", Kind::Harmless, |stage| {
            ioctl(&stage.loop_device(), LOOP_GET_STATUS64.into(), Argument::Memory)
        }),
        call("LOOP_SET_STATUS64", Kind::Loop, |stage| set_status(&stage.loop_device(), native)),
        call("LOOP_SET_STATUS64 of a 32-bit program", Kind::Loop, |stage| set_status(&stage.loop_device(), ioctl32)),
        call("LOOP_SET_CAPACITY", Kind::Loop, |stage| native(&stage.loop_device(), LOOP_SET_CAPACITY, NULL)),
        call("LOOP_SET_DIRECT_IO", Kind::Loop, |stage| native(&stage.loop_device(), LOOP_SET_DIRECT_IO, NULL)),
        call("LOOP_SET_BLOCK_SIZE", Kind::Loop, |stage| {
            native(&stage.loop_device(), LOOP_SET_BLOCK_SIZE, Argument::Number(512))
        }),
        failing("LOOP_CHANGE_FD", Kind::Loop, Errno::EBADF, |stage| {
            native(&stage.loop_device(), LOOP_CHANGE_FD, INVALID)
        }),
        failing("LOOP_CONFIGURE", Kind::Loop, Errno::EFAULT, |stage| {
            native(&stage.loop_device(), LOOP_CONFIGURE, NULL)
        }),
    ];
    // Each LOOP_CLR_FD marks the device, which the test holds open, to be detached with its last descriptor.
    calls.extend([
        call("LOOP_CLR_FD", Kind::Loop, |stage| clear(&stage.loop_device(), native)),
        call("LOOP_CLR_FD with upper bits", Kind::Loop, |stage| clear(&stage.loop_device(), with_upper_bits)),
        call("LOOP_CLR_FD of a 32-bit program", Kind::Loop, |stage| clear(&stage.loop_device(), ioctl32)),
    ]);
    calls
}

/// Calls that only root can attempt.
pub fn of_root() -> Vec<Call> {
    let mut calls = vec![
        call("LOOP_CTL_GET_FREE", Kind::Loop, |stage| native(&stage.loop_control(), LOOP_CTL_GET_FREE, NULL)),
        call("LOOP_CTL_ADD", Kind::Loop, |stage| add(&stage.loop_control(), native)),
        call("LOOP_CTL_ADD with upper bits", Kind::Loop, |stage| add(&stage.loop_control(), with_upper_bits)),
        call("LOOP_CTL_ADD of a 32-bit program", Kind::Loop, |stage| add(&stage.loop_control(), ioctl32)),
        failing("LOOP_CTL_REMOVE", Kind::Loop, Errno::ENODEV, |stage| {
            native(&stage.loop_control(), LOOP_CTL_REMOVE, ABSENT)
        }),
        call("Q_XGETQUOTA", Kind::Harmless, |stage| {
            quotactl(command(0x5803), Some(stage.disk_device()), Stage::PROJECT, Argument::Memory)
        }),
        call("Q_XGETQUOTA by descriptor", Kind::Harmless, |stage| {
            quotactl_fd(&stage.directory(), command(0x5803), Stage::PROJECT, Argument::Memory)
        }),
        call("Q_XSETQLIM", Kind::Quota, |stage| {
            sys::memory(&limits());
            quotactl(command(0x5804), Some(stage.disk_device()), Stage::PROJECT, Argument::Memory)
        }),
        call("Q_XSETQLIM with upper bits", Kind::Quota, |stage| {
            sys::memory(&limits());
            quotactl(command(0x5804) | UPPER, Some(stage.disk_device()), Stage::PROJECT, Argument::Memory)
        }),
        call("Q_XSETQLIM by descriptor", Kind::Quota, |stage| {
            sys::memory(&limits());
            quotactl_fd(&stage.directory(), command(0x5804), Stage::PROJECT, Argument::Memory)
        }),
    ];
    // An invalid pointer, so that quotas stay on.
    macro_rules! invalid {
        ($($name:literal $number:literal)*) => {
            $(calls.push(failing($name, Kind::Quota, Errno::EFAULT, |stage| {
                quotactl(command($number), Some(stage.disk_device()), Stage::PROJECT, INVALID)
            }));
            calls.push(failing(concat!($name, " by descriptor"), Kind::Quota, Errno::EFAULT, |stage| {
                quotactl_fd(&stage.directory(), command($number), Stage::PROJECT, INVALID)
            }));)*
        };
    }
    invalid!("Q_SETQUOTA" 0x80_0008 "Q_XQUOTAON" 0x5801 "Q_XQUOTAOFF" 0x5802 "Q_XQUOTARM" 0x5806);
    calls
}

fn native(file: &File, command: u32, argument: Argument) -> Result<(), Errno> {
    ioctl(file, command.into(), argument)
}

fn with_upper_bits(file: &File, command: u32, argument: Argument) -> Result<(), Errno> {
    ioctl(file, UPPER | u64::from(command), argument)
}

fn native_flags(file: &File) -> Result<(), Errno> {
    ioctl(file, SETFLAGS, Argument::Memory)
}

type Ioctl = fn(&File, u32, Argument) -> Result<(), Errno>;

/// Sets the project to 0 and back.
fn set_project(file: &File, ioctl_by: Ioctl) -> Result<(), Errno> {
    native(file, FSGETXATTR as u32, Argument::Memory)?;
    let former: [u8; 28] = sys::result();
    let mut changed = former;
    changed[12..16].fill(0);
    sys::memory(&changed);
    ioctl_by(file, FSSETXATTR, Argument::Memory)?;
    sys::memory(&former);
    native(file, FSSETXATTR, Argument::Memory)
}

/// Inverts a flag and restores it.
fn set_flag(file: &File, flag: u32, set: fn(&File) -> Result<(), Errno>) -> Result<(), Errno> {
    ioctl(file, GETFLAGS, Argument::Memory)?;
    let former = u32::from_ne_bytes(sys::result());
    for flags in [former ^ flag, former] {
        sys::memory(&flags.to_ne_bytes());
        set(file)?;
    }
    Ok(())
}

/// Sets the current status again, without `LO_FLAGS_AUTOCLEAR`.
fn set_status(device: &File, ioctl_by: Ioctl) -> Result<(), Errno> {
    native(device, LOOP_GET_STATUS64, Argument::Memory)?;
    let mut status: [u8; 232] = sys::result();
    status[52] &= !4;
    sys::memory(&status);
    ioctl_by(device, LOOP_SET_STATUS64, Argument::Memory)
}

/// Marks the device to be detached. If the call is allowed, the mark is removed.
fn clear(device: &File, ioctl_by: Ioctl) -> Result<(), Errno> {
    ioctl_by(device, LOOP_CLR_FD, NULL)?;
    set_status(device, native)
}

fn add(control: &File, ioctl_by: Ioctl) -> Result<(), Errno> {
    ioctl_by(control, LOOP_CTL_ADD, ABSENT)?;
    native(control, LOOP_CTL_REMOVE, ABSENT)
}

/// `QCMD(command, PRJQUOTA)`.
const fn command(number: u64) -> u64 {
    number << 8 | 2
}

/// `struct fs_disk_quota` that sets the hard limit of blocks of the project.
fn limits() -> [u8; 112] {
    let mut limits = [0; 112];
    // Version 1, FS_PROJ_QUOTA, FS_DQ_BHARD; the project ID; a limit above the usage.
    limits[..4].copy_from_slice(&[1, 2, 8, 0]);
    limits[4..8].copy_from_slice(&Stage::PROJECT.to_ne_bytes());
    limits[8..16].copy_from_slice(&(1_u64 << 20).to_ne_bytes());
    limits
}
