//! A node: its data disk, its volumes, and the plugin.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use csi::{Linux, Plugin, Provisioner, Settings};
use dir::{Dir, Mode, Name};
use ktest_support::XfsDisk;
use prometheus::Registry;
use proto::csi::identity_client::IdentityClient;
use proto::csi::node_client::NodeClient;
use proto::registration::registration_client::RegistrationClient;
use supervisor::Supervisor;
use tokio::runtime::{Builder, Runtime};
use tonic::transport::Channel;

use crate::connect;
use crate::volumes::Volumes;

pub const NODE_NAME: &str = "node-1";
pub const VERSION: &str = "1.2.3";
const LIMIT: Duration = Duration::from_secs(20);

/// Mounts the hierarchy of cgroups where the plugin sets I/O limits, once for all nodes.
fn mount_cgroups() {
    static MOUNTED: Once = Once::new();
    MOUNTED.call_once(|| ktest_support::mount_cgroups(Path::new("/sys/fs/cgroup")));
}

/// The services of the plugin beside Identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Services {
    NodeAlone,
    /// All services beside the own provisioner, as on a Granary node.
    BesideProvisioner,
    /// All services for sidecars, instead of the own provisioner.
    ForSidecars,
    /// As [`Services::ForSidecars`], without a freezer of pods, as on other clusters.
    ForSidecarsAlone,
}

impl Services {
    const fn shared_volumes(self) -> usize {
        match self {
            // Four behaviors at once take at most two each.
            Self::NodeAlone => 10,
            // With three volumes on a page, their list has three pages.
            Self::BesideProvisioner | Self::ForSidecars | Self::ForSidecarsAlone => 4,
        }
    }
}

pub struct Node {
    runtime: Runtime,
    services: Services,
    running: Mutex<Option<Running>>,
    volumes: Volumes,
    kubelet: PathBuf,
    // The last field, because a disk can only be unmounted when no file on it is open.
    _disk: XfsDisk,
}

struct Running {
    supervisor: Supervisor,
    plugin: Arc<Plugin<Linux>>,
    channel: Channel,
}

impl Node {
    pub fn start(services: Services) -> Self {
        if services != Services::NodeAlone {
            mount_cgroups();
        }
        let disk = XfsDisk::with_project_quota();
        let data = Dir::open(disk.path()).expect("the disk");
        let private = Mode::from_bits_truncate(0o700);
        data.create_dir(&Name::try_from("kubelet").expect("a name"), private).expect("a directory");
        let volumes = Volumes::make(&data, disk.path().to_owned(), services.shared_volumes());
        let kubelet = disk.path().join("kubelet");
        for made in ["pods", "plugins/kubernetes.io/csi/volumeDevices/publish"] {
            std::fs::create_dir_all(kubelet.join(made)).expect("a directory of kubelet");
        }
        // The plugin has separate threads, because a behavior may block the thread of the test.
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
        let node = Self { runtime, services, running: Mutex::default(), volumes, kubelet, _disk: disk };
        node.block_on(node.begin());
        node
    }

    /// Runs a future on the current thread. The plugin's tasks run on other threads.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    pub fn kubelet(&self) -> &Path {
        &self.kubelet
    }

    pub fn socket(&self) -> PathBuf {
        self.kubelet.join(format!("plugins/{}.sock", volume::DRIVER_NAME))
    }

    pub fn registration_socket(&self) -> PathBuf {
        self.kubelet.join(format!("plugins_registry/{}-reg.sock", volume::DRIVER_NAME))
    }

    pub fn volumes(&self) -> &Volumes {
        &self.volumes
    }

    pub fn channel(&self) -> Channel {
        self.running().as_ref().expect("the plugin runs").channel.clone()
    }

    pub fn client(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel())
    }

    pub fn identity(&self) -> IdentityClient<Channel> {
        IdentityClient::new(self.channel())
    }

    pub async fn registration(&self) -> RegistrationClient<Channel> {
        RegistrationClient::new(connect(self.registration_socket()).await.expect("connect"))
    }

    pub fn plugin(&self) -> Arc<Plugin<Linux>> {
        Arc::clone(&self.running().as_ref().expect("the plugin runs").plugin)
    }

    pub async fn restart(&self) {
        self.stop().await;
        self.begin().await;
    }

    /// Stops the plugin, and unmounts the disk.
    pub fn end(self) {
        self.block_on(self.stop());
    }

    async fn stop(&self) {
        let ended = self.running().take().expect("the plugin runs");
        let Running { supervisor, plugin, channel } = ended;
        drop((plugin, channel));
        supervisor.stop(LIMIT).await.expect("nothing is aborted");
    }

    async fn begin(&self) {
        let host = Linux::new(self.kubelet.clone(), Arc::clone(self.volumes.store()));
        self.volumes.store().throttle_by(host.throttle());
        if self.services != Services::ForSidecarsAlone {
            self.volumes.store().freeze_by(host.freezer());
        }
        let settings = Settings {
            // The tests do not need the watch, and a census would count its descriptors.
            watch: Duration::from_secs(3600),
            ..Settings::new(self.kubelet.clone(), NODE_NAME, VERSION)
        };
        let plugin = Plugin::new(settings, host, &Registry::new()).expect("metrics");
        let provisioner = match self.services {
            Services::NodeAlone => None,
            Services::BesideProvisioner => Some(Provisioner::Own),
            Services::ForSidecars | Services::ForSidecarsAlone => Some(Provisioner::External),
        };
        let plugin = Arc::new(match provisioner {
            Some(provisioner) => plugin.with_controller(self.volumes.store().clone(), provisioner),
            None => plugin,
        });
        let service = Arc::clone(&plugin);
        let supervisor =
            Supervisor::start("csi", supervisor::Settings::default(), move |cx| Arc::clone(&service).run(cx));
        supervisor.handle().healthy().await.expect("it starts");
        let channel = connect(self.socket()).await.expect("connect");
        *self.running() = Some(Running { supervisor, plugin, channel });
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
