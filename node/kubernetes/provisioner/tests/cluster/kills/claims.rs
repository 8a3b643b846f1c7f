//! Kills within the passes over a claim with a source, and over a claim that gets a VolumeAttributesClass.

use envtest::{Cluster, Failure, create, merge};
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use volume::{IoLimits, VolumeId};

use super::fuse::Kill;
use super::node::{Node, ONE, User};
use super::{ended, with_volume_of};
use crate::clones::clone_of;

const ATTRIBUTES: &str = "kills";
const LIMITS: IoLimits = IoLimits { write_operations: Some(100), ..IoLimits::NONE };

pub const CLONE: [&str; 4] = ["provision on the disk", "POST persistentvolumes", "announce on the disk", "POST events"];
pub const MODIFY: [&str; 4] =
    ["PATCH persistentvolumeclaims/status", "limit the I/O on the disk", "PATCH persistentvolumes", "POST events"];

pub async fn make_attributes_class(cluster: &Cluster) -> Result<(), Failure> {
    let class = json!({
        "metadata": {"name": ATTRIBUTES}, "driverName": "local.granary.dev", "parameters": {"writeIOPS": "100"},
    });
    create(&Api::<VolumeAttributesClass>::all(cluster.admin()), class).await?;
    Ok(())
}

/// Returns `None` if the claim is bound to a clone, which is beside its source.
async fn is_not_cloned(user: &User) -> Result<Option<String>, kube::Error> {
    if let Some(wrong) = user.is_not_bound("1Gi", &[ONE, ONE]).await? {
        return Ok(Some(wrong));
    }
    let pv = user.pv().await?;
    let source = pv.and_then(|pv| user.volumes.source(&pv.name_any().parse::<VolumeId>().ok()?));
    Ok(source.is_none().then(|| "the volume has no source".to_owned()))
}

/// Clones the volume of another claim. Two passes copy its blocks.
pub async fn clone(node: &mut Node, kill: Kill) -> Result<Option<String>, Failure> {
    let source = with_volume_of(node, "Block").await?;
    source.volumes.set_passes(1);
    // The rest of the story is about the claim of the clone.
    node.user.claim.push_str("-clone");
    let user = node.user.clone();
    node.arm(kill);
    let story = async {
        user.claim_with(clone_of(&source.claim)).await?;
        user.sees("the bound clone", is_not_cloned).await
    };
    let killed = node.through(story).await?;
    ended(node, killed, is_not_cloned).await
}

/// Returns `None` if the claim, its PV and the volume have the class, and the claim shows no change.
async fn is_not_modified(user: &User) -> Result<Option<String>, kube::Error> {
    let status = user.claims().get(&user.claim).await?.status.unwrap_or_default();
    let current = status.current_volume_attributes_class_name.as_deref();
    let conditions: Vec<_> = status.conditions.iter().flatten().map(|condition| condition.type_.as_str()).collect();
    let pv = user.pv().await?;
    let of_pv = pv.as_ref().and_then(|pv| pv.spec.as_ref()?.volume_attributes_class_name.as_deref());
    let record = pv.as_ref().and_then(|pv| user.volumes.record(&pv.name_any().parse::<VolumeId>().ok()?));
    let io = record.map(|record| record.io);
    let is_done = (current, of_pv, io) == (Some(ATTRIBUTES), Some(ATTRIBUTES), Some(LIMITS))
        && status.modify_volume_status.is_none()
        && conditions.is_empty();
    let progress = &status.modify_volume_status;
    Ok((!is_done).then(|| format!("{current:?}, {of_pv:?}, {io:?}, {progress:?}, {conditions:?}")))
}

pub async fn modify(node: &mut Node, kill: Kill) -> Result<Option<String>, Failure> {
    let user = with_volume_of(node, "Block").await?;
    node.arm(kill);
    let story = async {
        let request = json!({"spec": {"volumeAttributesClassName": ATTRIBUTES}});
        merge(&user.claims(), &user.claim, request).await?;
        user.sees("the class", is_not_modified).await
    };
    let killed = node.through(story).await?;
    ended(node, killed, is_not_modified).await
}
