//! Snapshots of several claims at one instant. The tests act as the snapshot controller.

use std::sync::Arc;
use std::time::Duration;

use cluster::snapshot::group::{CLASSES, CONTENTS, GROUP, PROTECTION, SNAPSHOTS};
use cluster::snapshot::{MANAGED_BY, VERSION};
use cluster::{DRIVER_NAME, TOPOLOGY_KEY};
use envtest::{Cluster, Failure, Identity, SnapshotApi, accepted, create, merge, merge_status};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use units::Bytes;
use volume::{Record, State, VolumeId};

use crate::node::{Node, until};
use crate::snapshots::denied;

const CLAIMS: [(&str, &str); 2] = [("data", "Block"), ("log", "Filesystem")];

async fn with_claims(cluster: &Cluster, namespace: &str) -> Result<(Node, SnapshotApi, Vec<VolumeId>), Failure> {
    let api = SnapshotApi::install(cluster, namespace).await?;
    let (node, ids) = node_with_claims(cluster, namespace).await?;
    Ok((node, api, ids))
}

async fn node_with_claims(cluster: &Cluster, namespace: &str) -> Result<(Node, Vec<VolumeId>), Failure> {
    let node = Node::start_apart(cluster, namespace).await?;
    let mut ids = Vec::new();
    for (name, mode) in CLAIMS {
        let id = node.volume(name, json!({"volumeMode": mode})).await?;
        ids.push(id);
    }
    Ok((node, ids))
}

/// Sets whether the API server serves each version of groups, and waits until v1 is served or missing accordingly.
async fn serve(cluster: &Cluster, is_served: impl Fn(&str) -> bool) -> Result<(), Failure> {
    let definition = ApiResource::erase::<CustomResourceDefinition>(&());
    let definitions = Api::<DynamicObject>::all_with(cluster.admin(), &definition);
    // The API server receives the changes in this order, so that the last one shows the others.
    for kind in [SNAPSHOTS, CLASSES, CONTENTS] {
        let name = format!("{kind}.{GROUP}");
        let mut versions = definitions.get(&name).await?.data["spec"]["versions"].clone();
        for version in versions.as_array_mut().into_iter().flatten() {
            version["served"] = version["name"].as_str().is_some_and(&is_served).into();
        }
        merge(&definitions, &name, json!({"spec": {"versions": versions}})).await?;
    }
    let contents = SnapshotApi::of(cluster.admin(), "default").group_contents;
    until("the served versions of groups", async || match contents.list(&ListParams::default()).await {
        Ok(found) => Ok((!is_served(VERSION)).then(|| format!("{} contents", found.items.len()))),
        Err(kube::Error::Api(status)) if status.code == 404 && !is_served(VERSION) => Ok(None),
        Err(error) => Err(error),
    })
    .await
}

fn source(ids: &[VolumeId]) -> Value {
    json!({"volumeHandles": ids.iter().map(VolumeId::as_str).collect::<Vec<_>>()})
}

fn handle_of(content: &DynamicObject) -> String {
    format!("group-{}", content.uid().unwrap_or_default())
}

fn members_of(content: &DynamicObject, ids: &[VolumeId]) -> Result<Vec<VolumeId>, Failure> {
    Ok(ids.iter().map(|id| format!("{}-{id}", handle_of(content)).parse()).collect::<Result<_, _>>()?)
}

fn is_ready(status: &Value) -> bool {
    status["readyToUse"] == true
}

pub async fn a_group_is_taken_at_one_instant_and_deleted(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (node, api, ids) = with_claims(&cluster, "group").await?;
    node.volumes.set_passes(u32::MAX);
    let content = api.create_group("both", None, source(&ids), json!({})).await?;
    let (name, handle, members) = (content.name_any(), handle_of(&content), members_of(&content, &ids)?);
    // All members are complete, and share blocks.
    let status = api.group_status(&name, is_ready).await?;
    assert_eq!(status["volumeGroupSnapshotHandle"], handle.as_str());
    assert!(status["creationTime"].is_string(), "{status}");
    let state = |id: &VolumeId| node.volumes.record(id).map(|record| record.state);
    assert!(members.iter().all(|id| state(id) == Some(State::Complete)));
    assert_eq!(api.group_contents.get(&name).await?.labels().get(MANAGED_BY), Some(&node.name));
    let reserved: Bytes = members.iter().filter_map(|id| node.volumes.record(id)).map(|record| record.reserved()).sum();
    node.volumes.set_passes(0);
    until("the end of the copies", async || {
        let states: Vec<_> = members.iter().map(state).collect();
        Ok(states.iter().any(|state| *state != Some(State::Announced)).then(|| format!("{states:?}")))
    })
    .await?;
    let infos = status["volumeSnapshotInfoList"].as_array().cloned().unwrap_or_default();
    assert_eq!(infos.len(), ids.len(), "{status}");
    for ((info, id), member) in infos.iter().zip(&ids).zip(&members) {
        let (volume, snapshot): (Value, Value) = (id.as_str().into(), member.as_str().into());
        assert_eq!((&info["volumeHandle"], &info["snapshotHandle"]), (&volume, &snapshot));
        assert_eq!((&info["restoreSize"], &info["readyToUse"]), (&(1_u64 << 30).into(), &true.into()));
        assert_eq!(info["creationTime"], infos[0]["creationTime"], "one instant");
    }
    let cost = format!("2 snapshots at one instant; until their blocks are copied, they reserve {reserved};");
    for object in ["both", name.as_str()] {
        node.event_with(object, "GroupSnapshotTaken", &[&cost]).await?;
    }

    // A member is a snapshot, and its content takes no other snapshot.
    let live = node.volumes.live().len();
    let member = api.create_member("member", &handle, ids[0].as_str()).await?.name_any();
    until("the node of the member", async || {
        let found = api.contents.get(&member).await?;
        Ok((found.labels().get(MANAGED_BY) != Some(&node.name)).then(|| format!("{:?}", found.metadata.labels)))
    })
    .await?;
    let shown =
        json!({"status": {"snapshotHandle": members[0].as_str(), "readyToUse": true, "restoreSize": 1_u64 << 30}});
    merge_status(&api.contents, &member, shown).await?;
    api.ready("member", &member).await?;
    let from = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "member"});
    let restored: VolumeId =
        node.provisioned("restored", json!({"volumeMode": "Block", "dataSource": from})).await?.name_any().parse()?;
    assert_eq!(node.volumes.source(&restored), Some(members[0].clone()));
    assert_eq!(node.volumes.live().len(), live + 1, "only the restored volume");

    api.group_gone("both", &name).await?;
    assert!(members.iter().all(|member| node.volumes.record(member).is_none()), "before the content");
    api.gone("member", &member).await?;

    // Thin snapshots are ready without a copy.
    node.volumes.set_passes(u32::MAX);
    api.create_group_class("thin", json!({"thin": "true"})).await?;
    let of_class = json!({"volumeGroupSnapshotClassName": "thin"});
    let name = api.create_group("thin", None, source(&ids), of_class).await?.name_any();
    api.group_status(&name, is_ready).await?;
    node.event_with("thin", "GroupSnapshotTaken", &["2 snapshots at one instant", "they are thin"]).await?;
    api.group_gone("thin", &name).await?;
    node.end().await
}

/// A cluster with an older release of external-snapshotter serves no v1 of groups.
pub async fn a_group_of_an_earlier_version_is_taken_and_deleted(cluster: Arc<Cluster>) -> Result<(), Failure> {
    const EARLIER: &str = "v1beta2";
    const NAMESPACE: &str = "group-earlier";
    SnapshotApi::install(&cluster, NAMESPACE).await?;
    serve(&cluster, |version| version == EARLIER).await?;
    let api = SnapshotApi::with_groups(cluster.admin(), NAMESPACE, EARLIER);
    let (node, ids) = node_with_claims(&cluster, NAMESPACE).await?;
    api.create_group_class("brief", json!({"maxPause": "600ms"})).await?;
    let of_class = json!({"volumeGroupSnapshotClassName": "brief"});
    let content = api.create_group("both", None, source(&ids), of_class).await?;
    let (name, members) = (content.name_any(), members_of(&content, &ids)?);
    let status = api.group_status(&name, is_ready).await?;
    assert_eq!(status["volumeGroupSnapshotHandle"], handle_of(&content).as_str());
    let infos = status["volumeSnapshotInfoList"].as_array().cloned().unwrap_or_default();
    let handles: Vec<_> = infos.iter().filter_map(|info| info["snapshotHandle"].as_str()).collect();
    assert_eq!(handles, members.iter().map(VolumeId::as_str).collect::<Vec<_>>());
    assert_eq!(node.volumes.pauses().first(), Some(&Duration::from_millis(600)), "the pause of the class");
    assert_eq!(api.group_contents.get(&name).await?.labels().get(MANAGED_BY), Some(&node.name));
    node.event_with("both", "GroupSnapshotTaken", &["2 snapshots at one instant"]).await?;
    api.group_gone("both", &name).await?;
    assert!(members.iter().all(|member| node.volumes.record(member).is_none()), "before the content");
    node.end().await?;
    serve(&cluster, |_| true).await
}

pub async fn a_group_that_cannot_be_taken_is_reported(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (node, api, ids) = with_claims(&cluster, "ungrouped").await?;
    // The volume of this PV is on another node.
    let elsewhere = json!([{"key": TOPOLOGY_KEY, "operator": "In", "values": ["zz"]}]);
    let foreign = json!({
        "metadata": {"name": "pvc-foreign"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "volumeMode": "Block",
            "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "foreign",
            "csi": {"driver": DRIVER_NAME, "volumeHandle": "zvol-foreign"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": elsewhere}]}},
        },
    });
    create(&node.pvs(), foreign).await?;
    api.create_group_class("fast", json!({"maxPause": "1h"})).await?;
    let live = node.volumes.live();
    let with = |other: &str| json!({"volumeHandles": [ids[0].as_str(), other]});
    let nodes = format!("on the nodes {}, zz", node.name);
    let of_class = |class: &str| json!({"volumeGroupSnapshotClassName": class});
    let refused = "VolumeGroupSnapshotClass fast has the parameter maxPause with \"1h\"";
    node.volumes.set_late(true);
    let late = "would be frozen for more than 2s; raise maxPause in the VolumeGroupSnapshotClass";
    for (name, source, more, words) in [
        ("nodes", with("zvol-foreign"), json!({}), nodes.as_str()),
        ("none", with("zvol-none"), json!({}), "volume zvol-none of the group does not exist on this node"),
        ("fast", source(&ids), of_class("fast"), refused),
        ("classless", source(&ids), of_class("none"), "the VolumeGroupSnapshotClass none does not exist"),
        ("late", source(&ids), json!({}), late),
    ] {
        let content = api.create_group(name, None, source, more).await?;
        let failed = |status: &Value| status["error"]["message"].as_str().is_some_and(|text| text.contains(words));
        let status = api.group_status(&content.name_any(), failed).await?;
        assert_eq!(status["readyToUse"], false);
        for object in [name, &content.name_any()] {
            node.event_with(object, "GroupSnapshotCreationFailed", &[words]).await?;
            // Regression: the status starts another pass, which found no event yet and sent a second one.
            let events = node.events(object).await?;
            assert_eq!(events.len(), 1, "one event: {events:?}");
        }
        assert_eq!(node.volumes.live(), live, "nothing is created");
        api.group_gone(name, &content.name_any()).await?;
    }
    node.pvs().delete("pvc-foreign", &DeleteParams::default()).await?;
    node.end().await
}

pub async fn members_without_a_group_are_removed_or_reported(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (mut node, api, ids) = with_claims(&cluster, "ungroupable").await?;
    let kept = api.create_group("kept", None, source(&ids), json!({"deletionPolicy": "Retain"})).await?;
    api.group_status(&kept.name_any(), is_ready).await?;
    node.volumes.set_passes(u32::MAX);
    api.create_group_class("short", json!({"maxPause": "750ms"})).await?;
    let class = json!({"volumeGroupSnapshotClassName": "short"});
    let begun = api.create_group("begun", None, source(&ids), class).await?;
    api.group_status(&begun.name_any(), is_ready).await?;
    node.halt().await?;
    // Regression: the members that the former process had not undone completely were taken again within the default
    // pause. An earlier release wrote the instant before the members were ready.
    merge_status(&api.group_contents, &begun.name_any(), json!({"status": {"readyToUse": false}})).await?;
    let volumes = Arc::clone(&node.volumes);
    let stage_members = || -> Result<(), Failure> {
        for id in members_of(&begun, &ids)? {
            let record = volumes.record(&id).ok_or("a record")?;
            volumes.put(&id, Record { state: State::Staged, ..record });
        }
        Ok(())
    };
    stage_members()?;
    let before = node.volumes.pauses().len();
    node.run().await?;
    assert_eq!(node.pause_after(before).await?, Some(Duration::from_millis(750)));
    api.group_status(&begun.name_any(), is_ready).await?;
    node.halt().await?;
    stage_members()?;
    api.force_group("begun", &begun.name_any()).await?;
    node.run().await?;
    until("the end of the members", async || {
        let found = members_of(&begun, &ids).unwrap_or_default().iter().find_map(|id| node.volumes.record(id));
        Ok(found.map(|record| format!("{record:?}")))
    })
    .await?;
    let members = members_of(&kept, &ids)?;
    let are_ready =
        || members.iter().all(|id| node.volumes.record(id).is_some_and(|record| record.state.is_reported()));
    assert!(are_ready());
    // The policy keeps the data. Another content shows the snapshots, and removes them.
    api.group_gone("kept", &kept.name_any()).await?;
    assert!(are_ready());
    node.volumes.set_passes(0);
    let handles = json!({
        "volumeGroupSnapshotHandle": handle_of(&kept),
        "volumeSnapshotHandles": members.iter().map(VolumeId::as_str).collect::<Vec<_>>(),
    });
    let again = api.create_group("again", None, json!({"groupSnapshotHandles": handles}), json!({})).await?;
    let status = api.group_status(&again.name_any(), is_ready).await?;
    assert_eq!(status["volumeGroupSnapshotHandle"], handle_of(&kept).as_str());
    api.group_gone("again", &again.name_any()).await?;
    assert!(members.iter().all(|member| node.volumes.record(member).is_none()));
    node.end().await
}

pub async fn a_node_writes_only_contents_of_groups_that_it_serves(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let api = SnapshotApi::install(&cluster, "default").await?;
    crate::node::reconcile(&cluster).await?;
    let own = SnapshotApi::of(cluster.client(Identity::Storage).await?, "default").group_contents;
    let (node, volumes) = (cluster.node(), json!({"volumeHandles": ["pvc-1"]}));
    let mut contents = Vec::new();
    for (name, label) in [("own", Some(node)), ("bare", None), ("foreign", Some("another"))] {
        contents.push(api.create_group(name, label, volumes.clone(), json!({})).await?);
    }
    let names: Vec<_> = contents.iter().map(kube::ResourceExt::name_any).collect();
    let [mine, bare, foreign] = &names[..] else { return Err("three contents".into()) };
    let handle = handle_of(&contents[0]);
    let member = |volume: &str, snapshot: &str| json!({"volumeHandle": volume, "snapshotHandle": snapshot});
    let status = |handle: &str, member: Value| {
        json!({"status": {
            "volumeGroupSnapshotHandle": handle, "readyToUse": true, "volumeSnapshotInfoList": [member],
        }})
    };
    let good = member("pvc-1", &format!("{handle}-pvc-1"));
    let write_status = async |name: &str, status: Value| merge_status(&own, name, status).await.map(drop);
    let write = async |name: &str, patch: Value| merge(&own, name, patch).await.map(drop);
    let begun = json!({"status": {"readyToUse": false}});
    accepted("the rights on contents", async || write_status(mine, begun.clone()).await).await?;
    denied(write_status(mine, status("group-of-another", good.clone())).await);
    denied(write_status(mine, status(&handle, member("pvc-2", &format!("{handle}-pvc-2")))).await);
    denied(write_status(mine, status(&handle, member("pvc-1", "snapshot-of-another"))).await);
    denied(write_status(foreign, status(&handle, good.clone())).await);
    denied(write_status(bare, status(&handle, good.clone())).await);
    write_status(mine, status(&handle, good)).await?;
    let metadata = |metadata: Value| json!({"metadata": metadata});
    let label = |node: &str| metadata(json!({"labels": {MANAGED_BY: node}}));
    denied(write(foreign, label(node)).await);
    denied(write(bare, label("another")).await);
    write(bare, label(node)).await?;
    denied(write(mine, label("another")).await);
    denied(write(mine, metadata(json!({"annotations": {"a": "b"}}))).await);
    denied(write(mine, metadata(json!({"finalizers": []}))).await);
    denied(write(mine, metadata(json!({"finalizers": [PROTECTION, "example.invalid/other"]}))).await);
    denied(write(mine, json!({"spec": {"deletionPolicy": "Retain"}})).await);
    for (name, content) in ["own", "bare", "foreign"].into_iter().zip(&names) {
        api.delete_group(name, content).await?;
    }
    denied(write(foreign, metadata(json!({"finalizers": []}))).await);
    write(mine, metadata(json!({"finalizers": []}))).await?;
    for content in [bare, foreign] {
        merge(&api.group_contents, content, json!({"metadata": {"finalizers": null}})).await?;
    }
    Ok(())
}
