//! Usage and condition of a volume.

use fsquota::Quota;
use proto::csi::volume_usage::Unit;
use proto::csi::{VolumeCondition, VolumeUsage};
use units::Bytes;
use volume::{ALMOST_FULL, DiskFault};

use crate::host::{LoopDevice, PathContents};
use crate::node::signed;

/// Without a limit there is no total, and CSI requires one: the entry is left out. The usage of a device is unknown.
pub(crate) fn usage(found: &PathContents) -> Vec<VolumeUsage> {
    let entry = |unit: Unit, total: u64, used: u64| VolumeUsage {
        available: signed(total.saturating_sub(used)),
        total: signed(total),
        used: signed(used),
        unit: unit.into(),
    };
    match found {
        PathContents::Filesystem(Quota { limits, used, .. }) => {
            let bytes = limits.bytes.map(|total| entry(Unit::Bytes, total.get(), used.bytes.get()));
            let inodes = limits.inodes.map(|total| entry(Unit::Inodes, total.get(), used.inodes.get()));
            bytes.into_iter().chain(inodes).collect()
        }
        PathContents::Block { image, device } => {
            let size = device.map_or(*image, |device| device.size);
            vec![VolumeUsage { total: signed(size.get()), unit: Unit::Bytes.into(), ..VolumeUsage::default() }]
        }
        PathContents::Unusable | PathContents::Nothing => vec![],
    }
}

/// Faults that the content of a volume does not show.
#[derive(Debug, Default)]
pub(crate) struct Health {
    pub(crate) disk: Vec<DiskFault>,
    pub(crate) limits_changed: bool,
}

/// The faults of the disk first, since the others may follow from them.
pub(crate) fn condition(found: &PathContents, health: &Health) -> VolumeCondition {
    let disk = health.disk.iter().map(|fault| format!("the node's data disk is faulty: {fault}"));
    let limits =
        health.limits_changed.then(|| "the volume's limits were changed; restart the node to set them".to_owned());
    let wrong: Vec<String> = disk.chain(limits).chain(wrong(found)).collect();
    if wrong.is_empty() {
        return VolumeCondition { abnormal: false, message: "the volume works".to_owned() };
    }
    VolumeCondition { abnormal: true, message: wrong.join("; ") }
}

fn wrong(found: &PathContents) -> Option<String> {
    match found {
        PathContents::Filesystem(quota) => filesystem(quota),
        PathContents::Block { image, device } => block(*image, *device),
        PathContents::Unusable => {
            Some("the volume's record or image cannot be used; the node's log has the reason".to_owned())
        }
        PathContents::Nothing => Some("the volume is not published here".to_owned()),
    }
}

fn filesystem(Quota { limits, used, .. }: &Quota) -> Option<String> {
    match (limits.bytes, limits.inodes) {
        (None, _) | (_, None) => Some("the volume has no quota and can fill the node's disk".to_owned()),
        (Some(limit), _) if used.bytes > limit => {
            Some(format!("the volume holds {}, more than its limit of {limit}; delete files or expand it", used.bytes))
        }
        (_, Some(limit)) if used.inodes > limit => {
            Some(format!("the volume holds {}, more than its limit of {limit}; delete files or expand it", used.inodes))
        }
        (Some(_), Some(_)) => {
            let percent = used.percent_of(*limits).filter(|percent| *percent >= ALMOST_FULL)?;
            Some(format!("{percent} % of the volume's space or files are used; delete files or expand it"))
        }
    }
}

fn block(image: Bytes, device: Option<LoopDevice>) -> Option<String> {
    match device {
        None => Some("the volume's device was detached under its pods; restart them".to_owned()),
        Some(LoopDevice { size, .. }) if size != image => {
            Some(format!("the volume's device has {size}, its image {image}: its expansion is not finished"))
        }
        Some(LoopDevice { direct_io: false, .. }) => {
            Some("the volume's device has no direct I/O: its data is cached twice".to_owned())
        }
        Some(LoopDevice { direct_io: true, .. }) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU32, NonZeroU64};

    use fsquota::{Fault, Limits, ProjectId, Usage};
    use proptest::prelude::*;
    use units::Inodes;

    use super::*;

    const WORKS: LoopDevice = LoopDevice { size: Bytes::GIB, direct_io: true };

    fn quota(bytes: Option<u64>, inodes: Option<u64>, used: (u64, u64)) -> PathContents {
        PathContents::Filesystem(Quota {
            id: NonZeroU32::new(7).and_then(|id| ProjectId::new(id.get())).expect("a project"),
            limits: Limits { bytes: bytes.map(Bytes::new), inodes: inodes.map(Inodes::new) },
            used: Usage { bytes: Bytes::new(used.0), inodes: Inodes::new(used.1) },
        })
    }

    /// On a disk without faults.
    fn works(found: &PathContents) -> VolumeCondition {
        condition(found, &Health::default())
    }

    fn block(device: Option<LoopDevice>) -> VolumeCondition {
        works(&PathContents::Block { image: Bytes::GIB, device })
    }

    #[test]
    fn a_device_has_a_size_and_no_usage() {
        let usage = usage(&PathContents::Block { image: Bytes::GIB, device: Some(WORKS) });
        let [VolumeUsage { available: 0, used: 0, total, unit }] = usage[..] else { panic!("{usage:?}") };
        assert_eq!((total, unit), (1 << 30, Unit::Bytes.into()));
    }

    #[test]
    fn device_errors_are_abnormal_conditions() {
        assert!(!block(Some(WORKS)).abnormal);
        let cases = [
            (None, "was detached"),
            (Some(LoopDevice { size: Bytes::MIB, ..WORKS }), "the volume's device has 1 MiB, its image 1 GiB"),
            (Some(LoopDevice { direct_io: false, ..WORKS }), "no direct I/O"),
        ];
        for (device, says) in cases {
            let found = block(device);
            assert!(found.abnormal && found.message.contains(says), "{found:?}");
        }
        assert!(works(&PathContents::Unusable).abnormal);
    }

    #[test]
    fn a_volume_without_a_quota_or_almost_full_is_abnormal() {
        for (bytes, inodes, abnormal) in [
            (Some(12), Some(12), false),
            (Some(11), Some(12), true),
            (Some(12), Some(11), true),
            (None, Some(10), true),
            (Some(10), None, true),
            (Some(9), Some(10), true),
            (Some(10), Some(9), true),
        ] {
            assert_eq!(works(&quota(bytes, inodes, (10, 10))).abnormal, abnormal, "{bytes:?} {inodes:?}");
        }
    }

    #[test]
    fn all_faults_are_named() {
        let disk = vec![DiskFault::FileSystem(Fault::ShutDown), DiskFault::Requests(NonZeroU64::MIN)];
        let faulty = condition(&quota(Some(10), Some(10), (9, 1)), &Health { disk, limits_changed: true });
        assert!(faulty.abnormal);
        for says in
            ["XFS has shut the file system down", "1 requests to the disk failed", "limits were changed", "90 %"]
        {
            assert!(faulty.message.contains(says), "{}", faulty.message);
        }
    }

    proptest! {
        #[test]
        fn numbers_are_never_negative(bytes: Option<u64>, inodes: Option<u64>, used: (u64, u64), size: u64) {
            let device = Some(LoopDevice { size: Bytes::new(size), direct_io: true });
            for found in [quota(bytes, inodes, used), PathContents::Block { image: Bytes::new(size), device }] {
                for VolumeUsage { available, total, used, .. } in usage(&found) {
                    prop_assert!(available >= 0 && total >= 0 && used >= 0);
                }
            }
        }
    }
}
