//! A snapshot of a block volume, which the next tenant restores.

use e2e::{Case, Claim, Failure, PATIENCE, Seen, Server, eventually};
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use crate::device;
use crate::directory::MARK;
use crate::volumes::DEVICE;

const NAME: &str = "before";
const TEXT: &str = "before the snapshot";
/// A pod has it at `/dev/restored`.
pub const RESTORED: &str = "restored";

/// By the default class. The pod keeps its device.
pub async fn take(case: &Case, pod: &Server) -> Result<(), Failure> {
    pod.write(device::PATH, TEXT).await?;
    let snapshot = serde_json::from_value(json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshot",
        "metadata": {"name": NAME},
        "spec": {"source": {"persistentVolumeClaimName": "device"}},
    }))?;
    let created = case.snapshots().create(&PostParams::default(), &snapshot).await;
    created.map_err(Failure::api("create a snapshot"))?;
    eventually(PATIENCE, "the snapshot to be ready", async || {
        let found = case.snapshots().get(NAME).await.map_err(Failure::api("read the snapshot"))?;
        let ready = found.data["status"]["readyToUse"] == true;
        Ok(if ready { Seen::Done(()) } else { Seen::NotYet(found.data.to_string()) })
    })
    .await
}

/// The volume of the snapshot does not exist any more.
pub fn claim() -> Claim {
    Claim::block(RESTORED, DEVICE[1]).restored_from(NAME)
}

/// The new volume has the text that was written before the snapshot, and nothing of later writes.
pub async fn is_restored(case: &Case, pod: &Server) -> Result<(), Failure> {
    let path = format!("/dev/{RESTORED}");
    assert_eq!(pod.read(&path).await?, TEXT);
    assert_eq!(pod.scan(&path, MARK).await?.found, 0);
    case.snapshots().delete(NAME, &DeleteParams::default()).await.map_err(Failure::api("delete the snapshot"))?;
    eventually(PATIENCE, "the end of the snapshot", async || {
        let found = case.snapshots().get_opt(NAME).await.map_err(Failure::api("look for the snapshot"))?;
        let mut left = case.look_at_the_node().await?.entries;
        left.retain(|entry| entry.path.contains("snapshot-"));
        let is_gone = found.is_none() && left.is_empty();
        Ok(if is_gone { Seen::Done(()) } else { Seen::NotYet(format!("{found:?} {left:?}")) })
    })
    .await?;
    pod.write(&path, "of the next tenant").await?;
    assert_eq!(pod.read(&path).await?, "of the next tenant");
    Ok(())
}
