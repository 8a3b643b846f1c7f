//! Kills within the passes over a VolumeSnapshotContent. The stories act as the snapshot controller.

use cluster::claim::{RESTORE_FROM, ROLLBACK};
use envtest::{Failure, merge};
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::json;

use super::fuse::Kill;
use super::node::{Node, ONE, User};
use super::{ended, with_volume_of};

pub const TAKE: [&str; 5] = [
    "PATCH volumesnapshotcontents",
    "take a snapshot on the disk",
    "copy a snapshot on the disk",
    "PATCH volumesnapshotcontents/status",
    "POST events",
];
pub const GROUP: [&str; 6] = [
    "PATCH volumegroupsnapshotcontents",
    "take a group of snapshots on the disk",
    "copy a snapshot on the disk",
    "PATCH volumegroupsnapshotcontents/status",
    "POST events",
    "remove a snapshot on the disk",
];
pub const REMOVE: [&str; 2] = ["remove a snapshot on the disk", "PATCH volumesnapshotcontents"];

pub const ROLL_BACK: [&str; 6] = [
    "PATCH persistentvolumeclaims",
    "roll back on the disk",
    "POST volumesnapshotcontents",
    "POST volumesnapshots",
    "end the rollback on the disk",
    "POST events",
];

/// Creates a content without the label of a node, so that the node adopts it. Returns its name.
async fn content_of(user: &User) -> Result<String, Failure> {
    let pv = user.pv().await?.ok_or("the claim has no PV")?;
    let source = json!({"volumeHandle": pv.name_any()});
    Ok(user.snapshots().create(&user.claim, None, source, json!({})).await?.name_any())
}

/// Returns `None` if the content shows a snapshot that is ready, and the disk has its copied blocks and its source.
async fn is_not_ready(user: &User, content: &str) -> Result<Option<String>, kube::Error> {
    let status = user.snapshots().contents.get(content).await?.data["status"].clone();
    let volumes = user.on_disk();
    let is_ready = status["readyToUse"] == true && status["snapshotHandle"].is_string() && volumes == [ONE, ONE];
    Ok((!is_ready).then(|| format!("{status}, {volumes:?}")))
}

async fn has_left(user: &User, content: &str) -> Result<Option<String>, kube::Error> {
    let (found, volumes) = (user.snapshots().contents.get_opt(content).await?, user.on_disk());
    let is_left = found.is_some() || volumes != [ONE];
    Ok(is_left.then(|| format!("{:?}, {volumes:?}", found.map(|found| found.metadata))))
}

/// Takes a snapshot. Two passes copy its blocks.
pub async fn take(node: &mut Node, kill: Kill) -> Result<Option<String>, Failure> {
    let user = with_volume_of(node, "Block").await?;
    user.volumes.set_passes(1);
    node.arm(kill);
    let content = content_of(&user).await?;
    let wrong = async |user: &User| is_not_ready(user, &content).await;
    let killed = node.through(user.sees("the snapshot", &wrong)).await?;
    ended(node, killed, wrong).await
}

pub async fn remove(node: &mut Node, kill: Kill) -> Result<Option<String>, Failure> {
    let user = with_volume_of(node, "Block").await?;
    let content = content_of(&user).await?;
    user.sees("the snapshot", async |user: &User| is_not_ready(user, &content).await).await?;
    node.arm(kill);
    let wrong = async |user: &User| has_left(user, &content).await;
    let story = async {
        user.snapshots().delete(&user.claim, &content).await?;
        user.sees("the end of the snapshot", &wrong).await
    };
    let killed = node.through(story).await?;
    ended(node, killed, wrong).await
}

/// Takes and deletes a group with two members. Two passes copy the blocks of one, and one pass those of the other.
pub async fn group(node: &mut Node, kill: Kill) -> Result<Option<String>, Failure> {
    let user = with_volume_of(node, "Block").await?;
    let mut other = user.clone();
    other.claim.push_str("-other");
    other.claim_of("Block").await?;
    other.sees("the other bound claim", async |other: &User| other.is_not_bound("1Gi", &[ONE, ONE]).await).await?;
    let [one, two] = [user.pv().await?, other.pv().await?].map(|pv| pv.map(|pv| pv.name_any()));
    let source = json!({"volumeHandles": [one.ok_or("the claim has no PV")?, two.ok_or("the other claim has no PV")?]});
    user.volumes.set_passes(1);
    node.arm(kill);
    let api = user.snapshots();
    let content = api.create_group(&user.claim, None, source, json!({})).await?.name_any();
    let is_not_ready = async |user: &User| {
        let status = user.snapshots().group_contents.get(&content).await?.data["status"].clone();
        let volumes = user.on_disk();
        let is_ready = status["readyToUse"] == true && volumes == [ONE; 4];
        Ok((!is_ready).then(|| format!("{status}, {volumes:?}")))
    };
    let is_left = async |user: &User| {
        let found = user.snapshots().group_contents.get_opt(&content).await?;
        let volumes = user.on_disk();
        let is_left = found.is_some() || volumes != [ONE, ONE];
        Ok(is_left.then(|| format!("{:?}, {volumes:?}", found.map(|found| found.metadata))))
    };
    let story = async {
        user.sees("the group", &is_not_ready).await?;
        api.delete_group(&user.claim, &content).await?;
        user.sees("the end of the group", &is_left).await
    };
    let killed = node.through(story).await?;
    ended(node, killed, is_left).await
}

/// Returns `None` if the claim has no request, and one snapshot keeps the former content.
async fn is_not_rolled_back(user: &User) -> Result<Option<String>, kube::Error> {
    let claim = user.claims().get(&user.claim).await?;
    let request = [RESTORE_FROM, ROLLBACK].map(|key| claim.annotations().get(key).cloned());
    let prefix = format!("{}-before-rollback-", user.claim);
    let all = user.snapshots().snapshots.list(&ListParams::default()).await?;
    let kept: Vec<_> = all.iter().map(ResourceExt::name_any).filter(|name| name.starts_with(&prefix)).collect();
    let volumes = user.on_disk();
    let is_done = request == [None, None] && kept.len() == 1 && volumes == [ONE, ONE, ONE];
    Ok((!is_done).then(|| format!("{request:?}, {kept:?}, {volumes:?}")))
}

pub async fn roll_back(node: &mut Node, kill: Kill) -> Result<Option<String>, Failure> {
    let user = with_volume_of(node, "Block").await?;
    let content = content_of(&user).await?;
    user.sees("the snapshot", async |user: &User| is_not_ready(user, &content).await).await?;
    user.snapshots().ready(&user.claim, &content).await?;
    user.volumes.set_passes(1);
    node.arm(kill);
    let story = async {
        merge(&user.claims(), &user.claim, json!({"metadata": {"annotations": {RESTORE_FROM: user.claim}}})).await?;
        user.sees("the rollback", is_not_rolled_back).await
    };
    let killed = node.through(story).await?;
    ended(node, killed, is_not_rolled_back).await
}
