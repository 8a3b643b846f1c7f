//! Kills the provisioner before and after each change of the disk and each write to the API server. Another provisioner
//! starts, and the final state is the same as without the kill.
//!
//! The API server is real. The disk is a fake that keeps its records; `//test/crash` cuts the power of a real one.

mod api;
mod claims;
mod disk;
mod fuse;
mod node;
mod snapshots;

use std::collections::{BTreeMap, BTreeSet};

use envtest::{Cluster, Failure, SnapshotApi, Suite, create};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio::sync::{OnceCell, Semaphore};
use units::Bytes;
use volume::State;

pub use self::api::resource;
use self::fuse::{Kill, Passed};
use self::node::{CLASS, NAMESPACE, Node, ONE, Place, User, at};
use crate::node::reconcile;

/// Nodes of all stories at the same time. They mostly wait for passes that are tried again after the kill.
const AT_ONCE: usize = 20;

const DISK: Bytes = Bytes::new(100 << 30);
const SMALL_DISK: Bytes = Bytes::new(512 << 20);

/// Required writes of each story.
const PROVISION: [&str; 4] = ["provision on the disk", "POST persistentvolumes", "announce on the disk", "POST events"];
const UNDO: [&str; 1] = ["undo on the disk"];
const EXPAND: [&str; 4] =
    ["PATCH persistentvolumeclaims/status", "expand on the disk", "PATCH persistentvolumes", "POST events"];
const DELETE: [&str; 4] =
    ["retire on the disk", "DELETE persistentvolumes", "PATCH persistentvolumes", "discard on the disk"];
const RESTORE: [&str; 2] = ["restore on the disk", "PATCH persistentvolumes"];
const RELEASE: [&str; 3] = ["provision on the disk", "PATCH persistentvolumeclaims", "POST events"];

macro_rules! stories {
    ($suite:expr; $($case:ident: $story:literal, $disk:ident, $writes:expr, $run:path;)*) => {
        $suite$(.case(stringify!($case), async |cluster| {
            everywhere(&cluster, $story, $disk, &$writes, $run).await
        }))*
    };
}

/// The stories run at the same time, because the last nodes of each mostly wait.
pub fn cases(suite: Suite) -> Suite {
    suite.at_once(stories![
        Suite::new();
        one_volume_is_created_wherever_the_process_is_killed: "provision", DISK, PROVISION, provision;
        a_staged_volume_is_undone_wherever_the_process_is_killed: "undo", DISK, UNDO, undo;
        a_volume_grows_wherever_the_process_is_killed: "expand", DISK, EXPAND, expand;
        a_volume_is_deleted_wherever_the_process_is_killed: "delete", DISK, DELETE, delete;
        a_retained_volume_is_restored_wherever_the_process_is_killed: "restore", DISK, RESTORE, restore;
        a_full_node_releases_the_claim_wherever_it_is_killed: "release", SMALL_DISK, RELEASE, release;
        a_snapshot_is_taken_wherever_the_process_is_killed: "snapshot", DISK, snapshots::TAKE, snapshots::take;
        a_snapshot_is_removed_wherever_the_process_is_killed: "removal", DISK, snapshots::REMOVE, snapshots::remove;
        a_group_is_taken_and_removed_wherever_the_process_is_killed: "group", DISK, snapshots::GROUP, snapshots::group;
        a_claim_is_rolled_back_wherever_the_process_is_killed:
            "rollback", DISK, snapshots::ROLL_BACK, snapshots::roll_back;
        a_claim_is_cloned_wherever_the_process_is_killed: "clone", DISK, claims::CLONE, claims::clone;
        a_volume_gets_a_class_wherever_the_process_is_killed: "modify", DISK, claims::MODIFY, claims::modify;
    ])
}

async fn prepare(cluster: &Cluster) -> Result<(), Failure> {
    reconcile(cluster).await?;
    create(&Api::<Namespace>::all(cluster.admin()), json!({"metadata": {"name": NAMESPACE}})).await?;
    let class = json!({
        "metadata": {"name": CLASS}, "provisioner": "local.granary.dev", "volumeBindingMode": "WaitForFirstConsumer",
        "reclaimPolicy": "Delete", "allowVolumeExpansion": true,
    });
    create(&Api::<StorageClass>::all(cluster.admin()), class).await?;
    claims::make_attributes_class(cluster).await?;
    SnapshotApi::install(cluster, NAMESPACE).await?;
    Ok(())
}

/// Runs the story without a kill, and then once for each of its boundaries, on a node of its own. Fails if a boundary
/// before or after one of `writes` is missing.
async fn everywhere(
    cluster: &Cluster,
    story: &str,
    disk: Bytes,
    writes: &[&str],
    run: impl AsyncFn(&mut Node, Kill) -> Result<Option<String>, Failure>,
) -> Result<(), Failure> {
    static PREPARED: OnceCell<()> = OnceCell::const_new();
    static PERMITS: Semaphore = Semaphore::const_new(AT_ONCE);
    PREPARED.get_or_try_init(|| prepare(cluster)).await?;
    let once = async |(number, kill): (usize, Kill)| -> Result<(Option<String>, Passed), Failure> {
        let _permit = PERMITS.acquire().await?;
        let mut node = Node::new(cluster, format!("{story}-{number}"), disk).await?;
        let killed = run(&mut node, kill.clone()).await;
        let at = |error: Failure| format!("{story}, {kill:?}: {}", envtest::chain(error.as_ref()));
        Ok((killed.map_err(at)?, node.passed.clone()))
    };
    let (_, passed) = once((0, Kill::Never)).await?;
    let kills = passed.iter().flat_map(|(name, count)| (1..=*count).map(|nth| Kill::At(name.clone(), nth)));
    let kills: Vec<_> = (1..).zip(kills).collect();
    let runs = stream::iter(kills.iter().cloned()).map(&once).buffer_unordered(AT_ONCE);
    let runs = runs.try_collect::<Vec<_>>().await?;
    let killed: BTreeSet<String> = runs.into_iter().filter_map(|(boundary, _)| boundary).collect();
    println!("{story}: {} kills, at {killed:?}", kills.len());
    let wanted = writes.iter().flat_map(|write| ["before", "after"].map(|when| format!("{when} {write}")));
    let missed: Vec<_> = wanted.filter(|boundary| !killed.contains(boundary)).collect();
    if missed.is_empty() { Ok(()) } else { Err(format!("{story} was not killed {missed:?}, but {killed:?}").into()) }
}

/// Ends the story. The process may be killed after its last visible effect too. `wrong` describes differences from the
/// expected state.
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
    let mut events: BTreeMap<String, i32> = BTreeMap::new();
    for (reason, count) in user.event_counts().await? {
        *events.entry(reason).or_default() += count;
    }
    // Each process publishes at most one event of a reason.
    match events.into_iter().find(|(_, count)| *count > 2) {
        Some((reason, count)) => Err(at(&boundary, format!("{count} events {reason}").into())),
        None => Ok(killed),
    }
}

async fn is_bound(user: &User) -> Result<Option<String>, kube::Error> {
    user.is_not_bound("1Gi", &[ONE]).await
}

async fn is_larger(user: &User) -> Result<Option<String>, kube::Error> {
    user.is_not_bound("2Gi", &[(Place::Live, State::Announced, Bytes::new(2 << 30))]).await
}

async fn is_gone(user: &User) -> Result<Option<String>, kube::Error> {
    user.has_left().await
}

async fn with_volume(node: &mut Node) -> Result<User, Failure> {
    with_volume_of(node, "Filesystem").await
}

async fn with_volume_of(node: &mut Node, volume_mode: &str) -> Result<User, Failure> {
    let user = node.user.clone();
    user.claim_of(volume_mode).await?;
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

/// The claim is deleted between the creation of the volume and of its PV.
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

/// The policy of the PV becomes Retain when its volume is in the trash.
async fn restore(node: &mut Node, kill: Kill) -> Result<Option<String>, Failure> {
    async fn is_kept(user: &User) -> Result<Option<String>, kube::Error> {
        let volumes = user.on_disk();
        let pv = user.pv().await?.map(|pv| {
            let marked = pv.finalizers().iter().any(|name| name == provisioner::FINALIZER);
            (marked, pv.metadata.deletion_timestamp.is_some())
        });
        let right = volumes == [ONE] && pv == Some((false, false));
        Ok((!right).then(|| format!("{volumes:?}, PV with finalizer and with deletion: {pv:?}")))
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
        if claim { user.has_left().await } else { Ok(Some("this node is still selected for the claim".to_owned())) }
    }

    let user = node.user.clone();
    user.claim().await?;
    node.start(kill).await?;
    let killed = node.through(user.sees("the claim without its node", is_released)).await?;
    ended(node, killed, is_released).await
}
