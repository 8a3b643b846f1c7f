//! Detaches loop devices and unmounts file systems at the shutdown of the node.

use std::collections::BTreeSet;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use loopdev::{Backing, Detach, Device, DeviceNumber};
use mount::Entry;
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

/// Time that a file system may stay busy: threads close their descriptors late.
const BUSY: Duration = Duration::from_secs(2);

/// Unmounts all file systems at and below `tops`, after the machine's other processes have ended. The node's log names
/// file systems that cannot be unmounted; they replay their journals at the next boot.
///
/// A loop device keeps the file system of its image busy without any process. Therefore devices that the kubelet did
/// not unpublish are detached first.
pub fn release(tops: &[&Path]) {
    let table = match mount::table() {
        Ok(table) => table,
        Err(error) => {
            tracing::warn!(%error, "cannot list the mounts; the data disk replays its log at the next boot");
            return;
        }
    };
    let leaving = newest_first(table, tops);
    detach(&leaving.iter().map(|entry| DeviceNumber { major: entry.device.0, minor: entry.device.1 }).collect());
    for entry in leaving {
        unmount(&entry.point);
    }
}

/// Newest mounts first, so that a mount is unmounted before the mount below it. The layers of a container's root (an
/// overlay) are on the data disk, so the overlay is unmounted first, wherever it is mounted.
fn newest_first(table: Vec<Entry>, tops: &[&Path]) -> Vec<Entry> {
    let mut leaving: Vec<_> =
        table.into_iter().filter(|entry| tops.iter().any(|top| entry.point.starts_with(top))).collect();
    leaving.reverse();
    leaving
}

/// Detaches the loop devices whose files are on one of these file systems.
fn detach(filesystems: &BTreeSet<DeviceNumber>) {
    let devices = match loopdev::list() {
        Ok(devices) => devices,
        Err(error) => {
            tracing::warn!(%error, "cannot list the loop devices during shutdown");
            return;
        }
    };
    for attached in devices {
        let backing = attached.status.backing;
        let leaves = matches!(backing, Backing::File(file) if filesystems.contains(&file.device));
        if !leaves {
            continue;
        }
        match Device::open(attached.number.path()).map(|device| device.detach_from(backing)) {
            Ok(Ok(Detach::Detached)) => {}
            Ok(Ok(Detach::Deferred)) => tracing::warn!(device = %attached.number, "loop device in use during shutdown"),
            Ok(Err(error)) => {
                tracing::warn!(device = %attached.number, %error, "cannot detach loop device during shutdown");
            }
            Err(error) => tracing::warn!(device = %attached.number, %error, "cannot open loop device during shutdown"),
        }
    }
}

fn unmount(point: &Path) {
    let start = Instant::now();
    while let Err(errno) = umount2(point, MntFlags::UMOUNT_NOFOLLOW) {
        if errno != Errno::EBUSY || start.elapsed() > BUSY {
            tracing::warn!(target = %point.display(), %errno, "cannot unmount during shutdown");
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn the_mount_below_goes_first() {
        let entry =
            |point: &str| Entry { mount: 0, device: (0, 0), root: "/".into(), point: point.into(), peers: None };
        let table = ["/", "/data", "/ephemeral", "/data/kubelet/pods/1", "/database"].map(entry);
        let tops = [Path::new("/ephemeral"), Path::new("/data")];
        let points: Vec<PathBuf> = newest_first(table.into(), &tops).into_iter().map(|entry| entry.point).collect();
        assert_eq!(points, ["/data/kubelet/pods/1", "/ephemeral", "/data"].map(PathBuf::from));
    }
}
