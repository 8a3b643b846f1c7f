//! Snapshots of a block volume and of a filesystem volume, alone and in a group. The next tenant restores from them. A
//! rollback returns the device to its earlier snapshot in the group.

use cluster::claim::{RESTORE_FROM, ROLLBACK};
use e2e::{Case, Claim, Failure, PATIENCE, Seen, Server, eventually};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::directory::MARK;
use crate::status;
use crate::volumes::{DEVICE, DIRECTORY};

/// Group with the snapshots of the device and of the files.
const GROUP: &str = "before";
const OF_FILES: &str = "files";
/// Snapshot of the device after the rollback.
const AFTER: &str = "after";
/// Content of both volumes at the snapshots.
pub const TEXT: &str = "before the snapshot";
/// Claim that a pod has at `/dev/restored`.
pub const RESTORED: &str = "restored";
/// Claim that a pod has at `/kept`.
pub const KEPT: &str = "kept";

/// Takes snapshots with the default classes. The pods with the volumes are briefly frozen.
pub async fn take(case: &Case) -> Result<(), Failure> {
    const PAUSES: &str = "granary_pod_pause_duration_seconds_count";
    let before = status::number(case, PAUSES).await?;
    tokio::try_join!(group_is_taken(case), taken(case, OF_FILES, "data"))?;
    // The first pod runs with both volumes: the group and the snapshot of the files each freeze it.
    let after = status::number(case, PAUSES).await?;
    assert!(before.is_some_and(|before| after >= Some(before + 2)), "pauses: {before:?}, then {after:?}");
    Ok(())
}

async fn group_is_taken(case: &Case) -> Result<(), Failure> {
    let labels = json!({"group": GROUP});
    for claim in ["data", "device"] {
        let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
        let patched = case.api::<PersistentVolumeClaim>().patch(claim, &PatchParams::default(), &patch).await;
        patched.map_err(Failure::api("label a claim"))?;
    }
    let group = serde_json::from_value(json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1",
        "kind": "VolumeGroupSnapshot",
        "metadata": {"name": GROUP},
        "spec": {"source": {"selector": {"matchLabels": labels}}},
    }))?;
    let created = case.snapshot_groups().create(&PostParams::default(), &group).await;
    created.map_err(Failure::api("create a group of snapshots"))?;
    is_ready(&case.snapshot_groups(), GROUP).await?;
    of_group(case, "device").await.map(drop)
}

async fn is_ready(api: &Api<DynamicObject>, name: &str) -> Result<(), Failure> {
    eventually(PATIENCE, &format!("{name} to be ready"), async || {
        let found = api.get(name).await.map_err(Failure::api("read a snapshot or group"))?;
        let ready = found.data["status"]["readyToUse"] == true;
        Ok(if ready { Seen::Done(()) } else { Seen::NotYet(found.data.to_string()) })
    })
    .await
}

/// Name of the ready snapshot that the snapshot controller has created for a claim of the group.
async fn of_group(case: &Case, claim: &str) -> Result<String, Failure> {
    eventually(PATIENCE, "the snapshots of the group", async || {
        let all = case.snapshots().list(&ListParams::default()).await.map_err(Failure::api("list the snapshots"))?;
        let of_claim = |found: &&DynamicObject| {
            found.data["status"]["volumeGroupSnapshotName"] == GROUP
                && found.data["spec"]["source"]["persistentVolumeClaimName"] == claim
        };
        Ok(match all.iter().find(of_claim) {
            Some(found) if found.data["status"]["readyToUse"] == true => Seen::Done(found.name_any()),
            other => Seen::NotYet(format!("{other:?} of {}", all.items.len())),
        })
    })
    .await
}

async fn taken(case: &Case, name: &str, claim: &str) -> Result<(), Failure> {
    let snapshot = serde_json::from_value(json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshot",
        "metadata": {"name": name},
        "spec": {"source": {"persistentVolumeClaimName": claim}},
    }))?;
    let created = case.snapshots().create(&PostParams::default(), &snapshot).await;
    created.map_err(Failure::api("create a snapshot"))?;
    is_ready(&case.snapshots(), name).await
}

/// Restores the device, which no pod uses, from its snapshot in the group. A snapshot of the restored content then
/// replaces the group. The test deletes the snapshot of the former content when it is ready.
pub async fn roll_back(case: &Case) -> Result<(), Failure> {
    let claims = case.api::<PersistentVolumeClaim>();
    let source = of_group(case, "device").await?;
    let patch = Patch::Merge(json!({"metadata": {"annotations": {RESTORE_FROM: source}}}));
    claims.patch("device", &PatchParams::default(), &patch).await.map_err(Failure::api("request the rollback"))?;
    eventually(PATIENCE, "the end of the rollback", async || {
        let found = claims.get("device").await.map_err(Failure::api("read the claim"))?;
        let is_done = [RESTORE_FROM, ROLLBACK].iter().all(|key| !found.annotations().contains_key(*key));
        Ok(if is_done { Seen::Done(()) } else { Seen::NotYet(format!("{:?}", found.metadata.annotations)) })
    })
    .await?;
    let kept = eventually(PATIENCE, "the snapshot of the former content to be ready", async || {
        let all = case.snapshots().list(&ListParams::default()).await.map_err(Failure::api("list the snapshots"))?;
        let is_kept = |found: &&DynamicObject| found.name_any().starts_with("device-before-rollback-");
        Ok(match all.iter().find(is_kept) {
            Some(found) if found.data["status"]["readyToUse"] == true => Seen::Done(found.name_any()),
            other => Seen::NotYet(format!("{other:?}")),
        })
    })
    .await?;
    taken(case, AFTER, "device").await?;
    case.snapshots().delete(&kept, &DeleteParams::default()).await.map_err(Failure::api("delete a snapshot"))?;
    case.snapshot_groups().delete(GROUP, &DeleteParams::default()).await.map_err(Failure::api("delete the group"))?;
    Ok(())
}

/// Claims that are restored from the snapshots. The source volumes do not exist any more.
pub fn claims() -> [Claim; 2] {
    let kept = Claim::new(KEPT, DIRECTORY[1]).restored_from(OF_FILES);
    [Claim::block(RESTORED, DEVICE[1]).restored_from(AFTER), kept]
}

/// The new volumes contain the text from before the first snapshots, and no data of later writes.
pub async fn is_restored(case: &Case, pod: &Server) -> Result<(), Failure> {
    let path = format!("/dev/{RESTORED}");
    assert_eq!(pod.read(&path).await?, TEXT);
    assert_eq!(pod.scan(&path, MARK).await?.found, 0);
    let note = format!("/{KEPT}/note");
    assert_eq!(pod.read(&note).await?, TEXT);
    case.own_project(KEPT, DIRECTORY[1]).await?;
    for name in [AFTER, OF_FILES] {
        case.snapshots().delete(name, &DeleteParams::default()).await.map_err(Failure::api("delete the snapshot"))?;
    }
    eventually(PATIENCE, "the end of the snapshots", async || {
        let mut found = Vec::new();
        for name in [AFTER, OF_FILES] {
            found.extend(case.snapshots().get_opt(name).await.map_err(Failure::api("look for the snapshot"))?);
        }
        found.extend(case.snapshot_groups().get_opt(GROUP).await.map_err(Failure::api("look for the group"))?);
        let mut left = case.look_at_the_node().await?.entries;
        left.retain(|entry| ["snapshot-", "group-"].iter().any(|prefix| entry.path.contains(prefix)));
        let is_gone = found.is_empty() && left.is_empty();
        Ok(if is_gone { Seen::Done(()) } else { Seen::NotYet(format!("{found:?} {left:?}")) })
    })
    .await?;
    for path in [path, note] {
        pod.write(&path, "of the next tenant").await?;
        assert_eq!(pod.read(&path).await?, "of the next tenant");
    }
    Ok(())
}
