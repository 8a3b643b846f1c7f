//! The first program of the node: loads the drivers of the machine's disks, selects the system image
//! ([`initramfs::choice`]), finds it, mounts it read-only, and executes its `/init`.
//!
//! The initramfs of a disk image contains the file `/system-partition` with the second form below, and starts only that
//! system: an argument `granary.system=`, which firmware or SMBIOS may append, stops the boot. A direct boot has no
//! such file and uses the argument, in either form:
//!
//! | `granary.system=` | image |
//! |---|---|
//! | `UUID` | the EROFS with this UUID on any block device, not verified |
//! | `PARTUUID:BLOCKS:DIGEST` | the partition with this ID, read through dm-verity: number of blocks of 4096 bytes, followed on disk by the hash tree, and the SHA-256 root hash ([`verity::Root`]) |
//!
//! A UEFI executable starts only the image that it was built with. Modified blocks are never used: the boot of a
//! damaged image stops here, or later with a kernel panic (`dm-verity device corrupted`).
//!
//! On an error, the program prints what it looked for and what it found, and powers the machine off, or restarts it if
//! the command line contains `granary.failure=reboot`.
#![forbid(unsafe_code)]

use std::convert::Infallible;
use std::ffi::CString;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::{fs, io};

use kernel::modules::{BUSES, Drivers};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{chdir, chroot, execv, sync};

use initramfs::choice::{self, ChoiceError};
use initramfs::search::{self, SearchError};
use initramfs::system::System;

const MODULES: &str = "/modules";
const DRIVERS: &str = "/drivers";
const ROOT: &str = "/system";

#[derive(Debug, thiserror::Error)]
enum BootError {
    #[error("cannot mount {what} on {target}")]
    Mount { what: String, target: &'static str, source: Errno },
    #[error("cannot read {path}")]
    Read { path: &'static str, source: io::Error },
    #[error("cannot load the kernel modules")]
    Modules(#[from] kernel::modules::LoadError),
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    #[error(transparent)]
    Search(#[from] SearchError),
    #[error("cannot {step} the system image")]
    HandOver { step: &'static str, source: Errno },
}

fn main() {
    let Err(error) = boot();
    print(&format!("initramfs: error: {}", causes::line(&error)));
    let restart =
        fs::read_to_string("/proc/cmdline").is_ok_and(|line| argument(&line, "granary.failure") == Some("reboot"));
    sync();
    let Err(errno) = reboot(if restart { RebootMode::RB_AUTOBOOT } else { RebootMode::RB_POWER_OFF });
    print(&format!("initramfs: error: cannot power off: {errno}"));
}

/// Prints to all consoles. Unlike `println!`, does not panic if a console fails: a panic of PID 1 is a kernel panic.
fn print(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
    let active = fs::read_to_string("/sys/class/tty/console/active").unwrap_or_default();
    for name in kernel::text::other_consoles(&active) {
        let mut options = File::options();
        options.write(true).custom_flags(OFlag::O_NOCTTY.bits());
        let _ = options.open(Path::new("/dev").join(name)).and_then(|mut console| writeln!(console, "{line}"));
    }
}

fn boot() -> Result<Infallible, BootError> {
    if let Ok(now) = clock_gettime(ClockId::CLOCK_BOOTTIME) {
        print(&format!("initramfs: started {}.{:03} s after the kernel", now.tv_sec(), now.tv_nsec() / 1_000_000));
    }
    let inert = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    for (kind, target, flags) in
        [("devtmpfs", "/dev", MsFlags::MS_NOSUID), ("proc", "/proc", inert), ("sysfs", "/sys", inert)]
    {
        attach(kind, target, kind, flags)?;
    }
    kernel::modules::load(MODULES)?;
    let line =
        fs::read_to_string("/proc/cmdline").map_err(|source| BootError::Read { path: "/proc/cmdline", source })?;
    let embedded = match fs::read_to_string(choice::FILE) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(source) => return Err(BootError::Read { path: choice::FILE, source }),
    };
    let wanted = choice::choose(embedded.as_deref(), &line)?;
    let mut drivers = Drivers::open(DRIVERS)?;
    let found = search::find(&wanted, || {
        for error in drivers.load_present(Path::new(BUSES)).failed {
            print(&format!("initramfs: error: {}", causes::line(&error)));
        }
    })?;
    let device = match wanted {
        System::Image(_) => found.device,
        System::Partition { root, .. } => {
            let device = search::verified(&found, &root)?;
            // The panic message of the kernel contains no remedy.
            print(&format!(
                "initramfs: {} is verified on each read; if the kernel panics with \"dm-verity device \
                 corrupted\", write the image to the disk again",
                found.place()
            ));
            device
        }
    };
    mount(Some(&device), ROOT, Some("erofs"), MsFlags::MS_RDONLY | MsFlags::MS_NODEV, None::<&str>)
        .map_err(|source| BootError::Mount { what: device.display().to_string(), target: ROOT, source })?;
    hand_over()
}

fn attach(what: &str, target: &'static str, kind: &str, flags: MsFlags) -> Result<(), BootError> {
    match mount(Some(what), target, Some(kind), flags, None::<&str>) {
        // The kernel mounts devtmpfs itself if CONFIG_DEVTMPFS_MOUNT is set.
        Ok(()) | Err(Errno::EBUSY) => Ok(()),
        Err(source) => Err(BootError::Mount { what: what.to_owned(), target, source }),
    }
}

/// The value of `key=value` in a kernel command line; the last occurrence takes precedence.
fn argument<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_whitespace().filter_map(|word| word.strip_prefix(key)?.strip_prefix('=')).next_back()
}

/// Makes the mounted image the root file system and executes `/init`.
fn hand_over() -> Result<Infallible, BootError> {
    // The initial root file system cannot be unmounted, so its files would stay in memory.
    for path in [MODULES, DRIVERS, "/init"] {
        let path = Path::new(path);
        let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        if let Err(error) = removed {
            print(&format!("initramfs: cannot free {}: {error}", path.display()));
        }
    }
    let step = |step| move |source| BootError::HandOver { step, source };
    for below in ["dev", "proc", "sys"] {
        let target = Path::new(ROOT).join(below);
        mount(Some(&Path::new("/").join(below)), &target, None::<&str>, MsFlags::MS_MOVE, None::<&str>)
            .map_err(step("move /dev, /proc and /sys into"))?;
    }
    chdir(ROOT).map_err(step("enter"))?;
    mount(Some("."), "/", None::<&str>, MsFlags::MS_MOVE, None::<&str>).map_err(step("make a root of"))?;
    chroot(".").map_err(step("change root to"))?;
    chdir("/").map_err(step("enter"))?;
    let init = CString::from(c"/init");
    execv(&init, &[&init]).map_err(step("start /init of"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_of_a_key_takes_precedence() {
        let line = "quiet granary.failure=a granary.failures=b granary.failure=c\n";
        assert_eq!(argument(line, "granary.failure"), Some("c"));
        assert_eq!(argument(line, "granary"), None);
    }
}
