//! Where kubelet has what, below its directory.

use std::path::{Component, Path};

/// For each volume, without fsync: after a power cut it may be empty, and what has an empty one cannot be unmounted.
pub(crate) const VOLUME_DATA: &str = "vol_data.json";

/// A path below kubelet's directory; `*` is every name.
pub(crate) type Pattern = &'static [&'static str];

/// The files of that name: of volumes of pods, and of devices of block volumes.
pub(crate) const DATA: [Pattern; 2] = [
    &["pods", "*", "volumes", "kubernetes.io~csi", "*", VOLUME_DATA],
    &["plugins", "kubernetes.io", "csi", "volumeDevices", "*", "data", VOLUME_DATA],
];

/// Targets of block volumes, by volume and pod.
pub(crate) const DEVICES: Pattern = &["plugins", "kubernetes.io", "csi", "volumeDevices", "publish", "*", "*"];

/// Nodes that kubelet mounts itself, one for each target of [`DEVICES`]. It takes them away before it unpublishes.
pub(crate) const MAPS: Pattern = &["plugins", "kubernetes.io", "csi", "volumeDevices", "*", "dev", "*"];

/// Whether a path below kubelet's directory is one of these.
pub(crate) fn matches(path: &Path, pattern: Pattern) -> bool {
    let fits = |(found, wanted): (Component<'_>, &&str)| *wanted == "*" || found.as_os_str() == *wanted;
    path.components().count() == pattern.len() && path.components().zip(pattern).all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubelets_own_mounts_are_no_targets() {
        const DEVICES: &str = "plugins/kubernetes.io/csi/volumeDevices";
        let matches = |path: &str, pattern| matches(Path::new(path), pattern);
        let (map, target) = (format!("{DEVICES}/pvc-1/dev/5b1c"), format!("{DEVICES}/publish/pvc-1/5b1c"));
        assert!(matches(&map, MAPS) && !matches(&map, super::DEVICES));
        assert!(matches(&target, super::DEVICES) && !matches(&target, MAPS));
        for other in ["pvc-1/dev", "pvc-1/dev/5b1c/x", "publish/pvc-1", "publish/pvc-1/5b1c/x"] {
            let other = format!("{DEVICES}/{other}");
            assert!(!matches(&other, MAPS) && !matches(&other, super::DEVICES), "{other}");
        }
        assert!(!matches("pods/5b1c/volumeDevices/kubernetes.io~csi/pvc-1", MAPS));
    }
}
