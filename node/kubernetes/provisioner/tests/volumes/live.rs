//! Whether the block device of a volume is attached, on a real disk.

use dir::Ensured;
use loopdev::{Config, Control, Detach};
use units::Bytes;
use volume::{Access, Allocation, LiveVolume, LiveVolumeError, OpenError, Request, VolumeId, Volumes as _};

use crate::node::{Node, SIZE, disk, files, id};

const LARGER: Bytes = Bytes::new(40 << 20);

fn provisioned(node: &Node, request: &Request) -> VolumeId {
    let id = id(&request.claim.name);
    node.store.provision(&id, request).unwrap();
    id
}

#[test]
fn a_disk_is_attached_while_a_loop_device_has_its_image() {
    let node = Node::new();
    let [id, other] = ["pvc-1", "pvc-2"].map(|name| provisioned(&node, &disk(name, Allocation::Thick)));
    let early = node.store.live_volume(&id).unwrap_err();
    assert!(matches!(early, LiveVolumeError::Open(OpenError::NotAnnounced { .. })), "{early}");
    for id in [&id, &other] {
        node.store.announce(id).unwrap();
        assert_eq!(node.store.live_volume(id).unwrap(), LiveVolume { size: SIZE, attached: false });
    }
    let image = node.store.open_volume(&id).unwrap().image(Access::ReadWrite).unwrap();
    let device = Control::open().unwrap().attach(&image, &Config::default()).unwrap();
    assert!(matches!(node.store.expand(&id, LARGER).unwrap(), Ensured::Created(_)));
    assert_eq!(node.store.live_volume(&id).unwrap(), LiveVolume { size: LARGER, attached: true });
    assert_eq!(device.status().unwrap().size, SIZE, "the kubelet refreshes it");
    assert!(!node.store.live_volume(&other).unwrap().attached, "the device is of another volume");
    assert_eq!(device.detach(&image).unwrap(), Detach::Detached);
    assert!(!node.store.live_volume(&id).unwrap().attached);
}

#[test]
fn a_filesystem_is_never_attached() {
    let node = Node::new();
    let id = provisioned(&node, &files("pvc-1"));
    node.store.announce(&id).unwrap();
    assert_eq!(node.store.live_volume(&id).unwrap(), LiveVolume { size: SIZE, attached: false });
    node.store.retire(&id).unwrap();
    for missing in [id, "pvc-none".parse().unwrap()] {
        let error = node.store.live_volume(&missing).unwrap_err();
        assert!(matches!(error, LiveVolumeError::Open(OpenError::Unknown { .. })), "{error}");
    }
}
