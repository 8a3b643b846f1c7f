use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Component, Path};

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

use crate::error::UnmountError;

/// Unmounts the topmost mount at `path`; a symbolic link in the last component is not followed. umount2(2) with
/// `UMOUNT_NOFOLLOW`.
///
/// # Errors
/// [`UnmountError::Busy`] while its files are open or something is mounted below; [`UnmountError::NotMounted`].
pub fn unmount(path: &Path) -> Result<(), UnmountError> {
    umount2(path, MntFlags::UMOUNT_NOFOLLOW).map_err(|errno| match errno {
        Errno::EBUSY => UnmountError::Busy,
        Errno::EINVAL => UnmountError::NotMounted,
        Errno::ENOENT => UnmountError::Absent,
        other => UnmountError::Kernel(other),
    })
}

/// Unmounts the topmost mount at `name` in the open directory `parent` (`O_PATH` is sufficient). Close descriptors of
/// the mount before, because they keep it busy. Requires `/proc`.
///
/// # Errors
/// Those of [`unmount`]; [`UnmountError::Name`] if `name` is not a single path component.
pub fn unmount_beneath(parent: impl AsFd, name: &OsStr) -> Result<(), UnmountError> {
    let mut components = Path::new(name).components();
    let (Some(Component::Normal(only)), None) = (components.next(), components.next()) else {
        return Err(UnmountError::Name);
    };
    // umount2 takes no descriptor. The kernel resolves the link in /proc to the open directory, not by its path.
    unmount(&Path::new(&format!("/proc/self/fd/{}", parent.as_fd().as_raw_fd())).join(only))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn only_single_components_are_accepted() {
        let root = File::open("/").expect("open /");
        for name in ["", ".", "..", "/", "a/b", "/proc"] {
            assert_eq!(unmount_beneath(&root, OsStr::new(name)), Err(UnmountError::Name), "{name:?}");
        }
    }
}
