//! PVs that administrators create with the manifests of docs/operations/orphans.md.

use std::sync::Arc;

use envtest::{Cluster, Failure, PATIENCE};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, PostParams};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use units::Bytes;
use volume::{Claim, DRIVER_NAME, State, VolumeId};

use crate::node::{Node, until};
use crate::{id_of, record};

const PAGE: &str = include_str!("../../../../../docs/operations/orphans.md");
/// UID of the claim in the page's examples.
const UID: &str = "6f2c1b8e-0000-4000-8000-000000000001";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// A node with a volume that lost its PV; its claim was `data`.
async fn with_orphan(cluster: &Cluster, namespace: &str, number: u8) -> Result<(Node, VolumeId), Failure> {
    let mut node = Node::stopped(cluster, namespace, Bytes::new(100 << 30)).await?;
    let uid = format!("0d3a7d6e-0000-4000-8000-0000000000b{number}");
    let claim = Claim { uid: uid.clone(), namespace: namespace.to_owned(), name: "data".into() };
    let id = id_of(&uid)?;
    node.volumes.put(&id, record(claim, &format!("class-{namespace}"), State::Announced));
    node.run().await?;
    Ok((node, id))
}

/// The page's manifests below a heading, with the volume, node, namespace and class of the test.
fn manifests(node: &Node, id: &VolumeId, heading: &str) -> Result<Vec<Value>, Failure> {
    let (_, section) = PAGE.split_once(&format!("\n## {heading}\n")).expect("the heading");
    let (_, rest) = section.split_once("\n```yaml\n").expect("an example");
    let (example, _) = rest.split_once("\n```\n").expect("its end");
    let (name, namespace) = (&node.name, &node.namespace);
    let mut text = example.to_owned();
    for (shown, own) in [
        (UID, id.as_str().trim_start_matches("pvc-")),
        ("values: [granary]", &format!("values: [{name}]")),
        ("namespace: default", &format!("namespace: {namespace}")),
        ("storageClassName: local", &format!("storageClassName: {}", node.class)),
    ] {
        assert!(text.contains(shown), "{shown:?} is not in {text}");
        text = text.replace(shown, own);
    }
    Ok(serde_saphyr::from_multiple(&text)?)
}

fn read<T: DeserializeOwned>(manifests: &[Value], kind: &str) -> Result<T, Failure> {
    let found = manifests.iter().find(|manifest| manifest["kind"] == kind).cloned();
    Ok(serde_json::from_value(found.unwrap_or_default())?)
}

pub async fn an_orphan_is_adopted_by_a_manual_pv(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (node, id) = with_orphan(&cluster, "adopted", 1).await?;
    node.make_class(json!({"allowVolumeExpansion": true})).await?;
    let manifests = manifests(&node, &id, "Use an orphan")?;
    let pv = node.pvs().create(&PostParams::default(), &read(&manifests, "PersistentVolume")?).await?;
    node.claims().create(&PostParams::default(), &read(&manifests, "PersistentVolumeClaim")?).await?;
    let bound = node.bound("data").await?;
    assert_eq!(bound.name_any(), pv.name_any());
    assert_eq!(
        bound.spec.as_ref().and_then(|spec| spec.csi.as_ref()).map(|csi| csi.volume_handle.as_str()),
        Some(id.as_str())
    );
    // The reclaimer finds the node of the claim's PV, so that the volume can be expanded.
    let reclaimer = envtest::start("reclaimer", node.admin.clone(), reconciler::reclaim).await?;
    node.enlarge("data", "2Gi").await?;
    node.event("data", "VolumeResizeSuccessful").await?;
    reclaimer.stop(PATIENCE).await?;
    // The provisioner adds the fields that the manifest lacks before the deletion.
    node.set_policy(&pv.name_any(), "Delete").await?;
    until("the driver's finalizer and annotation", async || {
        let found = node.pvs().get(&pv.name_any()).await?;
        let marked = found.finalizers().iter().any(|name| name == provisioner::FINALIZER);
        let named = found.annotations().contains_key(PROVISIONED_BY);
        Ok((!marked || !named).then(|| format!("{:?}", found.metadata)))
    })
    .await?;
    assert_eq!(node.volumes.live(), std::slice::from_ref(&id));
    node.claims().delete("data", &DeleteParams::default()).await?;
    node.removed(&pv.name_any(), &id).await?;
    node.end().await
}

pub async fn an_orphan_is_erased_by_a_manual_pv(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (node, id) = with_orphan(&cluster, "erased", 2).await?;
    let pv: PersistentVolume = read(&manifests(&node, &id, "Erase an orphan")?, "PersistentVolume")?;
    // The node adds both fields, but the PV controller may read the PV before.
    assert_eq!(pv.annotations().get(PROVISIONED_BY).map(String::as_str), Some(DRIVER_NAME));
    assert_eq!(pv.finalizers(), [provisioner::FINALIZER]);
    let pv = node.pvs().create(&PostParams::default(), &pv).await?;
    node.removed(&pv.name_any(), &id).await?;
    node.end().await
}

pub async fn a_pv_with_missing_fields_is_ignored(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (node, id) = with_orphan(&cluster, "incomplete", 3).await?;
    let mut pv: PersistentVolume = read(&manifests(&node, &id, "Use an orphan")?, "PersistentVolume")?;
    pv.metadata.name = Some("incomplete".to_owned());
    if let Some(spec) = &mut pv.spec {
        spec.node_affinity = None;
        spec.persistent_volume_reclaim_policy = Some("Delete".to_owned());
    }
    let pv = node.pvs().create(&PostParams::default(), &pv).await?;
    // When another claim was created and deleted, the provisioner has processed the PV.
    let other = node.provisioned("other", json!({})).await?;
    node.delete("other", &other).await?;
    let found = node.pvs().get(&pv.name_any()).await?;
    assert!(!found.finalizers().iter().any(|name| name == provisioner::FINALIZER), "{:?}", found.metadata);
    assert_eq!(node.volumes.live(), [id]);
    assert_eq!(node.attempts(), 1);
    node.pvs().delete(&pv.name_any(), &DeleteParams::default()).await?;
    node.end().await
}
