//! snapshot-controller.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use cluster::snapshot::group;
use cluster::{DRIVER_NAME, TOPOLOGY_KEY};
use envtest::{Cluster, Failure, PATIENCE, Seen, Suite, create, eventually, merge, merge_status, reached};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube::{Api, Client, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::controllers::is_available;

pub fn cases(suite: Suite) -> Suite {
    suite.case("a_snapshot_and_a_group_get_contents_with_the_node_and_the_volumes", a_snapshot_gets_a_content)
}

const NODES: [&str; 2] = ["with-the-volume", "another"];
const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";

fn kind(name: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", name))
}

fn group_kind(name: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group::GROUP, "v1", name))
}

fn groups_of(client: &Client) -> Api<DynamicObject> {
    Api::default_namespaced_with(client.clone(), &group_kind(group::SNAPSHOT))
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
        create(&nodes, node).await?;
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
    let claim = envtest::claim(json!({"name": "source", "labels": {"app": "shop"}}), "snapshots", json!({}));
    create(&volumes, volume).await?;
    is_available(&volumes, "source").await?;
    create(&claims, claim).await?;
    envtest::bound(&claims, "source").await?;

    let content = content_of(&client, "first").await?;
    assert_eq!(content.labels().get(MANAGED_BY).map(String::as_str), Some(NODES[0]));
    let spec = &content.data["spec"];
    assert_eq!(spec["source"]["volumeHandle"], "handle");
    assert_eq!((&spec["driver"], &spec["deletionPolicy"]), (&DRIVER_NAME.into(), &"Delete".into()), "{spec}");

    one_status_does_not_stop_the_controller(&client).await?;
    a_group_gets_members(&client).await?;

    controller.stop(Duration::from_secs(10)).await?;
    let every = ListParams::default();
    let group_contents = Api::all_with(client.clone(), &group_kind("VolumeGroupSnapshotContent"));
    for api in [
        groups_of(&client),
        group_contents,
        snapshots_of(&client),
        Api::all_with(client.clone(), &kind("VolumeSnapshotContent")),
    ] {
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

/// Deletes the object even if it has a finalizer of the controller.
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

/// Regression: without support for groups, the controller panicked at a snapshot whose status names a group.
async fn one_status_does_not_stop_the_controller(client: &Client) -> Result<(), Failure> {
    let snapshots = snapshots_of(client);
    merge_status(&snapshots, "first", json!({"status": {"volumeGroupSnapshotName": "group"}})).await?;
    snapshots.delete("first", &DeleteParams::default()).await?;
    let content = content_of(client, "second").await?;
    assert_eq!(content.labels().get(MANAGED_BY).map(String::as_str), Some(NODES[0]));
    Ok(())
}

/// The test writes the status of the group's content, as the node does. The node depends on this behavior of the
/// controller: the content names the volumes and has no label; member snapshots are created with the handle and have
/// its annotation; members are deleted after the content of the group.
async fn a_group_gets_members(client: &Client) -> Result<(), Failure> {
    let (groups, snapshots) = (groups_of(client), snapshots_of(client));
    let group_contents = Api::<DynamicObject>::all_with(client.clone(), &group_kind(group::CONTENT));
    let contents = Api::<DynamicObject>::all_with(client.clone(), &kind("VolumeSnapshotContent"));
    let group = DynamicObject::new("group", &group_kind(group::SNAPSHOT)).data(json!({
        "spec": {"source": {"selector": {"matchLabels": {"app": "shop"}}}},
    }));
    groups.create(&PostParams::default(), &group).await?;
    let name = eventually(PATIENCE, "the content of the group", async || {
        let status = groups.get("group").await?.data["status"].take();
        Ok::<_, kube::Error>(match status["boundVolumeGroupSnapshotContentName"].as_str() {
            Some(content) => Seen::Done(content.to_owned()),
            None => Seen::NotYet(status.to_string()),
        })
    })
    .await?;
    let (found, is_protected) = (
        async || group_contents.get(&name).await,
        |content: &DynamicObject| content.finalizers().iter().any(|finalizer| finalizer == group::PROTECTION),
    );
    let content = reached("the finalizer of the content", found, is_protected).await?;
    let spec = &content.data["spec"];
    assert_eq!(spec["source"], json!({"volumeHandles": ["handle"]}));
    assert_eq!((&spec["driver"], &spec["volumeGroupSnapshotClassName"]), (&DRIVER_NAME.into(), &"local".into()));
    assert_eq!(content.labels().get(MANAGED_BY), None, "the node sets it");

    let begun = json!({"status": {"creationTime": "2026-01-01T00:00:00.123456789Z", "readyToUse": false}});
    merge_status(&group_contents, &name, begun).await?;
    let (handle, member) = ("group-1", "group-1-handle");
    let info = json!({
        "volumeHandle": "handle", "snapshotHandle": member, "creationTime": 1, "restoreSize": 2, "readyToUse": true,
    });
    let ready = json!({"status": {
        "volumeGroupSnapshotHandle": handle, "readyToUse": true, "volumeSnapshotInfoList": [info],
    }});
    merge_status(&group_contents, &name, ready).await?;
    let of_group = async || -> Result<Option<DynamicObject>, kube::Error> {
        let all = contents.list(&ListParams::default()).await?;
        let is_of = |content: &DynamicObject| content.annotations().get(group::HANDLE).is_some_and(|of| of == handle);
        Ok(all.into_iter().find(is_of))
    };
    let (snapshot, member_content) = eventually(PATIENCE, "a member that is ready", async || {
        let Some(content) = of_group().await? else { return Ok(Seen::NotYet("no content".to_owned())) };
        let name = content.data["spec"]["volumeSnapshotRef"]["name"].as_str().unwrap_or_default().to_owned();
        let found = snapshots.get_opt(&name).await?.map(|snapshot| snapshot.data["status"].clone()).unwrap_or_default();
        let is_ready = found["readyToUse"] == true && found["volumeGroupSnapshotName"] == "group";
        Ok::<_, kube::Error>(if is_ready { Seen::Done((name, content)) } else { Seen::NotYet(found.to_string()) })
    })
    .await?;
    assert_eq!(member_content.data["spec"]["source"], json!({"volumeHandle": "handle"}));
    assert_eq!(member_content.labels().get(MANAGED_BY), None, "the node sets it");
    let status = contents.get(&member_content.name_any()).await?.data["status"].clone();
    assert_eq!((&status["snapshotHandle"], &status["volumeGroupSnapshotHandle"]), (&member.into(), &handle.into()));

    groups.delete("group", &DeleteParams::default()).await?;
    let is_deleted = |content: &DynamicObject| content.metadata.deletion_timestamp.is_some();
    let is_announced = |content: &DynamicObject| content.annotations().contains_key(group::BEING_DELETED);
    let found = async || group_contents.get(&name).await;
    let is_ending = |content: &DynamicObject| is_deleted(content) && is_announced(content);
    reached("the deletion of the group's content", found, is_ending).await?;
    assert!(snapshots.get(&snapshot).await.is_ok(), "until the content of the group is gone");
    merge(&group_contents, &name, json!({"metadata": {"finalizers": null}})).await?;
    let name = member_content.name_any();
    reached("the deletion of the member's content", async || contents.get(&name).await, is_deleted).await?;
    merge(&contents, &name, json!({"metadata": {"finalizers": null}})).await?;
    Ok(())
}
