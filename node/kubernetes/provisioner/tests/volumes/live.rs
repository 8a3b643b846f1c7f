//! Whether the block device of a volume is attached, on a real disk.

use dir::Ensured;
use loopdev::{Config, Control, Detach};
use units::{Bytes, Inodes};
use volume::{
    Access, Allocation, Claim, LiveVolume, LiveVolumeError, Mode, OpenError, Owner, Request, Settings, VolumeId,
    Volumes as _,
};

use crate::node::Node;

const SIZE: Bytes = Bytes::new(16 << 20);
const LARGER: Bytes = Bytes::new(40 << 20);

fn node() -> Node {
    Node::new(Settings { reserve: Bytes::new(64 << 20), ..Settings::default() })
}

impl Node {
    fn provisioned(&self, name: &str, mode: Mode) -> VolumeId {
        let claim = Claim { uid: "u".into(), namespace: "default".into(), name: name.into() };
        let id = name.parse().unwrap();
        self.store
            .provision(
                &id,
                &Request { claim, owner: Owner::Provisioner, class: "local".into(), mode, size: SIZE, source: None },
            )
            .unwrap();
        id
    }
}

#[test]
fn a_disk_is_attached_while_a_loop_device_has_its_image() {
    let node = node();
    let [id, other] =
        ["pvc-1", "pvc-2"].map(|name| node.provisioned(name, Mode::Block { allocation: Allocation::Thick }));
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
    let node = node();
    let id = node.provisioned("pvc-1", Mode::Filesystem { inodes: Inodes::new(64) });
    node.store.announce(&id).unwrap();
    assert_eq!(node.store.live_volume(&id).unwrap(), LiveVolume { size: SIZE, attached: false });
    node.store.retire(&id).unwrap();
    for missing in [id, "pvc-none".parse().unwrap()] {
        let error = node.store.live_volume(&missing).unwrap_err();
        assert!(matches!(error, LiveVolumeError::Open(OpenError::Unknown { .. })), "{error}");
    }
}
