use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Component, Path};

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

use crate::error::UnmountError;

/// Unmounts what is mounted on top at `path`. A symbolic link as last component is not followed.
///
/// # Errors
/// [`UnmountError::Busy`] while files of it are open or something is mounted below; [`UnmountError::NotMounted`] where
/// nothing is mounted.
///
/// umount2(2) with `UMOUNT_NOFOLLOW`.
pub fn unmount(path: &Path) -> Result<(), UnmountError> {
    umount2(path, MntFlags::UMOUNT_NOFOLLOW).map_err(|errno| match errno {
        Errno::EBUSY => UnmountError::Busy,
        Errno::EINVAL => UnmountError::NotMounted,
        Errno::ENOENT => UnmountError::Absent,
        other => UnmountError::Kernel(other),
    })
}

/// Unmounts what is mounted at `name` in the open directory `parent` (`O_PATH` is enough). A descriptor of the mount
/// itself would keep it busy: close it before. Needs `/proc`.
///
/// # Errors
/// As [`unmount`]; [`UnmountError::Name`] if `name` is not one component of a path.
pub fn unmount_beneath(parent: impl AsFd, name: &OsStr) -> Result<(), UnmountError> {
    let mut components = Path::new(name).components();
    let (Some(Component::Normal(only)), None) = (components.next(), components.next()) else {
        return Err(UnmountError::Name);
    };
    // umount2 takes no descriptor. The link in /proc is resolved to the open directory itself, not to its path.
    unmount(&Path::new(&format!("/proc/self/fd/{}", parent.as_fd().as_raw_fd())).join(only))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn only_one_component_is_a_name() {
        let root = File::open("/").expect("open /");
        for name in ["", ".", "..", "/", "a/b", "/proc"] {
            assert_eq!(unmount_beneath(&root, OsStr::new(name)), Err(UnmountError::Name), "{name:?}");
        }
    }
}
