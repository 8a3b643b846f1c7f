//! One run of a behavior.

use std::cell::RefCell;
use std::fs;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use mount::Attributes;
use proto::csi::{
    NodeExpandVolumeRequest, NodeGetVolumeHealthRequest, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodeUnpublishVolumeRequest, VolumeHealth,
};
use tonic::Code;
use units::Bytes;
use volume::Volumes as _;

use crate::{Kind, Node, Volume, answer};

/// Volumes and directories of one run, and the calls of the kubelet.
pub struct Case<'n> {
    node: &'n Node,
    number: usize,
    kinds: &'static [Kind],
    shared: RefCell<Vec<Volume>>,
    fresh: RefCell<Vec<Volume>>,
    directories: RefCell<Vec<PathBuf>>,
}

impl<'n> Case<'n> {
    pub(crate) fn new(node: &'n Node, kinds: &'static [Kind]) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let (shared, fresh, directories) = Default::default();
        Self { node, number, kinds, shared, fresh, directories }
    }

    /// Removes the directories and volumes of the run. Fails if the plugin or the behavior left something in them.
    pub(crate) fn end(self) {
        for directory in self.directories.borrow().iter() {
            remove_directories(directory)
                .unwrap_or_else(|reason| panic!("something is left below {}: {reason}", directory.display()));
        }
        for volume in self.fresh.borrow().iter() {
            self.node.volumes().remove(&volume.id);
        }
    }

    pub fn node(&self) -> &'n Node {
        self.node
    }

    pub fn kinds(&self) -> &'static [Kind] {
        self.kinds
    }

    /// A shared volume of 16 MiB. The behavior unpublishes it and keeps its size; it may change the data.
    pub fn volume(&self, kind: Kind) -> Volume {
        let volume = self.node.volumes().take(kind);
        self.shared.borrow_mut().push(volume.clone());
        volume
    }

    pub fn fresh_volume(&self, kind: Kind, size: Bytes) -> Volume {
        let volume = self.staged_volume(kind, size);
        self.node.volumes().store().announce(&volume.id).expect("announce");
        volume
    }

    /// A fresh volume that is not announced yet.
    pub fn staged_volume(&self, kind: Kind, size: Bytes) -> Volume {
        let id = format!("pvc-case-{}-{}", self.number, self.fresh.borrow().len());
        let volume = self.node.volumes().stage(&id, kind, size);
        self.fresh.borrow_mut().push(volume.clone());
        volume
    }

    pub fn pod(&self, name: &str) -> PathBuf {
        self.directory(self.node.kubelet().join("pods").join(format!("case-{}-{name}", self.number)))
    }

    /// The path where the kubelet publishes a volume for a pod. Its parent exists.
    pub fn target(&self, volume: &Volume, pod: &str) -> PathBuf {
        let (parent, name) = match volume.kind {
            Kind::Filesystem => {
                (self.pod(pod).join("volumes/kubernetes.io~csi").join(volume.id.as_str()), "mount".to_owned())
            }
            Kind::Block => {
                let publish = self.node.kubelet().join("plugins/kubernetes.io/csi/volumeDevices/publish");
                (self.directory(publish.join(volume.id.as_str())), format!("case-{}-{pod}", self.number))
            }
        };
        fs::create_dir_all(&parent).expect("the directory that holds the target");
        parent.join(name)
    }

    /// A shared volume and its target for a pod.
    pub fn place(&self, kind: Kind) -> (Volume, PathBuf) {
        let volume = self.volume(kind);
        let target = self.target(&volume, "pod");
        (volume, target)
    }

    pub async fn publish(&self, message: NodePublishVolumeRequest) -> Result<(), Code> {
        answer(self.node.client().node_publish_volume(message).await).map(drop)
    }

    pub async fn unpublish(&self, message: NodeUnpublishVolumeRequest) -> Result<(), Code> {
        answer(self.node.client().node_unpublish_volume(message).await).map(drop)
    }

    pub async fn stats(&self, message: NodeGetVolumeStatsRequest) -> Result<NodeGetVolumeStatsResponse, Code> {
        answer(self.node.client().node_get_volume_stats(message).await)
    }

    pub async fn health(&self, message: NodeGetVolumeHealthRequest) -> Result<VolumeHealth, Code> {
        let response = answer(self.node.client().node_get_volume_health(message).await)?;
        Ok(response.volume_health.expect("the health is required"))
    }

    /// Returns the capacity in bytes.
    pub async fn expand(&self, message: NodeExpandVolumeRequest) -> Result<i64, Code> {
        answer(self.node.client().node_expand_volume(message).await).map(|response| response.capacity_bytes)
    }

    pub async fn published(&self, kind: Kind) -> (Volume, PathBuf) {
        let volume = self.volume(kind);
        let target = self.publish_for(&volume, "pod").await;
        (volume, target)
    }

    /// Publishes a volume for a pod, at the target that is returned.
    pub async fn publish_for(&self, volume: &Volume, pod: &str) -> PathBuf {
        let target = self.target(volume, pod);
        self.publish(self.publishing(volume, &target)).await.expect("publish");
        target
    }

    pub async fn withdraw(&self, volume: &Volume, target: &Path) {
        self.unpublish(self.unpublishing(volume, target)).await.expect("unpublish");
        self.assert_absent(target);
    }

    pub fn assert_published(&self, volume: &Volume, target: &Path, read_only: bool) {
        assert_eq!(mounts_at(target), 1, "{volume:?} at {}", target.display());
        let place = mount::at(File::open(target).expect("open the target")).expect("look");
        let (no_exec, no_dev) = (volume.kind == Kind::Block, volume.kind == Kind::Filesystem);
        let attributes = Attributes { read_only, no_exec, no_dev, ..Attributes::INERT };
        assert_eq!(place.mounted, Some(attributes), "{volume:?} at {}", target.display());
        match volume.kind {
            Kind::Filesystem => assert_eq!(place.identity, volume.identity(), "{volume:?} at {}", target.display()),
            Kind::Block => {
                let found = fs::metadata(target).expect("the target");
                assert!(found.file_type().is_block_device(), "{volume:?} at {}: {found:?}", target.display());
                let devices = volume.devices();
                let same: Vec<_> =
                    devices.iter().filter(|device| device.status.config.read_only == read_only).collect();
                assert_eq!(same.len(), 1, "devices of {volume:?}: {devices:?}");
                let number = nix::libc::makedev(same[0].dev.major, same[0].dev.minor);
                assert_eq!(found.rdev(), number, "{volume:?} at {}", target.display());
            }
        }
    }

    pub fn assert_absent(&self, target: &Path) {
        let found = fs::symlink_metadata(target).map_err(|reason| reason.kind());
        assert!(matches!(found, Err(io::ErrorKind::NotFound)), "{}: {found:?}", target.display());
        assert_eq!(mounts_at(target), 0, "{}", target.display());
    }

    fn directory(&self, path: PathBuf) -> PathBuf {
        let mut directories = self.directories.borrow_mut();
        if !directories.contains(&path) {
            fs::create_dir(&path).unwrap_or_else(|reason| panic!("{}: {reason}", path.display()));
            directories.push(path.clone());
        }
        path
    }
}

impl Drop for Case<'_> {
    /// Returns the shared volumes for the next run, also after a failure.
    fn drop(&mut self) {
        self.shared.get_mut().drain(..).for_each(|volume| self.node.volumes().give_back(volume));
    }
}

fn mounts_at(path: &Path) -> usize {
    mount::table().expect("the table of mounts").iter().filter(|entry| entry.point == path).count()
}

/// Removes a tree of directories. Fails if it contains a file or a mount.
pub fn remove_directories(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        remove_directories(&entry?.path())?;
    }
    fs::remove_dir(directory)
}
