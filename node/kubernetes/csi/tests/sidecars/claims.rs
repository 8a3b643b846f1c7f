//! Claims are served by external-provisioner and external-resizer.

use std::sync::Arc;

use csi::Provisioner;
use envtest::{Cluster, Failure, reached, remove};
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};
use units::Bytes;
use volume::{DRIVER_NAME, TOPOLOGY_KEY, VolumeId};

use crate::kubelet::MANY;
use crate::node::{Node, PROVISIONER, RESIZER, beside};

const GIB2: Bytes = Bytes::new(2 << 30);

pub fn block(more: Value) -> Value {
    let mut fields = json!({"volumeMode": "Block"});
    for (key, value) in more.as_object().into_iter().flatten() {
        fields[key] = value.clone();
    }
    fields
}

pub fn sized(size: &str) -> Value {
    json!({"requests": {"storage": size}})
}

/// Waits for the capacity object of the node and its class.
async fn capacity(node: &Node) -> Result<Value, Failure> {
    let objects = Api::<CSIStorageCapacity>::namespaced(node.admin.clone(), &node.name);
    let read = async || {
        let mut found = objects.list(&ListParams::default()).await?.items;
        found.retain(|object| object.storage_class_name == node.name);
        Ok::<_, kube::Error>(json!(found))
    };
    let mut found = reached("the capacity of the node", read, |found: &Value| found[0]["capacity"] == "100Gi").await?;
    Ok(found[0].take())
}

pub async fn a_claim_gets_a_volume_of_the_selected_node(cluster: Arc<Cluster>) -> Result<(), Failure> {
    beside(&cluster, "files", Provisioner::External, &[PROVISIONER], async |node: &Node| {
        let found = capacity(node).await?;
        assert_eq!(found["nodeTopology"]["matchLabels"], json!({TOPOLOGY_KEY: node.name}));
        assert_eq!(found["metadata"]["ownerReferences"][0]["kind"], "DaemonSet");

        let id = node.volume("data", json!({"resources": sized("1500000001")})).await?;
        let pv = node.pv(&id).await?;
        assert_eq!(pv["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"], DRIVER_NAME);
        let spec = &pv["spec"];
        assert_eq!(spec["csi"]["driver"], DRIVER_NAME);
        assert_eq!(spec["csi"]["volumeHandle"], id.as_str());
        assert_eq!(spec["csi"]["fsType"], Value::Null);
        // The size is rounded up to whole blocks of 4 KiB.
        assert_eq!(spec["capacity"], json!({"storage": "1464844Ki"}));
        assert_eq!(spec["volumeMode"], "Filesystem");
        assert_eq!(spec["accessModes"], json!(["ReadWriteOnce"]));
        let here = json!([{"matchExpressions": [{"key": TOPOLOGY_KEY, "operator": "In", "values": [node.name]}]}]);
        assert_eq!(spec["nodeAffinity"]["required"]["nodeSelectorTerms"], here);
        let record = node.volumes.record(&id).expect("the volume has a record");
        assert_eq!(record.size, Bytes::new(1_464_844 << 10));
        assert!(!record.mode.is_block(), "{record:?}");
        // The record has the claim because of `--extra-create-metadata`.
        assert_eq!((record.claim.namespace, record.claim.name), (node.name.clone(), "data".to_owned()));
        node.delete("data", &id).await
    })
    .await
}

pub async fn a_block_claim_gets_a_volume_that_a_pod_can_use(cluster: Arc<Cluster>) -> Result<(), Failure> {
    beside(&cluster, "block", Provisioner::External, &[PROVISIONER], async |node: &Node| {
        let id = node.volume("data", block(json!({}))).await?;
        let pv = node.pv(&id).await?;
        assert_eq!(pv["spec"]["volumeMode"], "Block");
        assert!(node.volumes.record(&id).is_some_and(|record| record.mode.is_block() && record.size == Bytes::GIB));
        // The kubelet sends the attributes of the PV.
        node.host.set_image(id.as_str(), Bytes::GIB);
        let mut request = node.kubelet.publish_block(id.as_str(), "pod", MANY);
        request.volume_context = serde_json::from_value(pv["spec"]["csi"]["volumeAttributes"].clone())?;
        assert!(!request.volume_context.is_empty(), "external-provisioner adds its identity");
        let mut kubelet = node.kubelet.client().await;
        kubelet.node_publish_volume(request).await?;
        assert_eq!(node.host.devices(), 1);
        kubelet.node_unpublish_volume(node.kubelet.unpublish(id.as_str(), "pod")).await?;
        node.delete("data", &id).await
    })
    .await
}

/// Waits for the capacity of the PV, and compares the volume.
async fn grown(node: &Node, id: &VolumeId) -> Result<(), Failure> {
    let is_grown = |pv: &Value| pv["spec"]["capacity"]["storage"] == "2Gi";
    reached("the capacity of the PV", async || node.pv(id).await, is_grown).await?;
    assert_eq!(node.volumes.record(id).map(|record| record.size), Some(GIB2));
    Ok(())
}

pub async fn a_claim_is_expanded(cluster: Arc<Cluster>) -> Result<(), Failure> {
    beside(&cluster, "grow", Provisioner::External, &[PROVISIONER, RESIZER], async |node: &Node| {
        let claims = node.claims();
        let files = node.volume("files", json!({})).await?;
        node.enlarge("files", "2Gi").await?;
        grown(node, &files).await?;
        // The plugin has changed the quota: the kubelet has nothing to do.
        let status = async || claims.get("files").await.map(|claim| json!(claim.status));
        reached("the capacity of the claim", status, |status: &Value| status["capacity"]["storage"] == "2Gi").await?;

        let device = node.volume("device", block(json!({}))).await?;
        node.volumes.set_attached(&device, true);
        node.enlarge("device", "2Gi").await?;
        grown(node, &device).await?;
        let status = async || claims.get("device").await.map(|claim| json!(claim.status));
        let waits = |status: &Value| status["allocatedResourceStatuses"]["storage"] == "NodeResizePending";
        let status = reached("the wait for the kubelet", status, waits).await?;
        assert_eq!(status["capacity"]["storage"], "1Gi");
        node.volumes.set_attached(&device, false);
        node.delete("files", &files).await?;
        node.delete("device", &device).await
    })
    .await
}

pub async fn a_claim_is_cloned(cluster: Arc<Cluster>) -> Result<(), Failure> {
    beside(&cluster, "clone", Provisioner::External, &[PROVISIONER], async |node: &Node| {
        let source = node.volume("data", block(json!({}))).await?;
        node.volumes.set_passes(3);
        let of_data = json!({"kind": "PersistentVolumeClaim", "name": "data"});
        let clone = node.volume("copy", block(json!({"dataSource": of_data, "resources": sized("2Gi")}))).await?;
        grown(node, &clone).await?;
        assert_eq!(node.volumes.source(&clone), Some(source.clone()));
        // external-provisioner has added a finalizer to the source, and removes it.
        node.delete("data", &source).await?;
        node.delete("copy", &clone).await
    })
    .await
}

pub async fn a_sidecar_beside_the_own_provisioner_reports_the_remedy(cluster: Arc<Cluster>) -> Result<(), Failure> {
    beside(&cluster, "own", Provisioner::Own, &[PROVISIONER], async |node: &Node| {
        node.claim("data", json!({})).await?;
        let events = Api::<Event>::namespaced(node.admin.clone(), &node.name);
        let read = async || {
            let mut found = events.list(&ListParams::default()).await?.items;
            found.retain(|event| event.involved_object.name.as_deref() == Some("data"));
            found.retain(|event| event.reason.as_deref() == Some("ProvisioningFailed"));
            let messages = found.into_iter().map(|event| event.message.unwrap_or_default());
            Ok::<_, kube::Error>(messages.collect::<Vec<_>>())
        };
        let messages = reached("the event ProvisioningFailed", read, |found: &Vec<String>| !found.is_empty()).await?;
        for words in [
            "FailedPrecondition",
            "csi.storage.k8s.io/pvc/name=data",
            "stop the sidecar that sends this request, or run the node with --provisioner=external",
        ] {
            assert!(messages[0].contains(words), "{words:?} is not in {messages:?}");
        }
        remove(&node.claims(), "data").await
    })
    .await
}
