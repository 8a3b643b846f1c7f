//! Rollbacks in a namespace with a quota of VolumeSnapshots.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cluster::claim::{RESTORE_FROM, ROLLBACK};
use envtest::{Cluster, Failure, create};
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use volume::VolumeId;

use super::{Fixture, snapshot_of};
use crate::node::until;

/// Creates a quota, as an administrator does, which allows no other VolumeSnapshot in the namespace.
async fn forbid_snapshots(fixture: &Fixture) -> Result<Api<ResourceQuota>, Failure> {
    const COUNT: &str = "count/volumesnapshots.snapshot.storage.k8s.io";
    let Fixture { node, api, .. } = fixture;
    let quotas = Api::<ResourceQuota>::namespaced(node.admin.clone(), &node.namespace);
    let quota = json!({"metadata": {"name": "snapshots"}, "spec": {"hard": {COUNT: "1"}}});
    create(&quotas, quota).await?;
    let second = serde_json::from_value(snapshot_of("second", json!({"persistentVolumeClaimName": "data"})))?;
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    // The controller of quotas discovers the resource within 30 seconds, and looks at an earlier quota only when its
    // limits change.
    let others = AtomicU32::new(1000);
    until("the quota in force", async || match api.snapshots.create(&dry, &second).await {
        Err(kube::Error::Api(status)) if status.message.contains("exceeded quota") => Ok(None),
        Err(kube::Error::Api(status)) if status.is_forbidden() => {
            let hard = json!({"count/configmaps": others.fetch_add(1, Ordering::Relaxed).to_string()});
            let changed = Patch::Merge(json!({"spec": {"hard": hard}}));
            quotas.patch("snapshots", &PatchParams::default(), &changed).await?;
            Ok(Some(status.message))
        }
        created => created.map(|found| Some(found.name_any())),
    })
    .await?;
    Ok(quotas)
}

/// The former content has no VolumeSnapshot yet, and the rollback ends when the quota allows one of this name.
async fn quota_allows(
    fixture: Fixture,
    quotas: &Api<ResourceQuota>,
    kept: &VolumeId,
    name: &str,
) -> Result<(), Failure> {
    let record = fixture.node.volumes.record(kept).ok_or("the former content")?;
    assert!(record.rollback().is_some(), "it has not ended");
    quotas.delete("snapshots", &DeleteParams::default()).await?;
    fixture.ended().await?;
    assert_eq!(fixture.kept(name).await?.name_any(), kept.as_str());
    fixture.end().await
}

pub async fn a_quota_denies_a_rollback_before_it_begins(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let fixture = Fixture::new(&cluster, "rollback-quota").await?;
    let Fixture { node, volume, .. } = &fixture;
    let quotas = forbid_snapshots(&fixture).await?;
    fixture.annotate(json!({RESTORE_FROM: "before"})).await?;
    node.event_with("data", "RollbackFailed", &["the volume has its former content", "exceeded quota"]).await?;
    assert_eq!(fixture.annotation(ROLLBACK).await?, None, "nothing is copied");
    assert_eq!(node.volumes.source(volume), None);
    quotas.delete("snapshots", &DeleteParams::default()).await?;
    fixture.ended().await?;
    fixture.end().await
}

/// The owner of a claim uses the quota up while the content is copied, removes the request after the exchange, and
/// begins again. Regression: the former content never had a VolumeSnapshot, and each round kept one more.
pub async fn rollbacks_do_not_bypass_a_quota(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut fixture = Fixture::new(&cluster, "rollback-bypass").await?;
    let (kept, claim) = fixture.end_within_the_copy().await?;
    let quotas = forbid_snapshots(&fixture).await?;
    fixture.exchange(&kept, claim.clone())?;
    fixture.annotate(json!({RESTORE_FROM: null, ROLLBACK: null})).await?;
    fixture.node.run().await?;
    fixture.annotate(json!({RESTORE_FROM: "before"})).await?;
    fixture
        .node
        .event_with("data", "RollbackFailed", &["an earlier rollback", "create the kept snapshot", "exceeded quota"])
        .await?;
    let content = fixture.api.contents.get_opt(kept.as_str()).await?;
    assert!(content.is_none(), "a content would hide the orphan");
    assert_eq!(fixture.annotation(ROLLBACK).await?, None, "no other one begins");
    quota_allows(fixture, &quotas, &kept, &claim.name).await
}

/// The owner of a claim writes the node's annotation, with an ID for which no rollback has begun. Regression: the node
/// did not end the earlier rollback. Each ID kept one more copy until a sweep, or one more former content without a
/// VolumeSnapshot, which no quota limits.
pub async fn an_id_that_a_user_writes_does_not_bypass_a_quota(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut fixture = Fixture::new(&cluster, "rollback-written").await?;
    let earlier = fixture.begin_to_copy().await?;
    let uid = fixture.node.claims().get("data").await?.uid().unwrap_or_default();
    let id = |version: &str| format!("snapshot-{uid}-{version}").parse::<VolumeId>();
    let (first, second) = (id("first")?, id("second")?);
    fixture.annotate(json!({ROLLBACK: first.as_str()})).await?;
    fixture.copied(&first).await?;
    assert_eq!(fixture.node.volumes.record(&earlier), None, "its copy has no request");

    fixture.node.halt().await?;
    let claim = fixture.node.volumes.record(&first).ok_or("a record")?.claim;
    let quotas = forbid_snapshots(&fixture).await?;
    fixture.exchange(&first, claim.clone())?;
    fixture.annotate(json!({ROLLBACK: second.as_str()})).await?;
    fixture.node.run().await?;
    fixture.node.event_with("data", "RollbackFailed", &["an earlier rollback", "exceeded quota"]).await?;
    assert_eq!(fixture.node.volumes.record(&second), None, "no other one begins");
    quota_allows(fixture, &quotas, &first, &claim.name).await
}
