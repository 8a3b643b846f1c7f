//! NodeExpandVolume. The provisioner expands the volume before the call; in these tests, the store does.

use std::fs::File;
use std::io::{Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use conformity::{Kind, SIZE, Volume, capability, hold_each, hold_published, with_case};
use nix::sys::statvfs::statvfs;
use proptest::option;
use proptest::prelude::*;
use proto::csi::volume_capability::access_mode::Mode;
use proto::csi::{CapacityRange, NodeExpandVolumeRequest};
use tonic::Code;
use units::Bytes;
use volume::Volumes as _;

use crate::malformed::{
    all_answered, capabilities, map, nothing_to_do, number, path, place, places, text, volume_id, while_published,
};

const DOUBLE: Bytes = Bytes::new(2 * SIZE.get());

fn signed(size: Bytes) -> i64 {
    i64::try_from(size.get()).expect("a small size")
}

/// The volume's size as a pod sees it.
fn visible(kind: Kind, target: &Path) -> Bytes {
    Bytes::new(match kind {
        Kind::Filesystem => {
            let seen = statvfs(target).expect("statvfs");
            seen.blocks() * seen.fragment_size()
        }
        Kind::Block => {
            let mut device = File::open(target).expect("open");
            device.seek(SeekFrom::End(0)).expect("its end")
        }
    })
}

/// csi-sanity: NodeExpandVolume should fail when volume is not found. Specification: NodeExpandVolume Errors, and
/// "must be called after successful NodePublishVolume".
#[test]
fn a_volume_that_is_not_at_the_path_is_not_found() {
    hold_each(async |case, kind| {
        let (volume, target) = case.published(kind).await;
        let (other, unknown) = (case.volume(kind), Volume::unknown("pvc-unknown", kind));
        for path in [Path::new("some/path"), &case.pod("another").join("absent"), Path::new("/")] {
            for volume in [&volume, &unknown] {
                let expanded = case.expand(case.expanding(volume, path, None)).await;
                assert_eq!(expanded, Err(Code::NotFound), "{volume:?} at {}", path.display());
            }
        }
        for elsewhere in [&other, &unknown] {
            assert_eq!(case.expand(case.expanding(elsewhere, &target, None)).await, Err(Code::NotFound));
        }
        case.withdraw(&volume, &target).await;
        assert_eq!(case.expand(case.expanding(&volume, &target, None)).await, Err(Code::NotFound), "it was there");
    });
}

/// Specification: NodeExpandVolume; "already larger than or equal to the target capacity" is OK. `capacity_range` is
/// optional.
#[test]
fn a_volume_that_is_large_enough_keeps_its_size() {
    hold_published(async |case, kind, volume, target| {
        let size = signed(SIZE);
        let ranges = [(0, 0), (1, 0), (size, 0), (size, size), (0, size), (size, i64::MAX)];
        for range in [None].into_iter().chain(ranges.map(Some)) {
            let capacity = case.expand(case.expanding(&volume, &target, range)).await;
            assert_eq!(capacity, Ok(size), "{kind:?} {range:?}");
        }
        assert_eq!(visible(kind, &target), SIZE);
    });
}

/// Specification: NodeExpandVolume Errors, Unsupported capacity_range.
#[test]
fn a_size_that_cannot_be_had_is_out_of_range() {
    hold_published(async |case, kind, volume, target| {
        let size = signed(SIZE);
        let ranges = [(size + 1, 0), (i64::MAX, 0), (0, size - 1), (-1, 0), (0, -1), (i64::MIN, i64::MIN)];
        for range in ranges {
            let expanded = case.expand(case.expanding(&volume, &target, Some(range))).await;
            assert_eq!(expanded, Err(Code::OutOfRange), "{kind:?} {range:?}");
        }
        assert_eq!(visible(kind, &target), SIZE);
    });
}

/// csi-sanity: NodeExpandVolume should work if node-expand is called after node-publish.
#[test]
fn a_published_volume_grows_under_its_pod() {
    hold_each(async |case, kind| {
        let volume = case.fresh_volume(kind, SIZE);
        let target = case.publish_for(&volume, "pod").await;
        // The pod's descriptor, open all the time.
        let open = (kind == Kind::Block).then(|| File::options().read(true).write(true).open(&target));
        let message = case.expanding(&volume, &target, Some((signed(DOUBLE), 0)));
        assert_eq!(case.expand(message.clone()).await, Err(Code::OutOfRange), "not expanded yet");

        case.node().volumes().store().expand(&volume.id, DOUBLE).expect("expand");
        for _ in 0..2 {
            assert_eq!(case.expand(message.clone()).await, Ok(signed(DOUBLE)));
            assert_eq!(visible(kind, &target), DOUBLE);
        }
        if let Some(device) = open {
            let device = device.expect("open");
            let block = [9; 4096];
            device.write_all_at(&block, DOUBLE.get() - 4096).and_then(|()| device.sync_all()).expect("write");
        }
        assert_eq!(case.expand(case.expanding(&volume, &target, None)).await, Ok(signed(DOUBLE)));
        case.withdraw(&volume, &target).await;
    });
}

/// A volume that grew while it was not published has its new size at the next publish.
#[test]
fn a_volume_that_grew_offline_has_its_size_at_once() {
    hold_each(async |case, kind| {
        let volume = case.fresh_volume(kind, SIZE);
        case.node().volumes().store().expand(&volume.id, DOUBLE).expect("expand");
        let target = case.publish_for(&volume, "pod").await;
        assert_eq!(visible(kind, &target), DOUBLE);
        let message = case.expanding(&volume, &target, Some((signed(DOUBLE), signed(DOUBLE))));
        assert_eq!(case.expand(message).await, Ok(signed(DOUBLE)));
        case.withdraw(&volume, &target).await;
    });
}

/// Specification: NodeExpandVolumeRequest, `volume_capability` is optional; NodeExpandVolume Errors, Exceeds
/// capabilities.
#[test]
fn a_capability_is_optional_and_has_to_fit() {
    hold_published(async |case, kind, volume, target| {
        let whole = case.expanding(&volume, &target, None);
        let without = NodeExpandVolumeRequest { volume_capability: None, ..whole.clone() };
        assert_eq!(case.expand(without).await, Ok(signed(SIZE)));
        let other = Some(capability(kind.other(), Mode::SingleNodeMultiWriter));
        let other = NodeExpandVolumeRequest { volume_capability: other, ..whole };
        assert_eq!(case.expand(other).await, Err(Code::InvalidArgument), "{kind:?}");
    });
}

#[test]
fn all_targets_grow_together() {
    hold_each(async |case, kind| {
        let volume = case.fresh_volume(kind, SIZE);
        let targets = [case.publish_for(&volume, "a").await, case.publish_for(&volume, "b").await];
        case.node().volumes().store().expand(&volume.id, DOUBLE).expect("expand");
        let message = case.expanding(&volume, &targets[0], Some((signed(DOUBLE), 0)));
        assert_eq!(case.expand(message).await, Ok(signed(DOUBLE)));
        for target in &targets {
            assert_eq!(visible(kind, target), DOUBLE);
            case.withdraw(&volume, target).await;
        }
    });
}

/// The ranges include the smallest and the largest numbers.
#[test]
fn malformed_messages_are_answered() {
    with_case(|case| {
        let places = places(case);
        let range = (number(), number())
            .prop_map(|(required_bytes, limit_bytes)| CapacityRange { required_bytes, limit_bytes });
        let message = (volume_id(&places), path(case, &places), option::of(range), capabilities(), map(), text());
        let message =
            message.prop_map(|(volume_id, volume_path, capacity_range, volume_capability, secrets, staging)| {
                NodeExpandVolumeRequest {
                    volume_id,
                    volume_path,
                    capacity_range,
                    volume_capability,
                    secrets,
                    staging_target_path: staging,
                }
            });
        let whole = (place(&places), option::of(Just((1, 0))))
            .prop_map(|((volume, target), range)| case.expanding(&volume, &target, range));
        let message = prop_oneof![3 => message, 1 => whole];
        let codes = [Code::Ok, Code::InvalidArgument, Code::NotFound, Code::OutOfRange];
        while_published(case, &places[..2], || {
            all_answered(case, message, &codes, async |message| case.expand(message).await, nothing_to_do);
        });
    });
}
