//! Removal of the empty files that a power cut leaves in the kubelet's directory.

use std::path::Path;

use dir::{Dir, Name, OFlag};
use nix::errno::Errno;
use nix::sys::stat::{Mode, fstat};
use tracing::{info, warn};

use crate::layout::DATA;

/// Removes the empty `vol_data.json` files below the kubelet's directory, and returns their number. Files that cannot
/// be reached are logged.
pub(crate) fn remove_empty_volume_data(kubelet: &Path) -> Result<usize, dir::Error> {
    let kubelet = Dir::open(kubelet)?;
    Ok(DATA.iter().map(|place| sweep(&kubelet, place)).sum())
}

fn sweep(dir: &Dir, place: &[&str]) -> usize {
    let found = match place {
        [] => Ok(0),
        ["*", rest @ ..] => dir.names().map(|names| names.iter().map(|name| descend(dir, name, rest)).sum()),
        [name, rest @ ..] => Ok(Name::try_from(*name).map_or(0, |name| descend(dir, &name, rest))),
    };
    found.unwrap_or_else(|reason| {
        warn!(error = &reason as &dyn std::error::Error, "cannot read a directory of the kubelet");
        0
    })
}

fn descend(dir: &Dir, name: &Name, rest: &[&str]) -> usize {
    let done = match rest {
        [] => remove_if_empty(dir, name),
        rest => dir.open_dir(name).map(|below| sweep(&below, rest)),
    };
    match done {
        Ok(removed) => removed,
        // Missing, not a directory, a link, or a mount: the kubelet did not write it.
        Err(reason) if matches!(reason.errno(), Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV) => 0,
        Err(reason) => {
            warn!(name = %name, error = &reason as &dyn std::error::Error, "cannot check a file of the kubelet");
            0
        }
    }
}

fn remove_if_empty(dir: &Dir, name: &Name) -> Result<usize, dir::Error> {
    let file = dir.open_file(name, OFlag::O_PATH, Mode::empty())?;
    let empty = fstat(&file).is_ok_and(|found| found.st_size == 0);
    if empty {
        dir.remove_file(name)?;
        info!(file = %name, "empty file of the kubelet removed");
    }
    Ok(usize::from(empty))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::layout::VOLUME_DATA;

    #[test]
    fn only_empty_files_are_removed() {
        let kubelet = tempfile::tempdir().expect("a directory");
        let file = |pod: &str, volume: &str, text: &str| {
            let dir = kubelet.path().join(format!("pods/{pod}/volumes/kubernetes.io~csi/{volume}"));
            fs::create_dir_all(&dir).expect("directories");
            fs::write(dir.join(VOLUME_DATA), text).expect("a file");
            dir.join(VOLUME_DATA)
        };
        let (cut, whole, other) = (file("a", "v", ""), file("a", "w", "{}"), file("b", "v", ""));
        let block = kubelet.path().join("plugins/kubernetes.io/csi/volumeDevices/pvc-1/data");
        fs::create_dir_all(&block).expect("directories");
        fs::write(block.join(VOLUME_DATA), "").expect("a file");

        assert_eq!(remove_empty_volume_data(kubelet.path()).expect("a sweep"), 3);

        assert!(!cut.exists() && !other.exists() && !block.join(VOLUME_DATA).exists());
        assert!(whole.exists());
        assert_eq!(remove_empty_volume_data(kubelet.path()).expect("a sweep"), 0);
    }

    #[test]
    fn links_are_not_followed() {
        let (kubelet, elsewhere) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("another"));
        let victim = elsewhere.path().join("volumes/kubernetes.io~csi/v");
        fs::create_dir_all(&victim).expect("directories");
        fs::write(victim.join(VOLUME_DATA), "").expect("a file");
        fs::create_dir(kubelet.path().join("pods")).expect("a directory");
        std::os::unix::fs::symlink(elsewhere.path(), kubelet.path().join("pods/a")).expect("a link");

        assert_eq!(remove_empty_volume_data(kubelet.path()).expect("a sweep"), 0);
        assert!(victim.join(VOLUME_DATA).exists());
    }
}
