//! Simulates a year of pods on a node whose API server is intermittently unavailable, and compares the node's resources
//! at the end with those at the start. The program runs in the guest; `bench soak` starts it.
#![forbid(unsafe_code)]

mod census;
mod node;
mod server;
mod tenant;

use std::error::Error;
use std::fs::{self, File};
use std::io::Write as _;
use std::mem;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bench::{VERDICT, memory};
use clap::Parser;
use envtest::{Fault, FaultyServer};
use fsquota::{Limits, ProjectId, Quotas};
use futures::future::try_join_all;
use http::StatusCode;
use ktest_support::XfsDisk;
use ktest_support::random::Random;
use loopdev::{Config, Control, Detach};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::json;
use tokio::time::sleep;
use units::Bytes;

use crate::census::{Census, Kind};
use crate::node::{Leak, NODE, Node};
use crate::server::{CAPACITIES, Server};
use crate::tenant::{CLASSES, World};

type Failure = Box<dyn Error + Send + Sync>;

/// Deadline of operations that take seconds if no fault occurs.
const PATIENCE: Duration = Duration::from_secs(120);

/// Number of claims at once.
const TENANTS: u32 = 6;

/// Operations between two kills of the process, so that it makes progress even on a slow machine.
const OPERATIONS: u32 = 5;

/// A node without claims is idle if its census does not change for this long.
const QUIET: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(100);

/// At the end, the process may use a tenth and this number of bytes more than in the middle third. An allocator keeps
/// some freed memory.
const SLACK: u64 = 2 << 20;

#[derive(Debug, Parser)]
enum Command {
    Soak {
        #[arg(long)]
        seed: u64,
        /// Number of rounds, at least three.
        #[arg(long, default_value_t = 3)]
        rounds: u32,
        /// The test runs rounds for at least this long.
        #[arg(long, default_value_t = 0)]
        minutes: u32,
    },
    /// Runs the node in this process.
    Node(node::Settings),
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Node(settings) => node::serve(settings),
        Command::Soak { seed, rounds, minutes } => tokio::runtime::Runtime::new()
            .map_err(Failure::from)
            .and_then(|runtime| runtime.block_on(soak(seed, rounds, Duration::from_mins(minutes.into())))),
    };
    causes::exit_code(done.map_err(|error| error as Box<dyn Error>))
}

async fn soak(seed: u64, rounds: u32, time: Duration) -> Result<(), Failure> {
    let mut soak = Soak::start(seed).await?;
    let done = soak.run(rounds, time).await;
    soak.node.kill().await?;
    if done.is_err() {
        // Volumes may still be mounted, and then the disk cannot be unmounted.
        mem::forget(soak);
    }
    done
}

struct Soak {
    world: World,
    api: FaultyServer,
    node: Node,
    random: Random,
    kills: u32,
    // Declared last: the disk can only be unmounted when nothing on it is open.
    disk: XfsDisk,
}

impl Soak {
    async fn start(seed: u64) -> Result<Self, Failure> {
        let disk = XfsDisk::with_project_quota();
        let kubelet = disk.path().join("kubelet");
        fs::create_dir(disk.path().join("volumes"))?;
        fs::create_dir_all(kubelet.join("pods"))?;
        fs::create_dir_all(kubelet.join("plugins/kubernetes.io/csi/volumeDevices/publish"))?;
        let server = Arc::new(Server::default());
        server.create("nodes", json!({"metadata": {"name": NODE, "labels": {cluster::TOPOLOGY_KEY: NODE}}}))?;
        for (name, allocation) in CLASSES {
            let parameters = allocation.map(|allocation| json!({ "blockAllocation": allocation }));
            let class = json!({
                "metadata": {"name": name},
                "provisioner": cluster::DRIVER_NAME,
                "parameters": parameters,
                "reclaimPolicy": "Delete",
                "volumeBindingMode": "WaitForFirstConsumer",
            });
            server.create("storageclasses", class)?;
        }
        let api = FaultyServer::start(server.client()).await?;
        let node = Node::start(&api.config().cluster_url.to_string(), disk.path()).await?;
        let world = World::new(server, kubelet);
        Ok(Self { world, api, node, random: Random::from_seed(seed), kills: 0, disk })
    }

    async fn run(&mut self, rounds: u32, time: Duration) -> Result<(), Failure> {
        let start = Instant::now();
        // The first round opens and creates everything that stays.
        self.round(0, false).await?;
        let before = self.baseline().await?;
        let (mut middle, mut used, mut round) = (None, 0, 0);
        while round < rounds || start.elapsed() < time {
            round += 1;
            let is_in = |thirds| round * 3 <= rounds * thirds || start.elapsed() * 3 < time * thirds;
            // A single process serves the other two thirds.
            let is_killed = is_in(1);
            let is_middle = !is_killed && (middle.is_none() || is_in(2));
            self.round(round, is_killed).await?;
            self.settle(&before).await?;
            used = memory(self.node.process()?)?;
            if is_middle {
                middle = middle.max(Some(used));
            }
            let (operations, seconds) = (self.world.operations(), start.elapsed().as_secs());
            let (faults, kills, kib) = (self.api.affected().len(), self.kills, used >> 10);
            println!("round {round}: {operations} operations, {faults} faults, {kills} kills, {kib} KiB, {seconds} s");
        }
        let middle = middle.ok_or("give at least three rounds")?;
        let limit = middle + middle / 10 + SLACK;
        if used > limit {
            return Err(format!("the node uses {used} bytes in the end, and {middle} in the middle third").into());
        }
        if self.kills == 0 || self.api.affected().is_empty() {
            return Err("the node had no kill or no fault: give more rounds".into());
        }
        let controls = self.controls(&before, limit).await?;
        println!("{VERDICT}: nothing is left, {controls} leaks on purpose were found");
        Ok(())
    }

    async fn round(&mut self, round: u32, is_killed: bool) -> Result<(), Failure> {
        let is_done = AtomicBool::new(false);
        let Self { world, api, node, random, kills, disk } = self;
        let world = &*world;
        let tenants = try_join_all((0..TENANTS).map(|tenant| {
            let mut random = Random::from_seed(random.number());
            async move { world.live(format!("claim-{round}-{tenant}"), &mut random).await }
        }));
        let tenants = async {
            let all = tenants.await;
            is_done.store(true, Ordering::Relaxed);
            all
        };
        let disturb = async {
            let mut started = world.operations();
            while !is_done.load(Ordering::Relaxed) {
                sleep(Duration::from_millis(200 + random.below(600) as u64)).await;
                api.set(*random.one_of(&FAULTS).unwrap_or(&Fault::None));
                sleep(Duration::from_millis(100 + random.below(300) as u64)).await;
                if is_killed && world.operations() >= started + OPERATIONS {
                    node.kill().await?;
                    *node = Node::start(&api.config().cluster_url.to_string(), disk.path()).await?;
                    *kills += 1;
                    started = world.operations();
                }
                api.set(Fault::None);
            }
            Ok::<_, Failure>(())
        };
        let (lived, disturbed) = futures::join!(tenants, disturb);
        disturbed.and(lived.map(drop))?;
        world.fill_disk(round).await
    }

    fn census(&self) -> Result<Census, Failure> {
        Census::take(self.node.process()?, self.disk.path(), &self.world.server)
    }

    /// Census of the idle node.
    async fn baseline(&self) -> Result<Census, Failure> {
        let start = Instant::now();
        let (mut census, mut changed) = (self.census()?, start);
        while changed.elapsed() < QUIET {
            if start.elapsed() > PATIENCE {
                return Err("the node does not become idle".into());
            }
            sleep(PAUSE).await;
            if census.lower(self.census()?) {
                changed = Instant::now();
            }
        }
        Ok(census)
    }

    async fn settle(&self, before: &Census) -> Result<(), Failure> {
        let start = Instant::now();
        loop {
            let leaks = before.leaks(&self.census()?);
            if leaks.is_empty() {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                let all: Vec<_> = leaks.iter().map(ToString::to_string).collect();
                return Err(format!("left after {PATIENCE:?}:\n{}", all.join("\n")).into());
            }
            sleep(PAUSE).await;
        }
    }

    /// Creates a leak of each kind on purpose. Returns the number of leaks.
    async fn controls(&mut self, before: &Census, memory_limit: u64) -> Result<u32, Failure> {
        let root = self.disk.path().to_owned();
        let directory = root.join("volumes").join("leak");
        fs::create_dir(&directory)?;
        self.expect(before, Kind::File)?;
        mount(Some(&directory), &directory, None::<&Path>, MsFlags::MS_BIND, None::<&Path>)?;
        self.expect(before, Kind::Mount)?;
        umount2(&directory, MntFlags::empty())?;
        let path = directory.join("removed");
        let mut file = File::options().read(true).write(true).create_new(true).open(&path)?;
        fs::remove_file(&path)?;
        file.write_all(&vec![1_u8; 4 << 20])?;
        self.expect(before, Kind::Byte)?;
        let device = Control::open()?.attach(&file, &Config::default())?;
        self.expect(before, Kind::LoopDevice)?;
        if device.detach(&file)? != Detach::Detached {
            return Err("the loop device of a control is in use".into());
        }
        drop(file);
        fs::remove_dir(&directory)?;
        let (disk, project) = (File::open(&root)?, ProjectId::new(9_000_000).ok_or("0 is not a project")?);
        fsquota::set_limits(&disk, project, Limits::for_size(Bytes::MIB))?;
        self.expect(before, Kind::Project)?;
        Quotas::open(&disk)?.clear(project)?;
        // The node corrects its published capacity as soon as it can write, so all of its requests fail.
        self.api.set(Fault::Status(StatusCode::SERVICE_UNAVAILABLE));
        let capacity = self.world.server.all(CAPACITIES).pop().ok_or("no capacity is published")?;
        let name = capacity["metadata"]["name"].as_str().unwrap_or_default();
        self.world.server.patch(CAPACITIES, name, json!({"capacity": "1Mi"}))?;
        self.expect(before, Kind::Capacity)?;
        self.api.set(Fault::None);
        self.settle(before).await?;
        self.node.leak(Leak::Descriptor).await?;
        self.expect(before, Kind::Descriptor)?;
        self.node.leak(Leak::Thread).await?;
        self.expect(before, Kind::Thread)?;
        self.node.leak(Leak::Memory).await?;
        if memory(self.node.process()?)? <= memory_limit {
            return Err("a leak of memory on purpose was not found".into());
        }
        Ok(9)
    }

    fn expect(&self, before: &Census, kind: Kind) -> Result<(), Failure> {
        let leaks = before.leaks(&self.census()?);
        let is_found = leaks.iter().any(|leak| leak.kind == kind);
        if is_found { Ok(()) } else { Err(format!("a leak of a {kind:?} on purpose was not found: {leaks:?}").into()) }
    }
}

const FAULTS: [Fault; 4] = [
    Fault::Status(StatusCode::SERVICE_UNAVAILABLE),
    Fault::Status(StatusCode::TOO_MANY_REQUESTS),
    Fault::Cut,
    Fault::Delay(Duration::from_millis(50)),
];
