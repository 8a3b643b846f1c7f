//! The life of a claim. The code acts as the scheduler, the kubelet and a pod, like in a cluster.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use conformity::remove_directories;
use ktest_support::random::Random;
use nix::sys::statvfs::statvfs;
use proto::csi::node_client::NodeClient;
use proto::csi::volume_capability::access_mode::Mode;
use proto::csi::{NodeExpandVolumeRequest, NodePublishVolumeRequest, NodeUnpublishVolumeRequest, VolumeCapability};
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};
use tonic::transport::Channel;
use tonic::{Response, Status};

use crate::node::NODE;
use crate::server::{CLAIMS, PVS, Server};
use crate::{Failure, PATIENCE};

pub(crate) const CLASSES: [(&str, Option<&str>); 2] = [("thick", None), ("thin", Some("thin"))];

const SELECTED_NODE: &str = cluster::claim::SELECTED_NODE;
const MIB: u64 = 1 << 20;
/// Larger than the disk, in MiB.
const TOO_LARGE: u64 = 1 << 20;
/// Size of the volume whose pod fills the disk, in MiB: more than twice the space of the volumes of a round, some of
/// which may still be removed.
const OVERCOMMITTED: u64 = 256;
/// Space that is left for this pod, in MiB. To allocate an image, XFS needs more than its size.
const UNALLOCATED: u64 = 24;
/// Pause before the kubelet repeats a failed call.
const RETRY: Duration = Duration::from_millis(100);

pub(crate) struct World {
    pub(crate) server: Arc<Server>,
    pub(crate) kubelet: PathBuf,
    operations: AtomicU32,
}

struct Tenant<'w> {
    world: &'w World,
    name: String,
    volume: String,
    is_block: bool,
    /// Size in MiB.
    size: u64,
}

/// Paths of a volume in a pod.
struct Pod {
    target: PathBuf,
    /// Directory that the kubelet removes after the pod.
    directory: PathBuf,
}

impl World {
    pub(crate) fn new(server: Arc<Server>, kubelet: PathBuf) -> Self {
        Self { server, kubelet, operations: AtomicU32::new(0) }
    }

    /// Runs a claim from its creation to its deletion, with some operations in between.
    pub(crate) async fn live(&self, name: String, random: &mut Random) -> Result<(), Failure> {
        let is_block = random.below(2) == 1;
        let (class, _) = CLASSES[random.below(CLASSES.len())];
        if random.below(6) == 0 {
            self.reject(&name, class, is_block).await?;
        }
        let size = mebibytes(random, 6);
        let mut tenant = self.provision(name, class, is_block, size).await?;
        for _ in 0..2 + random.below(3) {
            match random.below(4) {
                0 => tenant.expand(None, mebibytes(random, 3)).await?,
                1 => tenant.exceed().await?,
                online => {
                    let pod = tenant.publish().await?;
                    tenant.fill(&pod).await?;
                    if online == 2 {
                        tenant.expand(Some(&pod), mebibytes(random, 3)).await?;
                    }
                    tenant.unpublish(pod).await?;
                }
            }
        }
        tenant.delete().await
    }

    /// Fills the disk before the volume of a pod is full, because their space is overcommitted. The deletion of another
    /// volume frees the disk.
    pub(crate) async fn fill_disk(&self, round: u32) -> Result<(), Failure> {
        let files = self.provision(format!("files-{round}"), "thin", false, OVERCOMMITTED).await?;
        let pod = files.publish().await?;
        let disk = statvfs(&self.kubelet)?;
        let free = disk.blocks_available() * disk.fragment_size() / MIB;
        let image = self.provision(format!("image-{round}"), "thick", true, free.saturating_sub(UNALLOCATED)).await?;
        let written = files.fill(&pod).await?;
        if written > OVERCOMMITTED / 4 * 3 {
            return Err(format!("{written} MiB were written to a disk with {UNALLOCATED} MiB").into());
        }
        image.delete().await?;
        files.unpublish(pod).await?;
        files.delete().await
    }

    /// Creates a claim that does not fit on the disk, and waits until the provisioner returns it to the scheduler.
    async fn reject(&self, name: &str, class: &str, is_block: bool) -> Result<(), Failure> {
        self.server.create(CLAIMS, claim(name, class, is_block, TOO_LARGE))?;
        let is_returned =
            |claim: Option<&Value>| claim?["metadata"]["annotations"][SELECTED_NODE].is_null().then_some(());
        self.server.until((CLAIMS, name), "returned to the scheduler", is_returned).await?;
        self.server.delete(CLAIMS, name)?;
        self.count();
        Ok(())
    }

    async fn provision(&self, name: String, class: &str, is_block: bool, size: u64) -> Result<Tenant<'_>, Failure> {
        self.server.create(CLAIMS, claim(&name, class, is_block, size))?;
        let volume = |claim: Option<&Value>| Some(claim?["spec"]["volumeName"].as_str()?.to_owned());
        let volume = self.server.until((CLAIMS, &*name), "bound", volume).await?;
        self.count();
        Ok(Tenant { world: self, name, volume, is_block, size })
    }

    /// Repeats a call of the kubelet until it succeeds.
    async fn call<T>(&self, what: &str, call: impl AsyncFn(NodeClient<Channel>) -> Answered<T>) -> Result<T, Failure> {
        let deadline = Instant::now() + PATIENCE;
        let socket = self.kubelet.join("plugins").join(format!("{}.sock", cluster::DRIVER_NAME));
        loop {
            let failed: Failure = match conformity::connect(socket.clone()).await {
                Ok(channel) => match call(NodeClient::new(channel)).await {
                    Ok(answer) => {
                        self.count();
                        return Ok(answer.into_inner());
                    }
                    Err(status) => status.into(),
                },
                Err(error) => error.into(),
            };
            if Instant::now() >= deadline {
                return Err(format!("{what}: {failed}").into());
            }
            sleep(RETRY).await;
        }
    }

    pub(crate) fn operations(&self) -> u32 {
        self.operations.load(Ordering::Relaxed)
    }

    fn count(&self) {
        self.operations.fetch_add(1, Ordering::Relaxed);
    }
}

type Answered<T> = Result<Response<T>, Status>;

impl Tenant<'_> {
    async fn publish(&self) -> Result<Pod, Failure> {
        let Self { world, name, volume, .. } = self;
        let (directory, target) = if self.is_block {
            let directory = world.kubelet.join("plugins/kubernetes.io/csi/volumeDevices/publish").join(volume);
            (directory.clone(), directory.join(name))
        } else {
            let directory = world.kubelet.join("pods").join(name);
            (directory.clone(), directory.join("volumes/kubernetes.io~csi").join(volume).join("mount"))
        };
        target.parent().map_or(Ok(()), fs::create_dir_all)?;
        let message = NodePublishVolumeRequest {
            volume_id: volume.clone(),
            target_path: target.display().to_string(),
            volume_capability: Some(self.capability()),
            ..NodePublishVolumeRequest::default()
        };
        let publish = async |mut node: NodeClient<Channel>| node.node_publish_volume(message.clone()).await;
        world.call("publish", publish).await?;
        Ok(Pod { target, directory })
    }

    async fn unpublish(&self, Pod { target, directory }: Pod) -> Result<(), Failure> {
        let (volume_id, target_path) = (self.volume.clone(), target.display().to_string());
        let message = NodeUnpublishVolumeRequest { volume_id, target_path };
        let unpublish = async |mut node: NodeClient<Channel>| node.node_unpublish_volume(message.clone()).await;
        self.world.call("unpublish", unpublish).await?;
        Ok(remove_directories(&directory)?)
    }

    /// Writes until the volume or the disk is full. Returns the written MiB.
    async fn fill(&self, pod: &Pod) -> Result<u64, Failure> {
        let (target, is_block, size) = (pod.target.clone(), self.is_block, self.size);
        let written = spawn_blocking(move || fill(&target, is_block, size)).await?;
        self.world.count();
        Ok(written.map_err(|error| format!("cannot fill {}: {error}", self.volume))?)
    }

    async fn delete(self) -> Result<(), Failure> {
        let Self { world, name, volume, .. } = self;
        world.server.delete(CLAIMS, &name)?;
        world.server.until((PVS, &*volume), "deleted", |pv| pv.is_none().then_some(())).await?;
        world.count();
        Ok(())
    }

    async fn expand(&mut self, pod: Option<&Pod>, by: u64) -> Result<(), Failure> {
        self.size += by;
        let Self { world, name, .. } = &*self;
        self.request(self.size)?;
        let wanted = text(self.size);
        let at = (CLAIMS, &**name);
        let done = |claim: &Value| claim["status"]["capacity"]["storage"] == *wanted;
        if let Some(pod) = pod.filter(|_| self.is_block) {
            let pending =
                |claim: &Value| claim["status"]["allocatedResourceStatuses"]["storage"] == "NodeResizePending";
            let reached = |claim: Option<&Value>| claim.filter(|claim| pending(claim) || done(claim)).map(drop);
            world.server.until(at, "expanded on the disk", reached).await?;
            let message = NodeExpandVolumeRequest {
                volume_id: self.volume.clone(),
                volume_path: pod.target.display().to_string(),
                volume_capability: Some(self.capability()),
                ..NodeExpandVolumeRequest::default()
            };
            let expand = async |mut node: NodeClient<Channel>| node.node_expand_volume(message.clone()).await;
            world.call("expand", expand).await?;
            let status = json!({"capacity": {"storage": wanted}, "allocatedResourceStatuses": {"storage": null}});
            world.server.patch(CLAIMS, name, json!({ "status": status }))?;
        }
        world.server.until(at, "expanded", |claim| claim.filter(|claim| done(claim)).map(drop)).await?;
        world.count();
        Ok(())
    }

    /// Requests more than the disk's size, and then slightly more than before.
    async fn exceed(&mut self) -> Result<(), Failure> {
        self.request(TOO_LARGE)?;
        let is_rejected = |claim: Option<&Value>| {
            let progress = claim?["status"]["allocatedResourceStatuses"]["storage"].as_str()?;
            (progress == "ControllerResizeInfeasible").then_some(())
        };
        self.world.server.until((CLAIMS, &*self.name), "rejected", is_rejected).await?;
        self.expand(None, 1).await
    }

    fn request(&self, size: u64) -> Result<(), Failure> {
        let spec = json!({"resources": {"requests": {"storage": text(size)}}});
        self.world.server.patch(CLAIMS, &self.name, json!({ "spec": spec })).map(drop)
    }

    fn capability(&self) -> VolumeCapability {
        let kind = if self.is_block { conformity::Kind::Block } else { conformity::Kind::Filesystem };
        conformity::capability(kind, Mode::SingleNodeMultiWriter)
    }
}

/// Random number from 1 to `most`.
fn mebibytes(random: &mut Random, most: usize) -> u64 {
    1 + random.below(most) as u64
}

fn text(mib: u64) -> String {
    cluster::quantity::text(units::Bytes::new(mib * MIB))
}

fn claim(name: &str, class: &str, is_block: bool, size: u64) -> Value {
    let annotations = json!({SELECTED_NODE: NODE, "volume.kubernetes.io/storage-provisioner": cluster::DRIVER_NAME});
    let metadata = json!({"name": name, "namespace": "default", "annotations": annotations});
    let mode = if is_block { "Block" } else { "Filesystem" };
    envtest::claim(metadata, class, json!({"volumeMode": mode, "resources": {"requests": {"storage": text(size)}}}))
}

fn fill(target: &Path, is_block: bool, size: u64) -> io::Result<u64> {
    let mebibyte = vec![0x5a_u8; 1 << 20];
    let mut file =
        if is_block { File::options().write(true).open(target)? } else { File::create(target.join("data"))? };
    for written in 0..=size {
        match file.write_all(&mebibyte) {
            Ok(()) => {}
            // The file has reached the project's quota or the end of the device, or the disk is full.
            Err(error) if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
                return file.sync_all().map(|()| written);
            }
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other(format!("{} MiB were written to {size} MiB", size + 1)))
}
