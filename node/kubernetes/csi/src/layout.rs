//! The layout of the kubelet's directory.

use std::path::{Component, Path};

/// File that the kubelet writes for each volume, without fsync. If the file is empty, the kubelet cannot unmount the
/// volume.
pub(crate) const VOLUME_DATA: &str = "vol_data.json";

/// A path below the kubelet's directory; `*` matches any name.
pub(crate) type Pattern = &'static [&'static str];

/// Places of [`VOLUME_DATA`] files: volumes of pods, and devices of block volumes.
pub(crate) const DATA: [Pattern; 2] = [
    &["pods", "*", "volumes", "kubernetes.io~csi", "*", VOLUME_DATA],
    &["plugins", "kubernetes.io", "csi", "volumeDevices", "*", "data", VOLUME_DATA],
];

/// Targets of block volumes, by volume and pod.
pub(crate) const DEVICES: Pattern = &["plugins", "kubernetes.io", "csi", "volumeDevices", "publish", "*", "*"];

/// Device nodes that the kubelet mounts itself, one for each target of [`DEVICES`]. The kubelet removes them before it
/// unpublishes the volume.
pub(crate) const MAPS: Pattern = &["plugins", "kubernetes.io", "csi", "volumeDevices", "*", "dev", "*"];

pub(crate) fn matches(path: &Path, pattern: Pattern) -> bool {
    let fits = |(found, wanted): (Component<'_>, &&str)| *wanted == "*" || found.as_os_str() == *wanted;
    path.components().count() == pattern.len() && path.components().zip(pattern).all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubelets_own_mounts_are_not_targets() {
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
