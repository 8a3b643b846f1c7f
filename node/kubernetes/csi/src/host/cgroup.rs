//! Cgroups of pods. As long as one exists, its processes may have a device node and the permission for its number.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;

const ROOT: &str = "/sys/fs/cgroup";

/// Of a pod's cgroup below the root: kubelet may have a part of the tree, and has a level for each class of pods.
const LEVELS: usize = 4;

#[derive(Debug)]
pub(super) struct PodCgroup(String);

impl PodCgroup {
    /// Whether it is the cgroup of the pod with this UID: `podUID`, or `kubepods-CLASS-podUID.slice` with `_` for `-`.
    pub(super) fn is_of(&self, pod: &OsStr) -> bool {
        pod.to_str().is_some_and(|uid| self.0.contains(uid) || self.0.contains(&uid.replace('-', "_")))
    }
}

/// The cgroups of all pods. None where no cgroup2 is mounted.
pub(super) fn pods() -> Vec<PodCgroup> {
    let mut found = Vec::new();
    collect(Path::new(ROOT), LEVELS, &mut found);
    found
}

fn collect(dir: &Path, levels: usize, found: &mut Vec<PodCgroup>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        if let Some(name) = name(entry.file_name()) {
            found.push(PodCgroup(name));
        } else if levels > 1 {
            collect(&entry.path(), levels - 1, found);
        }
    }
}

fn name(name: OsString) -> Option<String> {
    let name = name.into_string().ok()?;
    let is_pod = name.starts_with("pod") || name.contains("-pod");
    is_pod.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_found_by_both_drivers_names() {
        let root = tempfile::tempdir().expect("a directory");
        for path in [
            "kubepods/burstable/pod11-22/container",
            "kubepods/pod33-44",
            "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod55_66.slice",
            "system/77-88",
        ] {
            fs::create_dir_all(root.path().join(path)).expect("directories");
        }
        let mut found = Vec::new();
        collect(root.path(), LEVELS, &mut found);
        let exists = |uid: &str| found.iter().any(|cgroup| cgroup.is_of(OsStr::new(uid)));
        assert!(exists("11-22") && exists("33-44") && exists("55-66"), "{found:?}");
        assert!(!exists("77-88") && !exists("container"), "{found:?}");
    }
}
