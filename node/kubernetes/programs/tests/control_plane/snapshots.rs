//! snapshot-controller.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use cluster::{DRIVER_NAME, TOPOLOGY_KEY};
use envtest::{Cluster, Failure, PATIENCE, Seen, Suite, eventually};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube::{Api, Client, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::json;

pub fn cases(suite: Suite) -> Suite {
    suite.case("a_snapshot_gets_a_content_for_the_node_of_its_volume", a_snapshot_gets_a_content)
}

const NODES: [&str; 2] = ["with-the-volume", "another"];
const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";

fn kind(name: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", name))
}

fn snapshots_of(client: &Client) -> Api<DynamicObject> {
    Api::default_namespaced_with(client.clone(), &kind("VolumeSnapshot"))
}

/// Creates a snapshot of the claim `source`, and returns the content that the controller creates for it.
async fn content_of(client: &Client, name: &str) -> Result<DynamicObject, Failure> {
    let snapshots = snapshots_of(client);
    let contents = Api::<DynamicObject>::all_with(client.clone(), &kind("VolumeSnapshotContent"));
    let snapshot = DynamicObject::new(name, &kind("VolumeSnapshot"))
        .data(json!({"spec": {"source": {"persistentVolumeClaimName": "source"}}}));
    snapshots.create(&PostParams::default(), &snapshot).await?;
    let content = eventually(PATIENCE, "the content of the snapshot", async || {
        let status = snapshots.get(name).await?.data["status"].take();
        Ok::<_, kube::Error>(match status["boundVolumeSnapshotContentName"].as_str() {
            Some(content) => Seen::Done(content.to_owned()),
            None => Seen::NotYet(status.to_string()),
        })
    })
    .await?;
    Ok(contents.get(&content).await?)
}

async fn a_snapshot_gets_a_content(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let client = cluster.admin();
    let controller = cluster.start_snapshots().await?;
    let (nodes, volumes) = (Api::<Node>::all(client.clone()), Api::<PersistentVolume>::all(client.clone()));
    let claims = Api::<PersistentVolumeClaim>::default_namespaced(client.clone());
    for name in NODES {
        let node = json!({"metadata": {"name": name, "labels": {TOPOLOGY_KEY: name}}});
        nodes.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
    }
    let on_the_node = json!([{"key": TOPOLOGY_KEY, "operator": "In", "values": [NODES[0]]}]);
    let volume = json!({
        "metadata": {"name": "source"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "snapshots",
            "csi": {"driver": DRIVER_NAME, "volumeHandle": "handle"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": on_the_node}]}},
        },
    });
    let claim = json!({
        "metadata": {"name": "source"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "snapshots",
        },
    });
    volumes.create(&PostParams::default(), &serde_json::from_value(volume)?).await?;
    claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;
    eventually(PATIENCE, "the claim's phase Bound", async || {
        let phase = claims.get("source").await?.status.and_then(|status| status.phase).unwrap_or_default();
        Ok::<_, kube::Error>(if phase == "Bound" { Seen::Done(()) } else { Seen::NotYet(phase) })
    })
    .await?;

    let content = content_of(&client, "first").await?;
    assert_eq!(content.labels().get(MANAGED_BY).map(String::as_str), Some(NODES[0]));
    let spec = &content.data["spec"];
    assert_eq!(spec["source"]["volumeHandle"], "handle");
    assert_eq!((&spec["driver"], &spec["deletionPolicy"]), (&DRIVER_NAME.into(), &"Delete".into()), "{spec}");

    one_status_does_not_stop_the_controller(&client).await?;

    controller.stop(Duration::from_secs(10)).await?;
    let every = ListParams::default();
    for api in [snapshots_of(&client), Api::all_with(client.clone(), &kind("VolumeSnapshotContent"))] {
        for object in api.list(&every).await? {
            remove(&api, &object.name_any()).await?;
        }
    }
    remove(&claims, "source").await?;
    remove(&volumes, "source").await?;
    for name in NODES {
        remove(&nodes, name).await?;
    }
    Ok(())
}

/// Also if it has a finalizer of the controller.
async fn remove<K: Clone + Debug + DeserializeOwned>(api: &Api<K>, name: &str) -> Result<(), kube::Error> {
    let released = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    let deleted = api.delete(name, &DeleteParams::default()).await.map(drop);
    let patched = api.patch(name, &PatchParams::default(), &released).await.map(drop);
    for result in [deleted, patched] {
        match result {
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            other => other?,
        }
    }
    Ok(())
}

/// Without groups, the controller panics at a snapshot whose status names one. Each panic ended the program.
async fn one_status_does_not_stop_the_controller(client: &Client) -> Result<(), Failure> {
    let snapshots = snapshots_of(client);
    let in_a_group = Patch::Merge(json!({"status": {"volumeGroupSnapshotName": "group"}}));
    snapshots.patch_status("first", &PatchParams::default(), &in_a_group).await?;
    snapshots.delete("first", &DeleteParams::default()).await?;
    let content = content_of(client, "second").await?;
    assert_eq!(content.labels().get(MANAGED_BY).map(String::as_str), Some(NODES[0]));
    Ok(())
}
