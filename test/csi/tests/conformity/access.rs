//! Access modes, and what read-only means.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use conformity::{Kind, hold_each, read_only, with_mode};
use loopdev::Device;
use proto::csi::NodePublishVolumeRequest;
use proto::csi::volume_capability::AccessMode;
use proto::csi::volume_capability::access_mode::Mode;
use tonic::Code;

/// Specification: Error Scheme, unsupported field, because the volume is on one node only. The test also sends numbers
/// of a newer CSI.
#[test]
fn modes_of_many_nodes_and_unknown_modes_are_invalid() {
    hold_each(async |case, kind| {
        let (volume, target) = case.place(kind);
        let many = [Mode::MultiNodeReaderOnly, Mode::MultiNodeSingleWriter, Mode::MultiNodeMultiWriter];
        for mode in many.map(i32::from).into_iter().chain([8, -1, i32::MAX]) {
            let mut message = case.publishing(&volume, &target);
            message.volume_capability.iter_mut().for_each(|found| found.access_mode = Some(AccessMode { mode }));
            let message = NodePublishVolumeRequest { readonly: mode % 2 == 0, ..message };
            assert_eq!(case.publish(message).await, Err(Code::InvalidArgument), "{mode}");
        }
        case.assert_absent(&target);
    });
}

/// Whether anything can be written through a target.
fn can_write(kind: Kind, target: &Path) -> bool {
    match kind {
        Kind::Filesystem => match fs::write(target.join("file"), "x") {
            Ok(()) => true,
            Err(reason) => {
                assert_eq!(reason.kind(), ErrorKind::ReadOnlyFilesystem, "{reason}");
                false
            }
        },
        // The device rejects writes of root too, even if it can be opened. A pod's runtime creates another node, on a
        // writable mount.
        Kind::Block => {
            let device = Device::open(target).expect("a device").path();
            [target, device.as_path()].into_iter().any(|node| {
                let opened = File::options().write(true).open(node);
                opened.is_ok_and(|mut device| device.write_all(&[1; 4096]).and_then(|()| device.sync_all()).is_ok())
            })
        }
    }
}

/// Specification: NodePublishVolumeRequest, `readonly`. A device itself rejects writes, also through another node.
#[test]
fn read_only_is_read_only() {
    hold_each(async |case, kind| {
        let (volume, target) = case.place(kind);
        let whole = case.publishing(&volume, &target);
        let messages = [read_only(whole.clone()), with_mode(whole.clone(), Mode::SingleNodeReaderOnly)];
        for message in messages {
            case.publish(message).await.expect("publish");
            assert!(!can_write(kind, &target), "{kind:?}");
            case.withdraw(&volume, &target).await;
        }
        case.publish(whole).await.expect("publish");
        assert!(can_write(kind, &target), "{kind:?}");
        case.withdraw(&volume, &target).await;
    });
}

/// A pod that reads and a pod that writes share a volume. The read-only target is the first one.
#[test]
fn a_read_only_target_stays_so_beside_a_writable_one() {
    hold_each(async |case, kind| {
        let volume = case.volume(kind);
        let (writes, reads) = (case.target(&volume, "writes"), case.target(&volume, "reads"));
        case.publish(read_only(case.publishing(&volume, &reads))).await.expect("publish read-only");
        case.publish(case.publishing(&volume, &writes)).await.expect("publish");
        assert!(can_write(kind, &writes) && !can_write(kind, &reads), "{kind:?}");
        case.withdraw(&volume, &writes).await;
        assert!(!can_write(kind, &reads), "{kind:?}");
        case.withdraw(&volume, &reads).await;
    });
}

/// Specification: NodePublishVolume, row SINGLE_NODE_MULTI_WRITER; the modes of targets may differ. A reading pod reads
/// the bytes that a writing pod wrote, and no target changes the access of another one.
#[test]
fn targets_share_the_data_and_keep_their_access() {
    hold_each(async |case, kind| {
        let volume = case.volume(kind);
        let [writes, reads, again] = ["writes", "reads", "again"].map(|pod| case.target(&volume, pod));
        // The second round repeats each call beside the other targets.
        for _ in 0..2 {
            case.publish(case.publishing(&volume, &writes)).await.expect("publish");
            case.publish(read_only(case.publishing(&volume, &reads))).await.expect("publish read-only");
            case.publish(case.publishing(&volume, &again)).await.expect("publish again");
        }
        for target in [&writes, &reads, &again] {
            case.assert_published(&volume, target, *target == reads);
            assert_eq!(can_write(kind, target), *target != reads, "{kind:?}");
        }
        let path = |target: &Path| match kind {
            Kind::Filesystem => target.join("shared"),
            Kind::Block => target.to_owned(),
        };
        let block = [0x5a; 4096];
        let file = File::options().write(true).create(kind == Kind::Filesystem).open(path(&writes)).expect("open");
        file.write_all_at(&block, 0).and_then(|()| file.sync_all()).expect("write");
        drop(file);
        let is_read = || {
            let mut found = [0; 4096];
            File::open(path(&reads)).and_then(|file| file.read_exact_at(&mut found, 0)).expect("read");
            found == block
        };
        assert!(is_read(), "{kind:?}");
        // Without a writable target, a block volume has only its read-only device.
        case.withdraw(&volume, &writes).await;
        case.withdraw(&volume, &again).await;
        assert!(is_read() && !can_write(kind, &reads), "{kind:?}");
        case.withdraw(&volume, &reads).await;
    });
}
