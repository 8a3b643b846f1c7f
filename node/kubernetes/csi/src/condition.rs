//! Usage, condition and health of a volume. The condition is that of CSI 1.12, the health that of CSI 1.13.

use std::collections::BTreeMap;

use fsquota::{Fault, Quota};
use proto::csi::node_get_storage_health_response::StorageBackendHealth;
use proto::csi::volume_health::VolumeHealthEntry;
use proto::csi::volume_usage::Unit;
use proto::csi::{StorageHealthErrorType, VolumeCondition, VolumeHealth, VolumeHealthErrorType, VolumeUsage};
use units::Bytes;
use volume::{ALMOST_FULL, DiskFault, Records, VolumeId};

use crate::host::{LoopDevice, PathContents};
use crate::request::signed;

/// Omits entries without a limit, because CSI requires a total. A block volume has only a total: its usage is unknown.
pub(crate) fn usage(found: &PathContents) -> Vec<VolumeUsage> {
    let entry = |unit: Unit, total: u64, used: u64| VolumeUsage {
        available: signed(total.saturating_sub(used)),
        total: signed(total),
        used: signed(used),
        unit: unit.into(),
    };
    match found {
        PathContents::Filesystem(Quota { shown, used, .. }) => {
            let bytes = shown.bytes.map(|total| entry(Unit::Bytes, total.get(), used.bytes.get()));
            let inodes = shown.inodes.map(|total| entry(Unit::Inodes, total.get(), used.inodes.get()));
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

struct Problem {
    status: VolumeHealthErrorType,
    /// Reason in CamelCase, unique among the problems of a volume.
    reason: &'static str,
    message: String,
}

impl Problem {
    fn degraded(reason: &'static str, message: impl Into<String>) -> Self {
        Self { status: VolumeHealthErrorType::Degraded, reason, message: message.into() }
    }

    fn inaccessible(reason: &'static str, message: impl Into<String>) -> Self {
        Self { status: VolumeHealthErrorType::Inaccessible, reason, message: message.into() }
    }

    fn of_disk(fault: &DiskFault) -> Self {
        let message = format!("the node's data disk is faulty: {fault}");
        match fault {
            DiskFault::FileSystem(Fault::ShutDown) => Self::inaccessible("FileSystemShutDown", message),
            DiskFault::FileSystem(Fault::Metadata) => Self::degraded("FileSystemDamaged", message),
            DiskFault::FileSystem(Fault::Groups { .. }) => Self::degraded("AllocationGroupsDamaged", message),
            DiskFault::Requests(_) => Self::degraded("DiskRequestsFailed", message),
            DiskFault::Warnings { .. } => Self::degraded("DiskWarnings", message),
        }
    }
}

/// Lists the faults of the disk first, because they may cause the other problems.
fn problems(found: Option<&PathContents>, health: &Health) -> Vec<Problem> {
    let disk = health.disk.iter().map(Problem::of_disk);
    let changed =
        || Problem::degraded("LimitsChanged", "the volume's limits were changed; restart the node to set them");
    disk.chain(health.limits_changed.then(changed)).chain(found.and_then(wrong)).collect()
}

pub(crate) fn condition(found: &PathContents, health: &Health) -> VolumeCondition {
    let wrong: Vec<String> = problems(Some(found), health).into_iter().map(|problem| problem.message).collect();
    if wrong.is_empty() {
        return VolumeCondition { abnormal: false, message: "the volume works".to_owned() };
    }
    VolumeCondition { abnormal: true, message: wrong.join("; ") }
}

pub(crate) fn health(volume: &VolumeId, found: Option<&PathContents>, health: &Health) -> VolumeHealth {
    let entry = |Problem { status, reason, message }| VolumeHealthEntry {
        status: status.into(),
        reason: reason.to_owned(),
        message,
    };
    let health_statuses = problems(found, health).into_iter().map(entry).collect();
    VolumeHealth { volume_id: volume.to_string(), health_statuses }
}

/// Health of the volumes that have a problem. Snapshots are left out.
pub(crate) fn abnormal(records: Records, faults: &Health) -> BTreeMap<VolumeId, VolumeHealth> {
    let readable = records.readable.into_iter().filter(|(_, record)| !record.mode.is_snapshot());
    let unreadable = records.unreadable.into_keys().map(|id| (id, Some(PathContents::Unusable)));
    let all = readable.map(|(id, _)| (id, None)).chain(unreadable);
    let all = all.map(|(id, found)| (id.clone(), health(&id, found.as_ref(), faults)));
    all.filter(|(_, health)| !health.health_statuses.is_empty()).collect()
}

pub(crate) fn storage_health(disk: &[DiskFault]) -> Vec<StorageBackendHealth> {
    let entry = |Problem { status, reason, message }| {
        let status = match status {
            VolumeHealthErrorType::Inaccessible => StorageHealthErrorType::StorageUnreachable,
            _ => StorageHealthErrorType::StorageDegraded,
        };
        StorageBackendHealth { status: status.into(), reason: reason.to_owned(), message, volume_capability: None }
    };
    disk.iter().map(Problem::of_disk).map(entry).collect()
}

fn wrong(found: &PathContents) -> Option<Problem> {
    match found {
        PathContents::Filesystem(quota) => filesystem(quota),
        PathContents::Block { image, device } => block(*image, *device),
        PathContents::Unusable => Some(Problem::inaccessible(
            "VolumeUnusable",
            "the volume's record or image cannot be used; the node's log has the reason",
        )),
        PathContents::Nothing => Some(Problem::inaccessible("NotPublished", "the volume is not published at the path")),
    }
}

fn filesystem(Quota { shown: limits, used, .. }: &Quota) -> Option<Problem> {
    let over = |used: String, limit: String| {
        let message = format!("the volume holds {used}, more than its limit of {limit}; delete files or expand it");
        Some(Problem::degraded("OverLimit", message))
    };
    match (limits.bytes, limits.inodes) {
        (None, _) | (_, None) => {
            Some(Problem::degraded("NoQuota", "the volume has no quota and can fill the node's disk"))
        }
        (Some(limit), _) if used.bytes > limit => over(used.bytes.to_string(), limit.to_string()),
        (_, Some(limit)) if used.inodes > limit => over(used.inodes.to_string(), limit.to_string()),
        (Some(_), Some(_)) => {
            let percent = used.percent_of(*limits).filter(|percent| *percent >= ALMOST_FULL)?;
            let message = format!("{percent} % of the volume's space or files are used; delete files or expand it");
            Some(Problem::degraded("AlmostFull", message))
        }
    }
}

fn block(image: Bytes, device: Option<LoopDevice>) -> Option<Problem> {
    match device {
        None => {
            let message = "the volume's device was detached under its pods; restart them";
            Some(Problem::inaccessible("DeviceDetached", message))
        }
        Some(LoopDevice { size, .. }) if size != image => {
            let message = format!("the volume's device has {size}, its image {image}: its expansion is not finished");
            Some(Problem::degraded("ExpansionUnfinished", message))
        }
        Some(LoopDevice { direct_io: false, .. }) => {
            let message = "the volume's device has no direct I/O: its data is cached twice";
            Some(Problem::degraded("CachedTwice", message))
        }
        Some(LoopDevice { direct_io: true, .. }) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU32, NonZeroU64};
    use std::time::SystemTime;

    use envtest::faults_of_each_kind;
    use fsquota::{Limits, ProjectId, Usage};
    use proptest::prelude::*;
    use units::Inodes;
    use volume::{Allocation, Claim, IoLimits, Mode, Owner, Record, RecordError, Sharing, State};

    use super::*;

    const WORKS: LoopDevice = LoopDevice { size: Bytes::GIB, direct_io: true };

    fn quota(bytes: Option<u64>, inodes: Option<u64>, used: (u64, u64)) -> PathContents {
        let shown = Limits { bytes: bytes.map(Bytes::new), inodes: inodes.map(Inodes::new) };
        PathContents::Filesystem(Quota {
            id: NonZeroU32::new(7).and_then(|id| ProjectId::new(id.get())).expect("a project"),
            // While a snapshot is copied, the limit is higher than the size.
            limits: Limits { bytes: Some(Bytes::TIB), ..shown },
            shown,
            used: Usage { bytes: Bytes::new(used.0), inodes: Inodes::new(used.1) },
        })
    }

    /// Condition of a volume on a disk without faults.
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
    fn the_total_is_the_size_while_the_limit_is_higher() {
        let found = usage(&quota(Some(10), Some(8), (9, 1)));
        let found: Vec<_> = found.iter().map(|entry| (entry.unit(), entry.total, entry.available)).collect();
        assert_eq!(found, [(Unit::Bytes, 10, 1), (Unit::Inodes, 8, 7)]);
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
        let disk = faults_of_each_kind();
        let faulty = condition(&quota(Some(10), Some(10), (9, 1)), &Health { disk, limits_changed: true });
        assert!(faulty.abnormal);
        for says in [
            "XFS has shut the file system down",
            "counters or quota records",
            "metadata in allocation groups",
            "7 requests to the disk failed",
            "warns about nvme0n1: three warnings",
            "limits were changed",
            "90 %",
        ] {
            assert!(faulty.message.contains(says), "{}", faulty.message);
        }
    }

    #[test]
    fn the_health_has_each_fault_with_its_severity() {
        use StorageHealthErrorType::{StorageDegraded, StorageUnreachable};
        use VolumeHealthErrorType::{Degraded, Inaccessible};

        let disk = faults_of_each_kind();
        let storage: Vec<_> = storage_health(&disk).into_iter().map(|entry| (entry.status(), entry.reason)).collect();
        let expected = [
            (StorageUnreachable, "FileSystemShutDown"),
            (StorageDegraded, "FileSystemDamaged"),
            (StorageDegraded, "AllocationGroupsDamaged"),
            (StorageDegraded, "DiskRequestsFailed"),
            (StorageDegraded, "DiskWarnings"),
        ];
        assert_eq!(storage, expected.map(|(status, reason)| (status, reason.to_owned())));
        let id: VolumeId = "pvc-1".parse().expect("an identifier");
        let entries = |found: Option<&PathContents>, faults: &Health| {
            let health = health(&id, found, faults);
            assert_eq!(health.volume_id, "pvc-1");
            health.health_statuses.into_iter().map(|entry| (entry.status(), entry.reason)).collect::<Vec<_>>()
        };
        let found = quota(Some(10), Some(10), (9, 1));
        let expected = [
            (Inaccessible, "FileSystemShutDown"),
            (Degraded, "FileSystemDamaged"),
            (Degraded, "AllocationGroupsDamaged"),
            (Degraded, "DiskRequestsFailed"),
            (Degraded, "DiskWarnings"),
            (Degraded, "LimitsChanged"),
            (Degraded, "AlmostFull"),
        ];
        let faults = Health { disk, limits_changed: true };
        assert_eq!(entries(Some(&found), &faults), expected.map(|(status, reason)| (status, reason.to_owned())));
        assert_eq!(entries(None, &Health::default()), []);
        let detached = PathContents::Block { image: Bytes::GIB, device: None };
        let detached = entries(Some(&detached), &Health::default());
        assert_eq!(detached, [(Inaccessible, "DeviceDetached".to_owned())]);
    }

    #[test]
    fn only_volumes_with_a_fault_are_listed() {
        let record = |mode: Mode| Record {
            claim: Claim { uid: "1".to_owned(), namespace: "shop".to_owned(), name: "data".to_owned() },
            owner: Owner::Provisioner,
            class: "local".to_owned(),
            mode,
            size: Bytes::GIB,
            project: ProjectId::new(7).expect("a project"),
            cloning: None,
            io: IoLimits::NONE,
            state: State::Announced,
        };
        let id = |text: &str| text.parse::<VolumeId>().expect("an identifier");
        let block = Mode::Block { allocation: Allocation::Thick };
        let snapshot = Mode::Snapshot { taken: SystemTime::UNIX_EPOCH, sharing: Sharing::Temporary };
        let records = Records {
            readable: [(id("pvc-2"), record(block)), (id("snapshot-3"), record(snapshot))].into(),
            unreadable: [(id("pvc-1"), RecordError::Version1)].into(),
        };
        let listed = |faults: &Health| {
            let found = abnormal(records.clone(), faults).into_iter();
            found.map(|(id, health)| (id.to_string(), health.health_statuses.len())).collect::<Vec<_>>()
        };
        assert_eq!(listed(&Health::default()), [("pvc-1".to_owned(), 1)]);
        let faulty = Health { disk: vec![DiskFault::Requests(NonZeroU64::MIN)], limits_changed: false };
        assert_eq!(listed(&faulty), [("pvc-1".to_owned(), 2), ("pvc-2".to_owned(), 1)]);
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
