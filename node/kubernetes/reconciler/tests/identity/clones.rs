//! Nodes of claims that are clones or are restored from snapshots.

use std::sync::Arc;
use std::time::Duration;

use envtest::{Cluster, Failure, SnapshotApi, create, remove, start};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::resize::bound;
use crate::storage::SELECTED_NODE;
use crate::{Nodes, until};

pub(crate) async fn a_clone_gets_the_node_of_its_source(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let Nodes { admin, .. } = Nodes::of(&cluster).await?;
    let nodes = Api::<Node>::all(admin.clone());
    create(&nodes, json!({"metadata": {"name": "one"}})).await?;
    bound(&admin, "source").await?;
    let claims = Api::<PersistentVolumeClaim>::default_namespaced(admin.clone());
    // The scheduler has selected a node other than that of the source.
    let claim = |name: &str, source: serde_json::Value| {
        let annotations =
            json!({"volume.kubernetes.io/storage-provisioner": "local.granary.dev", SELECTED_NODE: "two"});
        let metadata = json!({"name": name, "annotations": annotations});
        let source = json!({"dataSource": source});
        serde_json::from_value::<PersistentVolumeClaim>(envtest::claim(metadata, reconciler::CLASS, source))
    };
    let source = json!({"kind": "PersistentVolumeClaim", "name": "source"});
    claims.create(&PostParams::default(), &claim("clone", source)?).await?;
    // Node `one` serves the content of the snapshot.
    let api = SnapshotApi::install(&cluster, "default").await?;
    let content = api.create("before", Some("one"), json!({"volumeHandle": "source"}), json!({})).await?.name_any();
    let source = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "before"});
    claims.create(&PostParams::default(), &claim("restored", source)?).await?;
    let reclaimer = start("reclaimer", admin.clone(), reconciler::reclaim).await?;
    for name in ["clone", "restored"] {
        until("the source's node", async || {
            let found = claims.get(name).await?.annotations().get(SELECTED_NODE).cloned();
            Ok((found.as_deref() != Some("one")).then(|| format!("{name}: {found:?}")))
        })
        .await?;
    }
    let events = Api::<Event>::default_namespaced(admin.clone());
    for (name, source) in [("clone", "claim source"), ("restored", "snapshot before")] {
        let words = format!("the data of {source} is on node one, which creates the volume instead of node two");
        until(&format!("the event about the node of {name}"), async || {
            let found = events.list(&ListParams::default()).await?.items;
            let is_of =
                |event: &Event| event.regarding.as_ref().is_some_and(|object| object.name.as_deref() == Some(name));
            let notes: Vec<_> = found.into_iter().filter(is_of).filter_map(|event| event.note).collect();
            Ok((!notes.iter().any(|note| note.contains(&words))).then(|| format!("{notes:?}")))
        })
        .await?;
    }
    reclaimer.stop(Duration::from_secs(10)).await?;
    api.force("before", &content).await?;
    for name in ["clone", "restored", "source"] {
        claims.delete(name, &DeleteParams::default()).await?;
    }
    Api::<PersistentVolume>::all(admin.clone()).delete("source", &DeleteParams::default()).await?;
    remove(&nodes, "one").await
}
