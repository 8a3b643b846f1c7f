//! NodeGetVolumeStats.

use std::fs::File;
use std::path::PathBuf;

use conformity::{Kind, SIZE, Volume, hold, hold_each, hold_published, with_case};
use nix::fcntl::{FallocateFlags, fallocate};
use proptest::prelude::*;
use proto::csi::volume_usage::Unit;
use proto::csi::{NodeGetVolumeHealthRequest, NodeGetVolumeStatsRequest, VolumeHealthErrorType, VolumeUsage};
use tonic::Code;
use units::Bytes;

use crate::malformed::{all_answered, nothing_to_do, path, place, places, text, volume_id, while_published};

fn signed(number: u64) -> i64 {
    i64::try_from(number).expect("a small number")
}

/// csi-sanity: NodeGetVolumeStats should fail when volume is not found, and when volume does not exist on the
/// specified path. Specification: NodeGetVolumeStats Errors.
#[test]
fn a_volume_that_is_not_at_the_path_is_not_found() {
    hold_each(async |case, kind| {
        let (volume, target) = case.published(kind).await;
        let (other, unknown) = (case.volume(kind), Volume::unknown("pvc-unknown", kind));
        let pod = case.pod("another");
        let paths = ["some/path".into(), pod.join("absent"), pod.clone(), "/".into(), case.node().kubelet().into()];
        for path in paths.iter().chain([&target.join("inside"), &pod.join("absent/absent")]) {
            for volume in [&volume, &unknown] {
                let path: &PathBuf = path;
                let found = case.stats(case.asking(volume, path)).await;
                assert_eq!(found.err(), Some(Code::NotFound), "{volume:?} at {}", path.display());
            }
        }
        for elsewhere in [&other, &unknown] {
            assert_eq!(case.stats(case.asking(elsewhere, &target)).await.err(), Some(Code::NotFound));
        }
        case.withdraw(&volume, &target).await;
        assert_eq!(case.stats(case.asking(&volume, &target)).await.err(), Some(Code::NotFound), "it was there");
    });
}

/// Specification: NodeGetVolumeStatsResponse; nothing negative, and a condition because VOLUME_CONDITION is announced.
/// csi-sanity: Node Service should work.
#[test]
fn a_filesystem_volume_has_the_bytes_and_inodes_of_its_quota() {
    hold(async |case| {
        let volume = case.fresh_volume(Kind::Filesystem, SIZE);
        let target = case.publish_for(&volume, "pod").await;
        let file = File::create(target.join("file")).expect("a file");
        fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).expect("a MiB");
        drop(file);

        let stats = case.stats(case.asking(&volume, &target)).await.expect("stats");
        let quota = fsquota::get(File::open(&volume.directory).expect("the volume")).expect("its quota");
        let size = signed(SIZE.get());
        let total = signed(quota.limits.inodes.expect("a limit").get());
        let [used, inodes] = [quota.used.bytes.get(), quota.used.inodes.get()].map(signed);
        assert!(used >= 1 << 20, "{used}");
        let wanted = [
            VolumeUsage { unit: Unit::Bytes.into(), total: size, used, available: size - used },
            VolumeUsage { unit: Unit::Inodes.into(), total, used: inodes, available: total - inodes },
        ];
        assert_eq!(stats.usage, wanted);
        let condition = stats.volume_condition.expect("a condition");
        assert!(!condition.abnormal && !condition.message.is_empty(), "{condition:?}");
        case.withdraw(&volume, &target).await;
    });
}

/// A pod has filled the volume: no number is negative.
#[test]
fn a_full_volume_has_nothing_left_and_nothing_negative() {
    hold(async |case| {
        let volume = case.fresh_volume(Kind::Filesystem, Bytes::new(4 << 20));
        let target = case.publish_for(&volume, "pod").await;
        let file = File::create(target.join("file")).expect("a file");
        let mut end = 0;
        for piece in [256 << 10, 4 << 10] {
            while fallocate(&file, FallocateFlags::empty(), end, piece).is_ok() {
                end += piece;
            }
        }
        drop(file);
        let stats = case.stats(case.asking(&volume, &target)).await.expect("stats");
        let [bytes, inodes] = &stats.usage[..] else { panic!("{stats:?}") };
        assert!((0..=64 << 10).contains(&bytes.available) && bytes.used <= bytes.total, "{bytes:?}");
        assert!(inodes.available > 0 && inodes.used > 0, "{inodes:?}");
        assert!(stats.volume_condition.is_some_and(|condition| condition.abnormal), "almost full");
        let whole = case.asking_health(&volume, Some(&target));
        let health = case.health(whole.clone()).await.expect("its health");
        assert_eq!(health.volume_id, volume.id.to_string());
        let [entry] = &health.health_statuses[..] else { panic!("{health:?}") };
        assert_eq!((entry.status(), entry.reason.as_str()), (VolumeHealthErrorType::Degraded, "AlmostFull"));
        let health = case.health(case.asking_health(&volume, None)).await.expect("its health without a path");
        assert_eq!(health.health_statuses, []);
        for (volume_id, code) in [("", Code::InvalidArgument), ("pvc-other", Code::NotFound)] {
            let volume_id = volume_id.to_owned();
            for volume_publish_path in [String::new(), whole.volume_publish_path.clone()] {
                let message =
                    NodeGetVolumeHealthRequest { volume_id: volume_id.clone(), volume_publish_path, ..whole.clone() };
                assert_eq!(case.health(message).await.err(), Some(code));
            }
        }
        case.withdraw(&volume, &target).await;
    });
}

/// Specification: NodeGetVolumeStats; only the total of a block volume is required, and it has no inodes.
#[test]
fn a_block_volume_has_its_size() {
    hold(async |case| {
        let (volume, target) = case.published(Kind::Block).await;
        let stats = case.stats(case.asking(&volume, &target)).await.expect("stats");
        let [bytes] = &stats.usage[..] else { panic!("{stats:?}") };
        assert_eq!((bytes.unit(), bytes.total), (Unit::Bytes, signed(SIZE.get())));
        assert!(bytes.used >= 0 && bytes.available >= 0, "{bytes:?}");
        let condition = stats.volume_condition.expect("a condition");
        assert!(!condition.abnormal && !condition.message.is_empty(), "{condition:?}");
        case.withdraw(&volume, &target).await;
    });
}

/// Specification: NodeGetVolumeStatsRequest, `staging_target_path` is optional. The plugin does not use staging.
#[test]
fn a_staging_path_does_no_harm() {
    hold_published(async |case, _, volume, target| {
        let staging_target_path = "/var/lib/kubelet/staging".to_owned();
        let message = NodeGetVolumeStatsRequest { staging_target_path, ..case.asking(&volume, &target) };
        let staged = case.stats(message).await.expect("stats");
        assert_eq!(staged, case.stats(case.asking(&volume, &target)).await.expect("stats"));
    });
}

#[test]
fn all_targets_have_the_same_statistics() {
    hold_each(async |case, kind| {
        let volume = case.volume(kind);
        let targets = [case.publish_for(&volume, "a").await, case.publish_for(&volume, "b").await];
        let [one, other] = &targets;
        let one = case.stats(case.asking(&volume, one)).await.expect("stats");
        assert_eq!(one, case.stats(case.asking(&volume, other)).await.expect("stats"));
        for target in &targets {
            case.withdraw(&volume, target).await;
        }
    });
}

/// Statistics change nothing, and exist only for published volumes.
#[test]
fn malformed_messages_are_answered() {
    with_case(|case| {
        let places = places(case);
        let message = (volume_id(&places), path(case, &places), text()).prop_map(
            |(volume_id, volume_path, staging_target_path)| NodeGetVolumeStatsRequest {
                volume_id,
                volume_path,
                staging_target_path,
            },
        );
        let whole = place(&places).prop_map(|(volume, target)| case.asking(&volume, &target));
        let message = prop_oneof![3 => message, 1 => whole];
        let codes = [Code::Ok, Code::InvalidArgument, Code::NotFound];
        while_published(case, &places[..2], || {
            all_answered(case, message, &codes, async |message| case.stats(message).await, nothing_to_do);
        });
    });
}
