//! NodeUnpublishVolume: works in every state, and removes only objects that the plugin created.

use std::fs::{self, File};

use conformity::{Kind, SIZE, Volume, hold_each, hold_published, with_case};
use proptest::prelude::*;
use proto::csi::NodeUnpublishVolumeRequest;
use tonic::Code;
use volume::{Error, Volumes as _};

use crate::malformed::{all_answered, nothing_to_do, path, places, volume_id, while_published};

/// csi-sanity: NodeUnpublishVolume should remove target path. Specification: NodeUnpublishVolume is idempotent.
#[test]
fn the_same_call_again_is_ok() {
    hold_each(async |case, kind| {
        let (volume, target) = case.published(kind).await;
        for _ in 0..3 {
            case.withdraw(&volume, &target).await;
        }
    });
}

/// An interrupted call or a restart of the machine left the target.
#[test]
fn a_partial_target_is_removed() {
    hold_each(async |case, kind| {
        let (volume, target) = case.place(kind);
        match kind {
            Kind::Filesystem => fs::create_dir(&target),
            Kind::Block => File::create_new(&target).map(drop),
        }
        .expect("a remainder");
        case.withdraw(&volume, &target).await;
    });
}

/// The kubelet would retry forever after an error.
#[test]
fn an_unknown_volume_is_unpublished_already() {
    hold_each(async |case, kind| {
        let unknown = Volume::unknown("pvc-unknown", kind);
        let target = case.pod("pod").join("mount");
        case.withdraw(&unknown, &target).await;
        case.withdraw(&unknown, &target.join("parent/absent")).await;
    });
}

/// An administrator removed a claim's finalizer, or force-deleted a pod. Specification: DeleteVolume Errors, Volume in
/// use.
#[test]
fn a_volume_is_not_deleted_while_it_is_published() {
    hold_each(async |case, kind| {
        let volume = case.fresh_volume(kind, SIZE);
        let target = case.publish_for(&volume, "pod").await;
        let store = case.node().volumes().store();
        let refused = store.retire(&volume.id).expect_err("it is published");
        assert!(matches!(&refused, Error::Published { target: found, .. } if *found == target), "{refused}");
        case.assert_published(&volume, &target, false);
        case.withdraw(&volume, &target).await;
        store.retire(&volume.id).expect("it is not published any more");
        case.withdraw(&volume, &target).await;
    });
}

/// Specification: Error Scheme; a call must not remove the target of another volume.
#[test]
fn the_target_of_another_volume_stays() {
    hold_published(async |case, kind, volume, target| {
        for other in [case.volume(kind), Volume::unknown("pvc-unknown", kind)] {
            let refused = case.unpublish(case.unpublishing(&other, &target)).await;
            assert_eq!(refused, Err(Code::FailedPrecondition));
        }
        case.assert_published(&volume, &target, false);
    });
}

/// A program of the node has a file of the volume open: the mount stays until the program closes the file.
#[test]
fn a_target_in_use_stays_mounted() {
    hold_published(async |case, kind, volume, target| {
        let held = match kind {
            Kind::Filesystem => File::create(target.join("held")),
            Kind::Block => File::open(&target),
        }
        .expect("open");
        for _ in 0..2 {
            let refused = case.unpublish(case.unpublishing(&volume, &target)).await;
            assert_eq!(refused, Err(Code::FailedPrecondition), "{kind:?}");
            case.assert_published(&volume, &target, false);
        }
        drop(held);
    });
}

/// Other targets stay published.
#[test]
fn malformed_messages_are_answered() {
    with_case(|case| {
        let places = places(case);
        let (published, others) = places.split_at(2);
        let message = (volume_id(others), path(case, &places))
            .prop_map(|(volume_id, target_path)| NodeUnpublishVolumeRequest { volume_id, target_path });
        let codes = [Code::Ok, Code::InvalidArgument, Code::FailedPrecondition];
        while_published(case, published, || {
            all_answered(case, message, &codes, async |message| case.unpublish(message).await, nothing_to_do);
        });
    });
}
