//! Loss of the guest: the test kills QEMU, which loses the memory, and boots the node again from the same disk.

use e2e::{Case, Claim, Failure, OnNode, PATIENCE, Pod, Seen, Server, Volume, VolumeMode};
use e2e::{capacity_of, eventually, observer, previous};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod as PodObject};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use launch::{Node, SHUTDOWN_LIMIT};
use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::task::JoinSet;
use tokio::time::timeout;
use workload::Volumes;

const MIB: u64 = 1 << 20;
/// signal(7).
const SIGINT: i32 = 2;
const NAMESPACE: &str = "power";
const DEVICE: &str = "/dev/device";
/// Claims of one burst, which all belong to one pod.
const BURST: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// Unfinished work of a lost node.
pub struct Lost {
    durable: Durable,
    earlier: Burst,
    later: Burst,
}

impl Lost {
    /// Cuts the power of the node during writes, while some claims are provisioned and others are deleted.
    pub async fn cut(node: Node) -> Result<Self, Failure> {
        let case = Case::begin(node.client(), NAMESPACE.to_owned()).await?;
        let [earlier, later] = ["one", "two"].map(Burst::of);
        earlier.start(&case).await?;
        earlier.is_there(&case).await?;
        let written = Written::start(&previous::keeper(&node.client()).await?);
        tokio::try_join!(earlier.delete(&case), later.start(&case))?;
        // The pod of one burst ends and its volumes are removed, while the claims of the other burst become bound.
        let enough = random(2 * BURST.len());
        let done = eventually(PATIENCE, "a part of the bursts to be done", async || {
            let (deleted, bound) = (earlier.deleted(&case).await?, later.bound(&case).await?);
            let done = format!("{deleted} claims deleted and {bound} bound, {enough} wanted");
            Ok(if deleted + bound >= enough { Seen::Done(done) } else { Seen::NotYet(done) })
        })
        .await?;
        println!("the guest is lost: {done}");
        node.power_cut().await;
        Ok(Self { durable: written.end().await, earlier, later })
    }

    /// Verifies after the next boot that durable data exist and that unfinished work is completed. Then restarts the
    /// node like Ctrl-Alt-Del does. Other tests press the power button.
    pub async fn must_be_kept(self, mut node: Node) -> Result<(), Failure> {
        let Self { durable, earlier, later } = self;
        observer::find(&node.client()).await?;
        let case = Case::resume(node.client(), NAMESPACE.to_owned());
        durable.must_be_kept(&previous::keeper(&node.client()).await?).await?;
        later.is_there(&case).await?;
        eventually(PATIENCE, "the end of the burst that was deleted", async || {
            let deleted = earlier.deleted(&case).await?;
            Ok(if deleted == BURST.len() { Seen::Done(()) } else { Seen::NotYet(format!("{deleted} are deleted")) })
        })
        .await?;
        is_in_order(&case).await?;
        // The node may end before it responds.
        _ = case.signal("init", SIGINT).await;
        let ended = timeout(SHUTDOWN_LIMIT, node.ended()).await.expect("the node ends in order");
        // QEMU exits on a restart.
        assert!(ended.starts_with("QEMU ended with exit status: 0"), "{ended}");
        let console = fs::read_to_string(node.console()).expect("the console");
        assert!(console.contains("reboot: Restarting system"), "{ended}");
        assert!(console.contains("image is present"), "{console}");
        for message in ["image imported", "cannot unmount at the end", "cannot unmount during shutdown"] {
            assert!(!console.contains(message), "{ended}");
        }
        Ok(())
    }
}

/// Random number from 1 to `most`. The test prints it, but the exact moment of the power cut is not reproducible.
fn random(most: usize) -> usize {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.subsec_micros() as usize % most + 1
}

/// Writes increasing numbers to files and to a device. Each number is durable when its write returns.
struct Written {
    tasks: JoinSet<()>,
    last: [Arc<AtomicU64>; 2],
}

struct Durable {
    note: u64,
    device: u64,
}

/// Path of the file for a number. The two files alternate, because a file briefly has neither number while it is
/// rewritten.
fn note(number: u64) -> String {
    format!("/files/note-{}", number % 2)
}

impl Written {
    fn start(writer: &Server) -> Self {
        let last: [Arc<AtomicU64>; 2] = [Arc::default(), Arc::default()];
        let mut tasks = JoinSet::new();
        let places: [fn(u64) -> String; 2] = [note, |_| DEVICE.to_owned()];
        for (place, last) in places.into_iter().zip(&last) {
            let (writer, last) = (writer.clone(), Arc::clone(last));
            tasks.spawn(async move {
                let mut number = 1;
                // The loop ends with the guest.
                while writer.write(place(number), &number.to_string()).await.is_ok() {
                    last.store(number, Ordering::Relaxed);
                    number += 1;
                }
            });
        }
        Self { tasks, last }
    }

    async fn end(mut self) -> Durable {
        self.tasks.shutdown().await;
        let [note, device] = self.last.map(|last| last.load(Ordering::Relaxed));
        println!("the last durable numbers are {note} and {device}");
        assert!(note > 0 && device > 0, "nothing was written");
        Durable { note, device }
    }
}

impl Durable {
    /// The pod restarts by itself. The device contains the last durable number or the one of the interrupted write.
    async fn must_be_kept(&self, writer: &Server) -> Result<(), Failure> {
        assert_eq!(writer.read(note(self.note)).await?, self.note.to_string());
        let device = writer.read(DEVICE).await?;
        let kept = [self.device, self.device + 1].map(|number| number.to_string());
        assert!(kept.contains(&device), "{device:?} instead of {}", self.device);
        Ok(())
    }
}

struct Burst {
    name: &'static str,
    claims: Vec<Claim>,
}

impl Burst {
    fn of(name: &'static str) -> Self {
        let claim = |(number, letter): (usize, &&str)| {
            // `Claim` needs names with a static lifetime.
            let name: &'static str = Box::leak(format!("{name}-{letter}").into_boxed_str());
            let mode = if number % 2 == 0 { VolumeMode::Filesystem } else { VolumeMode::Block };
            Claim { mode, ..Claim::new(name, 16 * MIB) }
        };
        Self { name, claims: BURST.iter().enumerate().map(claim).collect() }
    }

    /// Pod with all claims of the burst, because the start of a pod takes much longer than its volumes.
    fn pod(&self) -> Pod {
        let pod = Pod::server(self.name).restarting();
        self.claims.iter().fold(pod, |pod, claim| pod.with(Volume::of(claim)))
    }

    async fn start(&self, case: &Case) -> Result<(), Failure> {
        for claim in &self.claims {
            case.claim(claim).await?;
        }
        case.start(&self.pod()).await
    }

    async fn bound(&self, case: &Case) -> Result<usize, Failure> {
        let claims = case.api::<PersistentVolumeClaim>().list(&ListParams::default()).await;
        let claims = claims.map_err(Failure::api("list claims"))?.items;
        let is_bound = |claim: &&PersistentVolumeClaim| {
            let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
            phase == Some("Bound") && self.claims.iter().any(|own| own.name == claim.name_any())
        };
        Ok(claims.iter().filter(is_bound).count())
    }

    async fn deleted(&self, case: &Case) -> Result<usize, Failure> {
        let volumes = case.cluster::<PersistentVolume>().list(&ListParams::default()).await;
        let volumes = volumes.map_err(Failure::api("list volumes"))?.items;
        Ok(self.claims.len() - volumes.iter().filter(|volume| self.has(volume)).count())
    }

    async fn is_there(&self, case: &Case) -> Result<(), Failure> {
        for claim in &self.claims {
            case.volume_of(claim.name).await?;
        }
        case.find(self.name).await.map(drop)
    }

    async fn delete(&self, case: &Case) -> Result<(), Failure> {
        let deleted = case.api::<PodObject>().delete(self.name, &DeleteParams::default()).await;
        deleted.map_err(Failure::api("delete a pod"))?;
        for claim in &self.claims {
            case.delete_claim(claim.name).await?;
        }
        Ok(())
    }

    fn has(&self, volume: &PersistentVolume) -> bool {
        let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()).and_then(|claim| claim.name.as_ref());
        claim.is_some_and(|name| self.claims.iter().any(|one| one.name == name))
    }
}

/// Every bound claim has its directory or image with its limit, and no other volumes exist.
async fn is_in_order(case: &Case) -> Result<(), Failure> {
    eventually(PATIENCE, "the node and the cluster to be the same", async || {
        let volumes = case.cluster::<PersistentVolume>().list(&ListParams::default()).await;
        let volumes = volumes.map_err(Failure::api("list volumes"))?.items;
        let claims = case.api::<PersistentVolumeClaim>().list(&ListParams::default()).await;
        let claims = claims.map_err(Failure::api("list claims"))?.items;
        let node = case.look_at_the_node().await?;
        let faults = faults(&volumes, &claims, &node);
        Ok(if faults.is_empty() { Seen::Done(()) } else { Seen::NotYet(faults.join("; ")) })
    })
    .await
}

fn faults(volumes: &[PersistentVolume], claims: &[PersistentVolumeClaim], node: &Volumes) -> Vec<String> {
    let mut faults = Vec::new();
    let names: BTreeSet<String> = volumes.iter().map(ResourceExt::name_any).collect();
    for claim in claims {
        let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
        if !names.contains(&volume) {
            faults.push(format!("claim {} has no volume: {volume:?}", claim.name_any()));
        }
    }
    for volume in volumes {
        let name = volume.name_any();
        let found = OnNode::of(node, &name, None);
        let size = capacity_of(volume);
        let live = found.entries.iter().find(|entry| entry.path == format!("live/{name}"));
        let is_block = volume.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()) == Some("Block");
        let limit = found.project.and_then(|project| project.bytes);
        let image = live.and_then(|entry| entry.image).map(|image| image.size);
        let kept = if is_block { image == size } else { limit == size };
        if live.is_none() || !kept {
            faults.push(format!("volume {name} of {size:?} is on the node {found:?}"));
        }
        if found.loops.len() > 1 || is_block != (found.loops.len() == 1) {
            faults.push(format!("volume {name} has the loop devices {:?}", found.loops));
        }
    }
    let known = |text: &str| names.iter().any(|name| text.contains(name.as_str()));
    let strangers = node.entries.iter().map(|entry| &entry.path).filter(|path| path.contains("pvc-") && !known(path));
    faults.extend(strangers.map(|path| format!("{path} has no volume")));
    let halves = node
        .entries
        .iter()
        .filter(|entry| ["staging/", "trash/", "pending/"].iter().any(|place| entry.path.starts_with(place)));
    faults.extend(halves.map(|entry| format!("{} is half-done", entry.path)));
    let strangers = node.loops.iter().filter(|device| !known(&device.file));
    faults.extend(strangers.map(|device| format!("{} has no volume: {}", device.name, device.file)));
    faults
}
