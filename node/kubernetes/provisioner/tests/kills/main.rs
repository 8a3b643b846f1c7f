//! The provisioner is killed before and after everything that stays: each change of the disk and each write to the API
//! server. Another one starts, and what is there in the end is what would be there without the kill.
//!
//! The API server is real. The disk is a fake that keeps its records when the process is killed; what a power cut
//! leaves of a real one is shown by `//test/crash`.

mod api;
mod disk;
mod fuse;
mod node;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use envtest::{Cluster, Failure, Suite};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::PostParams;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use supervisor::Supervisor;
use tokio::sync::OnceCell;
use units::Bytes;
use volume::State;

use crate::fuse::Kill;
use crate::node::{CLASS, NAMESPACE, Node, Place, User, at};

/// Nodes whose provisioners are killed at the same time.
const AT_ONCE: usize = 4;

/// How long the reconciler may take to end.
const STOP: Duration = Duration::from_secs(20);

/// No story has so many boundaries.
const MOST: usize = 120;

const DISK: Bytes = Bytes::new(100 << 30);
const SMALL_DISK: Bytes = Bytes::new(512 << 20);

fn main() -> ExitCode {
    Suite::new()
        .case("a_volume_is_made_once_wherever_the_process_is_killed", async |cluster| {
            everywhere(&cluster, "provision", DISK, provision).await
        })
        .case("a_volume_without_a_claim_is_undone_wherever_the_process_is_killed", async |cluster| {
            everywhere(&cluster, "undo", DISK, undo).await
        })
        .case("a_volume_grows_wherever_the_process_is_killed", async |cluster| {
            everywhere(&cluster, "expand", DISK, expand).await
        })
        .case("a_volume_is_deleted_wherever_the_process_is_killed", async |cluster| {
            everywhere(&cluster, "delete", DISK, delete).await
        })
        .case("a_volume_that_became_retained_comes_back_wherever_the_process_is_killed", async |cluster| {
            everywhere(&cluster, "restore", DISK, restore).await
        })
        .case("a_claim_without_room_is_released_wherever_the_process_is_killed", async |cluster| {
            everywhere(&cluster, "release", SMALL_DISK, release).await
        })
        .run()
}

/// The objects that all cases share.
async fn prepare(cluster: &Cluster) -> Result<(), Failure> {
    let admin = cluster.admin();
    let client = admin.clone();
    let reconciler =
        Supervisor::start("reconciler", supervisor::Settings::default(), move |cx| reconciler::run(cx, client.clone()));
    reconciler.handle().healthy().await?;
    reconciler.stop(STOP).await?;
    let namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}}))?;
    Api::<Namespace>::all(admin.clone()).create(&PostParams::default(), &namespace).await?;
    let class = json!({
        "metadata": {"name": CLASS}, "provisioner": "local.granary.dev", "volumeBindingMode": "WaitForFirstConsumer",
        "reclaimPolicy": "Delete", "allowVolumeExpansion": true,
    });
    Api::<StorageClass>::all(admin).create(&PostParams::default(), &serde_json::from_value(class)?).await?;
    Ok(())
}

/// Tells the story once for each boundary, on a node of its own, until it ends before the process is killed.
async fn everywhere(
    cluster: &Cluster,
    story: &str,
    disk: Bytes,
    tell: impl AsyncFn(&mut Node, Kill) -> Result<Option<String>, Failure>,
) -> Result<(), Failure> {
    static PREPARED: OnceCell<()> = OnceCell::const_new();
    PREPARED.get_or_try_init(|| prepare(cluster)).await?;
    let once = async |number: usize| -> Result<Option<String>, Failure> {
        let mut node = Node::new(cluster, format!("{story}-{number}"), disk).await?;
        let killed = tell(&mut node, Kill::At(number)).await;
        killed.map_err(|error| format!("{story}, boundary {number}: {}", eventually::chain(error.as_ref())).into())
    };
    let mut boundaries = Vec::new();
    for first in (1..MOST).step_by(AT_ONCE) {
        let told = join_all((first..first + AT_ONCE).map(&once)).await;
        let killed = told.into_iter().collect::<Result<Vec<_>, _>>()?;
        let ends = killed.contains(&None);
        boundaries.extend(killed.into_iter().flatten());
        if ends && boundaries.is_empty() {
            return Err(format!("{story} has no boundary").into());
        }
        if ends {
            println!("killed at {} boundaries: {}", boundaries.len(), boundaries.join(", "));
            return Ok(());
        }
    }
    Err(format!("{story} has no end after {MOST} boundaries: {boundaries:?}").into())
}

/// Ends the story: also what comes after the last thing that a user sees may be killed. `wrong` says what is not as it
/// would be without a kill.
async fn ended(
    node: &mut Node,
    killed: Option<String>,
    wrong: impl AsyncFn(&User) -> Result<Option<String>, kube::Error>,
) -> Result<Option<String>, Failure> {
    let user = node.user.clone();
    let mut killed = killed;
    if let Some(boundary) = node.halt().await? {
        node.start(Kill::Never).await?;
        user.sees("the same end", &wrong).await.map_err(|error| at(&boundary, error))?;
        node.halt().await?;
        killed = Some(boundary);
    }
    let boundary = killed.clone().unwrap_or_else(|| "nowhere".to_owned());
    if let Some(wrong) = wrong(&user).await? {
        return Err(at(&boundary, wrong.into()));
    }
    let mut told: BTreeMap<String, i32> = BTreeMap::new();
    for (reason, count) in user.told().await? {
        *told.entry(reason).or_default() += count;
    }
    // Each of two processes may say it, and no more.
    match told.into_iter().find(|(_, count)| *count > 2) {
        Some((reason, count)) => Err(at(&boundary, format!("{reason} is told {count} times").into())),
        None => Ok(killed),
    }
}

async fn is_bound(user: &User) -> Result<Option<String>, kube::Error> {
    user.is_not_bound("1Gi", Bytes::GIB).await
}

async fn is_larger(user: &User) -> Result<Option<String>, kube::Error> {
    user.is_not_bound("2Gi", Bytes::new(2 << 30)).await
}

async fn is_gone(user: &User) -> Result<Option<String>, kube::Error> {
    user.has_left().await
}

/// A node with a bound claim, whose process runs.
async fn with_volume(node: &mut Node) -> Result<User, Failure> {
    let user = node.user.clone();
    user.claim().await?;
    node.start(Kill::Never).await?;
    user.sees("the bound claim", is_bound).await?;
    Ok(user)
}

async fn provision(node: &mut Node, kill: Kill) -> Result<Option<String>, Failure> {
    let user = node.user.clone();
    user.claim().await?;
    node.start(kill).await?;
    let killed = node.through(user.sees("the bound claim", is_bound)).await?;
    ended(node, killed, is_bound).await
}

/// The claim is deleted after the volume was made and before its PV was.
async fn undo(node: &mut Node, kill: Kill) -> Result<Option<String>, Failure> {
    let user = node.user.clone();
    user.claim().await?;
    node.start(Kill::On("after provision on the disk")).await?;
    node.dies().await?;
    user.delete().await?;
    node.start(kill).await?;
    let killed = node.through(user.sees("the end of the volume", is_gone)).await?;
    ended(node, killed, is_gone).await
}

async fn expand(node: &mut Node, kill: Kill) -> Result<Option<String>, Failure> {
    let user = with_volume(node).await?;
    node.arm(kill);
    let story = async {
        user.enlarge("2Gi").await?;
        user.sees("the larger volume", is_larger).await
    };
    let killed = node.through(story).await?;
    ended(node, killed, is_larger).await
}

async fn delete(node: &mut Node, kill: Kill) -> Result<Option<String>, Failure> {
    let user = with_volume(node).await?;
    node.arm(kill);
    let story = async {
        user.delete().await?;
        user.sees("the end of the volume", is_gone).await
    };
    let killed = node.through(story).await?;
    ended(node, killed, is_gone).await
}

/// The PV becomes Retain when its volume is in the trash already.
async fn restore(node: &mut Node, kill: Kill) -> Result<Option<String>, Failure> {
    async fn is_kept(user: &User) -> Result<Option<String>, kube::Error> {
        let volumes = user.on_disk();
        let marked = user.pv().await?.map(|pv| pv.finalizers().iter().any(|name| name == provisioner::FINALIZER));
        let right = volumes == [(Place::Live, State::Announced, Bytes::GIB)] && marked == Some(false);
        Ok((!right).then(|| format!("{volumes:?}, a PV with our finalizer: {marked:?}")))
    }

    let user = with_volume(node).await?;
    node.arm(Kill::On("after retire on the disk"));
    user.delete().await?;
    node.dies().await?;
    user.retain().await?;
    node.start(kill).await?;
    let killed = node.through(user.sees("the volume that stays", is_kept)).await?;
    ended(node, killed, is_kept).await
}

async fn release(node: &mut Node, kill: Kill) -> Result<Option<String>, Failure> {
    async fn is_released(user: &User) -> Result<Option<String>, kube::Error> {
        let claim = user.is_released().await?;
        if claim { user.has_left().await } else { Ok(Some("the claim is still this node's".to_owned())) }
    }

    let user = node.user.clone();
    user.claim().await?;
    node.start(kill).await?;
    let killed = node.through(user.sees("the claim without its node", is_released)).await?;
    ended(node, killed, is_released).await
}
