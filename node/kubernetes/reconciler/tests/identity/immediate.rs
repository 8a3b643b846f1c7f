//! Nodes of claims whose class binds immediately. The test publishes the capacities, and acts as the nodes.

use std::sync::Arc;
use std::time::Duration;

use envtest::{Cluster, Failure, create, merge, merge_status, start};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::storage::SELECTED_NODE;
use crate::{Nodes, until};

const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const DRIVER: &str = "local.granary.dev";
const ZONE: &str = "topology.kubernetes.io/zone";
const CLASSES: [&str; 3] = ["at-once", "in-zone-one", "later"];

/// Creates a Ready Node with this free space for each class.
async fn node(admin: &Client, name: &str, capacity: &str, largest: &str) -> Result<(), Failure> {
    let nodes = Api::<Node>::all(admin.clone());
    let labels = json!({"kubernetes.io/hostname": name, ZONE: format!("zone-{name}")});
    create(&nodes, json!({"metadata": {"name": name, "labels": labels}})).await?;
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Test"}]}});
    merge_status(&nodes, name, ready).await?;
    let capacities = Api::<CSIStorageCapacity>::namespaced(admin.clone(), "kube-system");
    for class in CLASSES {
        let object = json!({
            "metadata": {"name": format!("{class}.{name}"), "labels": {"csi.storage.k8s.io/drivername": DRIVER}},
            "storageClassName": class, "capacity": capacity, "maximumVolumeSize": largest,
            "nodeTopology": {"matchLabels": {"kubernetes.io/hostname": name}},
        });
        create(&capacities, object).await?;
    }
    // The API server adds a taint to new Nodes, which kube-controller-manager removes from Ready Nodes.
    until(&format!("node {name} without taints"), async || {
        let taints = nodes.get(name).await?.spec.and_then(|spec| spec.taints).unwrap_or_default();
        Ok((!taints.is_empty()).then(|| format!("{taints:?}")))
    })
    .await
}

async fn class(admin: &Client, name: &str, more: Value) -> Result<(), Failure> {
    let mut class = json!({"metadata": {"name": name}, "provisioner": DRIVER});
    class.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
    create(&Api::<StorageClass>::all(admin.clone()), class).await?;
    Ok(())
}

fn claim(name: &str, class: &str) -> Result<PersistentVolumeClaim, serde_json::Error> {
    let size = json!({"resources": {"requests": {"storage": "8Gi"}}});
    serde_json::from_value(envtest::claim(json!({"name": name}), class, size))
}

async fn selects(claims: &Api<PersistentVolumeClaim>, claim: &str, node: &str) -> Result<(), Failure> {
    until(&format!("claim {claim} on node {node}"), async || {
        let found = claims.get(claim).await?.annotations().get(SELECTED_NODE).cloned();
        Ok((found.as_deref() != Some(node)).then(|| format!("{found:?}")))
    })
    .await
}

pub(crate) async fn a_claim_with_immediate_binding_gets_a_node(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let admin = nodes.admin.clone();
    class(&admin, "at-once", json!({"volumeBindingMode": "Immediate"})).await?;
    let zone = json!([{"matchLabelExpressions": [{"key": ZONE, "values": ["zone-one"]}]}]);
    class(&admin, "in-zone-one", json!({"volumeBindingMode": "Immediate", "allowedTopologies": zone})).await?;
    class(&admin, "later", json!({"volumeBindingMode": "WaitForFirstConsumer"})).await?;
    node(&admin, "one", "10Gi", "8Gi").await?;
    node(&admin, "two", "20Gi", "16Gi").await?;
    let claims = Api::<PersistentVolumeClaim>::default_namespaced(admin.clone());
    // This claim is like one that its node has returned to the scheduler.
    let mut later = claim("later", "later")?;
    later.annotations_mut().insert(PROVISIONER.to_owned(), DRIVER.to_owned());
    claims.create(&PostParams::default(), &later).await?;
    let reclaimer = start("reclaimer", admin.clone(), reconciler::reclaim).await?;

    claims.create(&PostParams::default(), &claim("zoned", "in-zone-one")?).await?;
    selects(&claims, "zoned", "one").await?;
    claims.delete("zoned", &DeleteParams::default()).await?;
    claims.create(&PostParams::default(), &claim("data", "at-once")?).await?;
    selects(&claims, "data", "two").await?;
    let provisioner = claims.get("data").await?.annotations().get(PROVISIONER).cloned();
    assert_eq!(provisioner.as_deref(), Some(DRIVER), "kube-controller-manager requests the volume");

    // The nodes reject the claim, as their provisioners do.
    let reject = async |node: Client| {
        let claims = Api::<PersistentVolumeClaim>::default_namespaced(node);
        merge(&claims, "data", json!({"metadata": {"annotations": {SELECTED_NODE: null}}})).await
    };
    reject(nodes.other).await?;
    selects(&claims, "data", "one").await?;
    reject(nodes.own).await?;
    let events = Api::<Event>::default_namespaced(admin.clone());
    until("the event about a claim without a node", async || {
        let found = events.list(&ListParams::default()).await?.items;
        let notes = found.iter().filter(|event| event.reporting_instance.as_deref() == Some("reclaimer"));
        let notes: Vec<_> = notes.filter_map(|event| event.note.clone()).collect();
        Ok((!notes.iter().any(|note| note.contains("2 that just rejected the claim"))).then(|| format!("{notes:?}")))
    })
    .await?;
    assert_eq!(claims.get("data").await?.annotations().get(SELECTED_NODE), None, "no node is selected again at once");
    assert_eq!(claims.get("later").await?.annotations().get(SELECTED_NODE), None, "the scheduler selects the node");

    reclaimer.stop(Duration::from_secs(10)).await?;
    for name in ["data", "later"] {
        claims.delete(name, &DeleteParams::default()).await?;
    }
    for name in CLASSES {
        Api::<StorageClass>::all(admin.clone()).delete(name, &DeleteParams::default()).await?;
    }
    let capacities = Api::<CSIStorageCapacity>::namespaced(admin.clone(), "kube-system");
    for name in ["one", "two"] {
        Api::<Node>::all(admin.clone()).delete(name, &DeleteParams::default()).await?;
        for class in CLASSES {
            capacities.delete(&format!("{class}.{name}"), &DeleteParams::default()).await?;
        }
    }
    Ok(())
}
