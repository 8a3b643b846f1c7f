//! NodePublishVolume: requests, and the targets that they create.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use conformity::{Kind, Volume, capability, hold, hold_each, hold_published, read_only, with_case, with_mode};
use proptest::prelude::*;
use proto::csi::volume_capability::access_mode::Mode;
use proto::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use proto::csi::{NodePublishVolumeRequest, NodeUnpublishVolumeRequest, VolumeCapability};
use tonic::Code;
use volume::Volumes as _;

use crate::malformed::{all_answered, capabilities, map, path, place, places, text, volume_id};

/// csi-sanity: NodePublishVolume should fail when no volume id, no target path, no volume capability is provided.
/// Specification: Error Scheme, Missing required field.
#[test]
fn missing_fields_are_invalid() {
    hold_each(async |case, kind| {
        let (volume, target) = case.place(kind);
        let whole = case.publishing(&volume, &target);
        let partial = |change: fn(&mut VolumeCapability)| {
            let mut message = whole.clone();
            message.volume_capability.iter_mut().for_each(change);
            message
        };
        let messages = [
            NodePublishVolumeRequest::default(),
            NodePublishVolumeRequest { volume_id: String::new(), ..whole.clone() },
            NodePublishVolumeRequest { target_path: String::new(), ..whole.clone() },
            NodePublishVolumeRequest { volume_capability: None, ..whole.clone() },
            partial(|capability| capability.access_type = None),
            partial(|capability| capability.access_mode = None),
            partial(|capability| capability.access_mode = Some(AccessMode { mode: Mode::Unknown.into() })),
        ];
        for message in messages {
            assert_eq!(case.publish(message.clone()).await, Err(Code::InvalidArgument), "{message:?}");
        }
        case.assert_absent(&target);
    });
}

/// Specification: Error Scheme, Invalid or unsupported field.
#[test]
fn an_id_that_no_volume_can_have_is_invalid() {
    hold(async |case| {
        let (volume, target) = case.place(Kind::Filesystem);
        let long = format!("pvc-{}", "a".repeat(200));
        for id in ["a", "1vc", "..", "../pvc", "pvc\0", "PVC-1", "pvc-1-", "pvc-ü", &long] {
            let message = NodePublishVolumeRequest { volume_id: id.to_owned(), ..case.publishing(&volume, &target) };
            assert_eq!(case.publish(message).await, Err(Code::InvalidArgument), "{id:?}");
        }
        case.assert_absent(&target);
    });
}

/// Specification: NodePublishVolume Errors, Volume does not exist.
#[test]
fn a_volume_that_does_not_exist_is_not_found() {
    hold_each(async |case, kind| {
        let unknown = Volume::unknown("pvc-unknown", kind);
        let target = case.pod("pod").join("mount");
        assert_eq!(case.publish(case.publishing(&unknown, &target)).await, Err(Code::NotFound));
        case.assert_absent(&target);
    });
}

/// The volume keeps the data that a pod writes, and the next pod reads them.
#[test]
fn written_data_is_there_after_the_next_publish() {
    hold_each(async |case, kind| {
        let (volume, target) = case.published(kind).await;
        let path = |target: &Path| match kind {
            Kind::Filesystem => target.join("file"),
            Kind::Block => target.to_owned(),
        };
        let text = format!("written for {}", target.display());
        let mut block = text.clone().into_bytes();
        block.resize(4096, 0);
        let options = File::options().write(true).create(kind == Kind::Filesystem).open(path(&target));
        let mut file = options.expect("open");
        file.write_all(&block).and_then(|()| file.sync_all()).expect("write");
        drop(file);
        case.withdraw(&volume, &target).await;

        let again = case.target(&volume, "another");
        case.publish(case.publishing(&volume, &again)).await.expect("publish");
        let mut found = vec![0; block.len()];
        let mut file = File::open(path(&again)).expect("open");
        std::io::Read::read_exact(&mut file, &mut found).expect("read");
        drop(file);
        assert_eq!(found, block);
        case.withdraw(&volume, &again).await;
    });
}

/// csi-sanity: Node Service should be idempotent. Specification: NodePublishVolume, first column of the table.
#[test]
fn the_same_call_again_changes_nothing() {
    hold_each(async |case, kind| {
        for reads_only in [false, true] {
            let (volume, target) = case.place(kind);
            let message = case.publishing(&volume, &target);
            let message = if reads_only { read_only(message) } else { message };
            for _ in 0..3 {
                case.publish(message.clone()).await.expect("publish");
                case.assert_published(&volume, &target, reads_only);
            }
            case.withdraw(&volume, &target).await;
        }
    });
}

/// Specification: NodePublishVolume, second column of the table; NodePublishVolume Errors, Volume published but is
/// incompatible.
#[test]
fn the_same_target_with_other_arguments_exists_already() {
    hold_published(async |case, _, volume, target| {
        let writable = case.publishing(&volume, &target);
        assert_eq!(case.publish(read_only(writable.clone())).await, Err(Code::AlreadyExists));
        let reader = with_mode(writable.clone(), Mode::SingleNodeReaderOnly);
        assert_eq!(case.publish(reader).await, Err(Code::AlreadyExists));
        case.assert_published(&volume, &target, false);
        case.withdraw(&volume, &target).await;

        case.publish(read_only(writable.clone())).await.expect("publish read-only");
        assert_eq!(case.publish(writable).await, Err(Code::AlreadyExists));
        case.assert_published(&volume, &target, true);
    });
}

/// The target of another volume is in use.
#[test]
fn a_target_holds_one_volume() {
    hold_published(async |case, kind, volume, target| {
        let other = case.volume(kind);
        assert_eq!(case.publish(case.publishing(&other, &target)).await, Err(Code::AlreadyExists));
        case.assert_published(&volume, &target, false);
    });
}

/// Specification: NodePublishVolume, third and fourth column of the table, rows SINGLE_NODE_SINGLE_WRITER and Non
/// MULTI_NODE. SINGLE_NODE_WRITER is accepted beside the modes that replace it.
#[test]
fn a_mode_for_one_target_has_one() {
    hold_each(async |case, kind| {
        let volume = case.volume(kind);
        let (first, second) = (case.target(&volume, "first"), case.target(&volume, "second"));
        for mode in [Mode::SingleNodeSingleWriter, Mode::SingleNodeWriter, Mode::SingleNodeReaderOnly] {
            case.publish(with_mode(case.publishing(&volume, &first), mode)).await.expect("publish");
            case.assert_published(&volume, &first, mode == Mode::SingleNodeReaderOnly);
            let same = with_mode(case.publishing(&volume, &second), mode);
            for message in [same.clone(), NodePublishVolumeRequest { readonly: !same.readonly, ..same }] {
                assert_eq!(case.publish(message).await, Err(Code::FailedPrecondition), "{kind:?} {mode:?}");
            }
            case.assert_absent(&second);
            case.withdraw(&volume, &first).await;
            case.publish(with_mode(case.publishing(&volume, &second), mode)).await.expect("it has no target now");
            case.withdraw(&volume, &second).await;
        }
    });
}

/// Specification: Error Scheme, Invalid or unsupported field; VOLUME_MOUNT_GROUP is
/// not announced.
#[test]
fn mount_options_that_would_be_ignored_are_invalid() {
    hold(async |case| {
        let (volume, target) = case.place(Kind::Filesystem);
        let mounts = [
            MountVolume { fs_type: "ext4".to_owned(), ..MountVolume::default() },
            MountVolume { mount_flags: vec!["noatime".to_owned()], ..MountVolume::default() },
            MountVolume { volume_mount_group: "1000".to_owned(), ..MountVolume::default() },
        ];
        for mount in mounts {
            let access_type = Some(AccessType::Mount(mount.clone()));
            let capability = VolumeCapability { access_type, ..capability(Kind::Filesystem, Mode::SingleNodeWriter) };
            let volume_capability = Some(capability);
            let message = NodePublishVolumeRequest { volume_capability, ..case.publishing(&volume, &target) };
            assert_eq!(case.publish(message).await, Err(Code::InvalidArgument), "{mount:?}");
        }
        case.assert_absent(&target);
    });
}

/// Specification: NodePublishVolumeRequest; optional fields that a driver without staging and secrets does not use. The
/// kubelet sends the context of the PersistentVolume.
#[test]
fn unused_fields_are_ignored() {
    hold_each(async |case, kind| {
        let (volume, target) = case.place(kind);
        let context: HashMap<_, _> =
            (0..30).map(|number| (format!("local.granary.dev/key-{number}"), "v".repeat(100))).collect();
        let message = NodePublishVolumeRequest {
            publish_context: context.clone(),
            secrets: context.clone(),
            volume_context: context,
            staging_target_path: "/var/lib/kubelet/staging".to_owned(),
            ..case.publishing(&volume, &target)
        };
        case.publish(message).await.expect("publish");
        case.publish(case.publishing(&volume, &target)).await.expect("the same volume at the same target");
        case.withdraw(&volume, &target).await;
    });
}

/// Specification: NodePublishVolume Errors, Exceeds capabilities; Error Scheme, unsupported field. The mode of the
/// volume differs.
#[test]
fn a_volume_of_the_other_kind_is_refused() {
    hold_each(async |case, kind| {
        let (volume, target) = case.place(kind);
        let other = Some(capability(kind.other(), Mode::SingleNodeMultiWriter));
        let message = NodePublishVolumeRequest { volume_capability: other, ..case.publishing(&volume, &target) };
        assert_eq!(case.publish(message.clone()).await, Err(Code::InvalidArgument));
        case.assert_absent(&target);

        case.publish(case.publishing(&volume, &target)).await.expect("publish");
        let refused = case.publish(message).await.expect_err("it is there as something else");
        let codes = [Code::AlreadyExists, Code::FailedPrecondition, Code::InvalidArgument];
        assert!(codes.contains(&refused), "{refused:?}");
        case.assert_published(&volume, &target, false);
        case.withdraw(&volume, &target).await;
    });
}

/// The kubelet retries a volume that is still being provisioned.
#[test]
fn a_volume_that_is_not_announced_yet_is_unavailable() {
    hold_each(async |case, kind| {
        let volume = case.staged_volume(kind, conformity::SIZE);
        let target = case.target(&volume, "pod");
        assert_eq!(case.publish(case.publishing(&volume, &target)).await, Err(Code::Unavailable));
        case.assert_absent(&target);
        case.node().volumes().store().announce(&volume.id).expect("announce");
        case.publish(case.publishing(&volume, &target)).await.expect("publish");
        case.withdraw(&volume, &target).await;
    });
}

/// A volume in the trash no longer exists. Specification: NodePublishVolume Errors, Volume does not exist.
#[test]
fn a_volume_that_is_being_deleted_is_not_found() {
    hold_each(async |case, kind| {
        let volume = case.fresh_volume(kind, conformity::SIZE);
        let target = case.target(&volume, "pod");
        case.node().volumes().store().retire(&volume.id).expect("retire");
        assert_eq!(case.publish(case.publishing(&volume, &target)).await, Err(Code::NotFound));
        case.assert_absent(&target);
    });
}

/// The root of the mount is the volume: `..` leads to the parent of the target.
#[test]
fn a_pod_sees_its_volume_alone() {
    hold(async |case| {
        let (volume, target) = case.published(Kind::Filesystem).await;
        fs::write(target.join("mine"), "mine").expect("write");
        let here = fs::metadata(target.join("..")).expect("its parent");
        let parent = fs::metadata(target.parent().expect("a parent")).expect("its parent");
        assert_eq!(std::os::unix::fs::MetadataExt::ino(&here), std::os::unix::fs::MetadataExt::ino(&parent));
        assert!(volume.directory.join("mine").exists());
        fs::remove_file(target.join("mine")).expect("remove");
        case.withdraw(&volume, &target).await;
    });
}

/// An unpublish with the same volume and path undoes an accepted publish.
#[test]
fn malformed_messages_are_answered() {
    with_case(|case| {
        let places = places(case);
        let message = (volume_id(&places), path(case, &places), capabilities(), any::<bool>(), map(), map(), text());
        let message =
            message.prop_map(|(volume_id, target_path, volume_capability, readonly, context, secrets, staging)| {
                NodePublishVolumeRequest {
                    volume_id,
                    target_path,
                    volume_capability,
                    readonly,
                    volume_context: context,
                    secrets,
                    staging_target_path: staging,
                    ..NodePublishVolumeRequest::default()
                }
            });
        let whole = (place(&places), any::<bool>()).prop_map(|((volume, target), readonly)| NodePublishVolumeRequest {
            readonly,
            ..case.publishing(&volume, &target)
        });
        let message = prop_oneof![3 => message, 1 => whole];
        let codes = [Code::Ok, Code::InvalidArgument, Code::NotFound, Code::AlreadyExists, Code::FailedPrecondition];
        let take_away = |messages| {
            for NodePublishVolumeRequest { volume_id, target_path, .. } in messages {
                prop_assert!(places.iter().any(|(volume, _)| volume.id.as_str() == volume_id), "{volume_id:?}");
                prop_assert!(Path::new(&target_path).starts_with(case.node().kubelet()), "{target_path:?}");
                let taken = case.unpublish(NodeUnpublishVolumeRequest { volume_id, target_path });
                prop_assert_eq!(case.node().block_on(taken), Ok(()));
            }
            Ok(())
        };
        all_answered(case, message, &codes, async |message| case.publish(message).await, take_away);
    });
}
