//! Operators make PVs by hand, as docs/operations/orphans.md says.

use std::sync::Arc;

use envtest::{Cluster, Failure, PATIENCE};
use eventually::{Seen, eventually};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use units::Bytes;
use volume::{Claim, State, VolumeId};

use crate::node::Node;
use crate::{id_of, record};

/// A node with a volume that lost its PV.
async fn with_orphan(cluster: &Cluster, namespace: &str, number: u8) -> Result<(Node, VolumeId), Failure> {
    let mut node = Node::stopped(cluster, namespace, Bytes::new(100 << 30)).await?;
    let uid = format!("0d3a7d6e-0000-4000-8000-0000000000b{number}");
    let claim = Claim { uid: uid.clone(), namespace: namespace.to_owned(), name: "former".into() };
    let id = id_of(&uid)?;
    node.volumes.put(&id, record(claim, &format!("class-{namespace}"), State::Announced));
    node.run().await?;
    Ok((node, id))
}

fn manifest(node: &Node, id: &VolumeId, more: &Value) -> Result<PersistentVolume, Failure> {
    let mut pv = json!({
        "metadata": {"name": format!("adopted-{}", node.namespace)},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "volumeMode": "Filesystem",
            "storageClassName": format!("class-{}", node.namespace),
            "csi": {"driver": "local.granary.dev", "volumeHandle": id.as_str()},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": [node.name]},
            ]}]}},
        },
    });
    for (pointer, value) in more.as_object().into_iter().flatten() {
        let (parent, field) = pointer.rsplit_once('/').unwrap_or(("", pointer));
        pv.pointer_mut(parent).expect("the manifest has it")[field] = value.clone();
    }
    Ok(serde_json::from_value(pv)?)
}

pub async fn an_orphan_is_adopted_by_a_pv_made_by_hand(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (node, id) = with_orphan(&cluster, "adopted", 1).await?;
    node.make_class(json!({"allowVolumeExpansion": true})).await?;
    let claim_ref = json!({"namespace": "adopted", "name": "data"});
    let policy = json!({"/spec/persistentVolumeReclaimPolicy": "Delete", "/spec/claimRef": claim_ref});
    let pv = node.pvs().create(&PostParams::default(), &manifest(&node, &id, &policy)?).await?;
    node.claim("data", json!({"volumeName": pv.name_any()})).await?;
    let pv = node.bound("data").await?;
    assert_eq!(
        pv.spec.as_ref().and_then(|spec| spec.csi.as_ref()).map(|csi| csi.volume_handle.as_str()),
        Some(id.as_str())
    );
    // What the manifest does not say is added before the claim goes.
    eventually(PATIENCE, "our finalizer and annotation", async || {
        let found = node.pvs().get(&pv.name_any()).await?;
        let marked = found.finalizers().iter().any(|name| name == provisioner::FINALIZER);
        let named = found.annotations().contains_key("pv.kubernetes.io/provisioned-by");
        Ok::<_, kube::Error>(if marked && named {
            Seen::Done(())
        } else {
            Seen::NotYet(format!("{:?}", found.metadata))
        })
    })
    .await?;
    assert_eq!(node.volumes.live(), std::slice::from_ref(&id));
    // It grows like any other.
    node.schedule("data", &node.name).await?;
    let more = Patch::Merge(json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}));
    node.claims().patch("data", &PatchParams::default(), &more).await?;
    node.event("data", "VolumeResizeSuccessful").await?;
    node.claims().delete("data", &DeleteParams::default()).await?;
    node.removed(&pv.name_any(), &id).await?;
    node.end().await
}

pub async fn an_orphan_is_erased_by_a_pv_made_by_hand(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (node, id) = with_orphan(&cluster, "erased", 2).await?;
    // The claim that it was made for, which is gone: as the event tells.
    let uid = id.as_str().trim_start_matches("pvc-");
    let pv = manifest(
        &node,
        &id,
        &json!({
            "/metadata/annotations": {"pv.kubernetes.io/provisioned-by": "local.granary.dev"},
            "/metadata/finalizers": [provisioner::FINALIZER],
            "/spec/persistentVolumeReclaimPolicy": "Delete",
            "/spec/claimRef": {"namespace": "erased", "name": "former", "uid": uid},
        }),
    )?;
    let pv = node.pvs().create(&PostParams::default(), &pv).await?;
    node.removed(&pv.name_any(), &id).await?;
    node.end().await
}

pub async fn a_pv_with_missing_fields_is_ignored(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (node, id) = with_orphan(&cluster, "incomplete", 3).await?;
    let policy = json!({"/spec/nodeAffinity": null, "/spec/persistentVolumeReclaimPolicy": "Delete"});
    let pv = node.pvs().create(&PostParams::default(), &manifest(&node, &id, &policy)?).await?;
    // Another claim's whole life comes after it.
    node.claim_here("other", json!({})).await?;
    let other = node.bound("other").await?;
    node.claims().delete("other", &DeleteParams::default()).await?;
    node.gone(&other).await?;
    let found = node.pvs().get(&pv.name_any()).await?;
    assert!(!found.finalizers().iter().any(|name| name == provisioner::FINALIZER), "{:?}", found.metadata);
    assert_eq!(node.volumes.live(), [id]);
    assert_eq!(node.attempts(), 1);
    node.pvs().delete(&pv.name_any(), &DeleteParams::default()).await?;
    node.end().await
}
