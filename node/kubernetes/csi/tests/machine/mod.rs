//! A node with a real disk: the plugin, the volumes, and the kubelet's directory.

use std::fs::{self, File};
use std::ops::Deref;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Weak};
use std::time::Duration;

use csi::{Linux, Plugin, Provisioner, Settings};
use dir::{Dir, Mode, Name};
use ktest_support::{XfsDisk, this_program};
use loopdev::{Attached, Backing, Device};
use mount::Attributes;
use nix::sys::stat::makedev;
use prometheus::Registry;
use proto::csi::NodePublishVolumeRequest;
use proto::csi::node_client::NodeClient;
use supervisor::Supervisor;
use tonic::Code;
use tonic::transport::Channel;
use units::{Bytes, Inodes};
use volume::{Allocation, Claim, Owner, PodFreezer, Request, Store, VolumeId, Volumes as _};

use crate::kubelet::Kubelet;

pub const SIZE: Bytes = Bytes::new(64 << 20);
pub const INODES: Inodes = Inodes::new(1000);

/// Command that starts this program as the test that is the guard of frozen pods.
pub fn guard() -> Command {
    this_program("frozen::the_guard")
}

/// A node with its data disk and a running plugin.
pub struct Node {
    supervisor: Supervisor,
    pub plugin: Arc<Plugin<Linux>>,
    pub store: Arc<Store>,
    pub freezer: Weak<dyn PodFreezer>,
    pub kubelet: Kubelet,
    pub client: NodeClient<Channel>,
    // The last field, because a disk can only be unmounted when no file on it is open.
    pub disk: TestDisk,
}

/// A disk. A drop removes the mounts and devices that tests leave on it.
pub struct TestDisk {
    disk: XfsDisk,
    number: u64,
}

impl TestDisk {
    pub fn new() -> Self {
        let disk = XfsDisk::with_project_quota();
        // Read now: a file system that has shut down returns no attributes.
        let number = fs::metadata(disk.path()).expect("the disk").dev();
        Self { disk, number }
    }

    pub fn devices(&self) -> Vec<Attached> {
        let mut found = loopdev::list().expect("devices");
        found.retain(|device| match device.status.backing {
            Backing::File(file) => makedev(file.device.major.into(), file.device.minor.into()) == self.number,
            Backing::Device(_) => false,
        });
        found
    }
}

impl Deref for TestDisk {
    type Target = XfsDisk;

    fn deref(&self) -> &XfsDisk {
        &self.disk
    }
}

impl Drop for TestDisk {
    /// Removes mounts and devices, so that the disk can be unmounted.
    fn drop(&mut self) {
        let table = mount::table().expect("table");
        let below = |entry: &&mount::Entry| entry.point.starts_with(self.path()) && entry.point != self.path();
        for entry in table.iter().rev().filter(below) {
            mount::unmount(&entry.point).expect("unmount");
        }
        for left in self.devices() {
            let device = Device::open(left.number.path()).expect("a device");
            let _ = device.detach_from(left.status.backing).expect("detach");
        }
    }
}

impl Node {
    pub async fn start() -> Self {
        Self::on(TestDisk::new()).await
    }

    pub async fn with_block(volume: &str) -> (Self, VolumeId) {
        let node = Self::start().await;
        let id = node.provision_block(volume);
        (node, id)
    }

    /// Starts a node on a fresh disk, or on a disk of an earlier node.
    pub async fn on(disk: TestDisk) -> Self {
        Self::on_with(disk, |_| {}).await
    }

    /// Starts a node with a hierarchy of cgroups, which the plugin checks often.
    pub async fn on_cgroups(disk: TestDisk, cgroups: &Path) -> Self {
        Self::begin(disk, |settings| settings.watch = Duration::from_millis(50), cgroups).await
    }

    /// Starts a node with other settings of the plugin.
    pub async fn on_with(disk: TestDisk, change: impl FnOnce(&mut Settings)) -> Self {
        Self::begin(disk, change, Path::new("/sys/fs/cgroup")).await
    }

    async fn begin(disk: TestDisk, change: impl FnOnce(&mut Settings), cgroups: &Path) -> Self {
        let data = Dir::open(disk.path()).expect("the disk");
        let private = Mode::from_bits_truncate(0o700);
        let sub = |name: &str| {
            let name = Name::try_from(name).expect("a name");
            data.ensure_dir(&name, private).expect("a directory").into_inner()
        };
        sub("kubelet");
        let store = Arc::new(Store::open(&sub("volumes"), volume::Settings::default()).expect("a store"));
        let kubelet = Kubelet { directory: disk.path().join("kubelet") };
        let mut settings = Settings::new(kubelet.directory.clone(), "node-1", "1.2.3");
        change(&mut settings);
        let host = Linux::with_cgroups(kubelet.directory.clone(), Arc::clone(&store), cgroups).with_guard(guard);
        store.throttle_by(host.throttle());
        let freezer = host.freezer();
        store.freeze_by(Weak::clone(&freezer));
        let plugin = Plugin::new(settings, host, &Registry::new()).expect("metrics");
        let plugin = Arc::new(plugin.with_controller(store.clone(), Provisioner::Own));
        let service = Arc::clone(&plugin);
        let supervisor =
            Supervisor::start("csi", supervisor::Settings::default(), move |cx| Arc::clone(&service).run(cx));
        supervisor.handle().healthy().await.expect("it starts");
        let client = kubelet.client().await;
        Self { supervisor, plugin, store, freezer, kubelet, client, disk }
    }

    /// Ends the plugin. Mounts and devices stay.
    pub async fn end(self) -> TestDisk {
        let Self { supervisor, plugin, client, disk, .. } = self;
        drop(client);
        supervisor.stop(Duration::from_secs(20)).await.expect("nothing is aborted");
        // Closes the plugin's descriptors.
        drop(plugin);
        disk
    }

    /// Ends the plugin, removes mounts and devices, and unmounts the disk.
    pub async fn stop(self) {
        drop(self.end().await);
    }

    pub fn provision(&self, volume: &str) -> VolumeId {
        self.make(volume, volume::Mode::Filesystem { inodes: INODES })
    }

    pub fn provision_block(&self, volume: &str) -> VolumeId {
        self.make(volume, volume::Mode::Block { allocation: Allocation::Thick })
    }

    fn make(&self, volume: &str, mode: volume::Mode) -> VolumeId {
        make(&self.store, volume, mode)
    }

    /// Another host interface for the same disk, without a plugin.
    pub fn host(&self) -> Linux {
        Linux::new(self.kubelet.directory.clone(), Arc::clone(&self.store))
    }

    pub fn target(&self, name: &str) -> PathBuf {
        self.kubelet.directory.join(name)
    }

    pub async fn publish(&mut self, message: NodePublishVolumeRequest) -> Result<(), Code> {
        self.client.node_publish_volume(message).await.map(drop).map_err(|status| status.code())
    }

    pub async fn unpublish(&mut self, volume: &str, target: &str) -> Result<(), Code> {
        let message = self.kubelet.unpublish(volume, target);
        self.client.node_unpublish_volume(message).await.map(drop).map_err(|status| status.code())
    }
}

pub fn make(store: &Store, volume: &str, mode: volume::Mode) -> VolumeId {
    let id: VolumeId = volume.parse().expect("an identifier");
    let claim = Claim { uid: volume.to_owned(), namespace: "default".to_owned(), name: "claim".to_owned() };
    let request =
        Request { claim, owner: Owner::Provisioner, class: "local".to_owned(), mode, size: SIZE, source: None };
    store.provision(&id, &request).expect("provision");
    store.announce(&id).expect("announce");
    id
}

pub fn mounted(path: &Path) -> Option<Attributes> {
    mount::at(File::open(path).expect("open")).expect("look").mounted
}

pub fn mounts_at(path: &Path) -> usize {
    mount::table().expect("table").iter().filter(|entry| entry.point == path).count()
}
