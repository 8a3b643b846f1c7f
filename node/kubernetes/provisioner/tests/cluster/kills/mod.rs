//! The provisioner is killed before and after everything that stays: each change of the disk and each write to the API
//! server. Another one starts, and what is there in the end is what would be there without the kill.
//!
//! The API server is real. The disk is a fake that keeps its records when the process is killed; what a power cut
//! leaves of a real one is shown by `//test/crash`.

mod api;
mod disk;
mod fuse;
mod node;

use std::collections::{BTreeMap, BTreeSet};

use envtest::{Cluster, Failure, Suite};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::PostParams;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio::sync::OnceCell;
use units::Bytes;
use volume::State;

use self::fuse::{Kill, Passed};
use self::node::{CLASS, NAMESPACE, Node, Place, User, at};
use crate::node::reconcile;

/// Nodes whose provisioners are killed at the same time.
const AT_ONCE: usize = 4;

const DISK: Bytes = Bytes::new(100 << 30);
const SMALL_DISK: Bytes = Bytes::new(512 << 20);

/// What the process writes in each story, at least.
const PROVISION: [&str; 4] = ["provision on the disk", "POST persistentvolumes", "announce on the disk", "POST events"];
const UNDO: [&str; 1] = ["undo on the disk"];
const EXPAND: [&str; 4] =
    ["PATCH persistentvolumeclaims/status", "expand on the disk", "PATCH persistentvolumes", "POST events"];
const DELETE: [&str; 4] =
    ["retire on the disk", "DELETE persistentvolumes", "PATCH persistentvolumes", "discard on the disk"];
const RESTORE: [&str; 2] = ["restore on the disk", "PATCH persistentvolumes"];
const RELEASE: [&str; 3] = ["provision on the disk", "PATCH persistentvolumeclaims", "POST events"];

pub fn cases(suite: Suite) -> Suite {
    suite
        .case("a_volume_is_made_once_wherever_the_process_is_killed", async |cluster| {
            everywhere(&cluster, "provision", DISK, &PROVISION, provision).await
        })
        .case("a_volume_without_a_claim_is_undone_wherever_the_process_is_killed", async |cluster| {
            everywhere(&cluster, "undo", DISK, &UNDO, undo).await
        })
        .case("a_volume_grows_wherever_the_process_is_killed", async |cluster| {
            everywhere(&cluster, "expand", DISK, &EXPAND, expand).await
        })
        .case("a_volume_is_deleted_wherever_the_process_is_killed", async |cluster| {
            everywhere(&cluster, "delete", DISK, &DELETE, delete).await
        })
        .case("a_volume_that_became_retained_comes_back_wherever_the_process_is_killed", async |cluster| {
            everywhere(&cluster, "restore", DISK, &RESTORE, restore).await
        })
        .case("a_claim_without_room_is_released_wherever_the_process_is_killed", async |cluster| {
            everywhere(&cluster, "release", SMALL_DISK, &RELEASE, release).await
        })
}

/// The objects that all cases share.
async fn prepare(cluster: &Cluster) -> Result<(), Failure> {
    reconcile(cluster).await?;
    let admin = cluster.admin();
    let namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}}))?;
    Api::<Namespace>::all(admin.clone()).create(&PostParams::default(), &namespace).await?;
    let class = json!({
        "metadata": {"name": CLASS}, "provisioner": "local.granary.dev", "volumeBindingMode": "WaitForFirstConsumer",
        "reclaimPolicy": "Delete", "allowVolumeExpansion": true,
    });
    Api::<StorageClass>::all(admin).create(&PostParams::default(), &serde_json::from_value(class)?).await?;
    Ok(())
}

/// Tells the story without a kill, and then once for each boundary that it had, on a node of its own. The boundaries
/// include those before and after each of `writes`: a write that is no boundary would be found by nobody else.
async fn everywhere(
    cluster: &Cluster,
    story: &str,
    disk: Bytes,
    writes: &[&str],
    tell: impl AsyncFn(&mut Node, Kill) -> Result<Option<String>, Failure>,
) -> Result<(), Failure> {
    static PREPARED: OnceCell<()> = OnceCell::const_new();
    PREPARED.get_or_try_init(|| prepare(cluster)).await?;
    let once = async |(number, kill): (usize, Kill)| -> Result<(Option<String>, Passed), Failure> {
        let mut node = Node::new(cluster, format!("{story}-{number}"), disk).await?;
        let killed = tell(&mut node, kill.clone()).await;
        let at = |error: Failure| format!("{story}, {kill:?}: {}", envtest::chain(error.as_ref()));
        Ok((killed.map_err(at)?, node.passed.clone()))
    };
    let (_, passed) = once((0, Kill::Never)).await?;
    let kills = passed.iter().flat_map(|(name, count)| (1..=*count).map(|nth| Kill::At(name.clone(), nth)));
    let kills: Vec<_> = (1..).zip(kills).collect();
    let mut killed = BTreeSet::new();
    for kills in kills.chunks(AT_ONCE) {
        for told in join_all(kills.iter().cloned().map(&once)).await {
            killed.extend(told?.0);
        }
    }
    println!("{story}: {} kills, at {killed:?}", kills.len());
    let wanted = writes.iter().flat_map(|write| ["before", "after"].map(|when| format!("{when} {write}")));
    let missed: Vec<_> = wanted.filter(|boundary| !killed.contains(boundary)).collect();
    if missed.is_empty() { Ok(()) } else { Err(format!("{story} was not killed {missed:?}, but {killed:?}").into()) }
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
    node.start(Kill::first("after provision on the disk")).await?;
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
    node.arm(Kill::first("after retire on the disk"));
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
