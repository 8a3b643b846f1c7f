//! Access modes, and what read-only means.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use conformity::{Kind, hold_each, read_only, with_mode};
use proto::csi::NodePublishVolumeRequest;
use proto::csi::volume_capability::AccessMode;
use proto::csi::volume_capability::access_mode::Mode;
use tonic::Code;

/// Specification: NodePublishVolume; SINGLE_NODE_WRITER is accepted beside the modes that replace it.
#[test]
fn modes_of_one_node_are_accepted() {
    hold_each(async |case, kind| {
        let (volume, target) = case.place(kind);
        let modes = [
            (Mode::SingleNodeWriter, false),
            (Mode::SingleNodeSingleWriter, false),
            (Mode::SingleNodeMultiWriter, false),
            (Mode::SingleNodeReaderOnly, true),
        ];
        for (mode, reads_only) in modes {
            case.publish(with_mode(case.publishing(&volume, &target), mode)).await.expect("publish");
            case.assert_published(&volume, &target, reads_only);
            case.withdraw(&volume, &target).await;
        }
    });
}

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
        // The device rejects writes of root too, even if it can be opened.
        Kind::Block => File::options()
            .write(true)
            .open(target)
            .is_ok_and(|mut device| device.write_all(&[1; 4096]).and_then(|()| device.sync_all()).is_ok()),
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

/// A pod that reads and a pod that writes share a volume. Neither target changes the access of the other.
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

/// The reading pod reads the bytes that the writing pod wrote.
#[test]
fn a_reader_sees_what_a_writer_wrote() {
    hold_each(async |case, kind| {
        let volume = case.volume(kind);
        let (writes, reads) = (case.target(&volume, "writes"), case.target(&volume, "reads"));
        case.publish(case.publishing(&volume, &writes)).await.expect("publish");
        case.publish(read_only(case.publishing(&volume, &reads))).await.expect("publish read-only");
        let path = |target: &Path| match kind {
            Kind::Filesystem => target.join("shared"),
            Kind::Block => target.to_owned(),
        };
        let block = [0x5a; 4096];
        let file = File::options().write(true).create(kind == Kind::Filesystem).open(path(&writes)).expect("open");
        file.write_all_at(&block, 0).and_then(|()| file.sync_all()).expect("write");
        drop(file);
        let mut found = [0; 4096];
        File::open(path(&reads)).and_then(|file| file.read_exact_at(&mut found, 0)).expect("read");
        assert_eq!(found, block);
        case.withdraw(&volume, &reads).await;
        case.withdraw(&volume, &writes).await;
    });
}
