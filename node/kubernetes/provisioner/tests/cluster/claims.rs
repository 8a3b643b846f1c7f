//! Volumes are created for claims.

use std::sync::Arc;

use envtest::{Cluster, Failure, PATIENCE, Seen, create, eventually, gone, merge, reached};
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use provisioner::Notice;
use serde_json::json;
use units::Bytes;
use volume::{Allocation, Mode, VolumeId};

use crate::id_of;
use crate::node::{Node, SELECTED_NODE, until};

pub async fn a_claim_gets_a_volume_with_its_fields(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start(&cluster, "provision").await?;
    let claim = node.claim_here("data", json!({"resources": {"requests": {"storage": "1500000001"}}})).await?;
    let pv = node.bound("data").await?;
    let uid = claim.uid().unwrap_or_default();
    assert_eq!(pv.name_any(), format!("pvc-{uid}"));
    assert_eq!(pv.annotations()["pv.kubernetes.io/provisioned-by"], "local.granary.dev");
    let spec = pv.spec.unwrap_or_default();
    // The size is rounded up to whole blocks of 4 KiB.
    assert_eq!(spec.capacity.unwrap_or_default()["storage"].0, "1464844Ki");
    assert_eq!(spec.access_modes.unwrap_or_default(), ["ReadWriteOnce"]);
    assert_eq!(spec.csi.map(|csi| csi.volume_handle), Some(format!("pvc-{uid}")));
    let record = node.volumes.record(&id_of(&uid)?).expect("the volume has a record");
    assert_eq!((record.size, record.claim.uid), (Bytes::new(1_464_844 << 10), uid));
    assert!(node.event("data", "ProvisioningSucceeded").await?.contains("1.39 GiB"));
    let succeeded = |events: &[k8s_openapi::api::events::v1::Event]| {
        events.iter().filter(|event| event.reason.as_deref() == Some("ProvisioningSucceeded")).count()
    };
    assert_eq!(succeeded(&node.events("data").await?), 1);
    node.settled(&id_of(&claim.uid().unwrap_or_default())?).await?;
    node.end().await
}

pub async fn a_claim_of_another_node_is_ignored(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start(&cluster, "another-node").await?;
    node.claim("elsewhere", json!({})).await?;
    node.schedule("elsewhere", "another").await?;
    node.claim("nowhere", json!({})).await?;
    // The watch has delivered both claims before this one.
    let pv = node.provisioned("here", json!({})).await?;
    assert_eq!(node.volumes.live(), [pv.name_any().parse()?]);
    node.end().await
}

pub async fn unsupported_fields_are_rejected_by_name(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start(&cluster, "refusals").await?;
    let source = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "other"});
    for (name, field, spec) in [
        ("source", "dataSource", json!({"dataSource": source})),
        ("selector", "selector", json!({"selector": {"matchLabels": {"a": "b"}}})),
        ("many", "ReadWriteMany", json!({"accessModes": ["ReadWriteMany"]})),
        ("readers", "ReadOnlyMany", json!({"accessModes": ["ReadWriteOnce", "ReadOnlyMany"]})),
        ("attributes", "gold cannot be used: it limits I/O", json!({"volumeAttributesClassName": "gold"})),
    ] {
        node.claim_here(name, spec).await?;
        node.event_with(name, "ProvisioningFailed", &[field]).await?;
    }
    for (name, word, class) in [
        ("options", "mountOptions", json!({"mountOptions": ["sync"]})),
        ("parameter", "colour", json!({"parameters": {"colour": "red"}})),
        ("allocation", "thick", json!({"parameters": {"blockAllocation": "sparse"}})),
        ("inodes", "bytesPerInode", json!({"parameters": {"bytesPerInode": "1"}})),
    ] {
        node.make_class(class).await?;
        node.claim_here(name, json!({})).await?;
        node.event_with(name, "ProvisioningFailed", &[word]).await?;
    }
    // No request can have such a name in its path. kube-controller-manager also reports it.
    let class = json!({
        "metadata": {"name": "class", "annotations": {"volume.beta.kubernetes.io/storage-class": "not a name"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    create(&node.claims(), class).await?;
    node.schedule("class", &node.name).await?;
    node.note("class", None, &["the storage class not a name does not exist"]).await?;
    assert_eq!(node.volumes.live(), []);
    node.end().await
}

/// Upstream's library for populators fills the volume of a temporary claim, and then moves the PV to the populated
/// claim. The name of the PV has the UID of the temporary claim.
pub async fn a_pv_that_a_populator_moved_belongs_to_its_claim(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start(&cluster, "moved").await?;
    node.make_class(json!({"allowVolumeExpansion": true})).await?;
    let source = json!({"apiGroup": "example.com", "kind": "Backup", "name": "monday"});
    let populated = node.claim_here("data", json!({"dataSourceRef": source})).await?;
    let id = node.volume("temporary", json!({})).await?;
    // The watch has delivered the populated claim before the temporary one.
    node.event("temporary", "ProvisioningSucceeded").await?;
    let mut events = node.events("data").await?;
    events.retain(|event| event.reporting_controller.as_deref() == Some("local.granary.dev"));
    assert_eq!(events, []);
    assert_eq!(node.volumes.live(), std::slice::from_ref(&id));
    let claim = json!({"namespace": node.namespace, "name": "data", "uid": populated.uid()});
    merge(&node.pvs(), id.as_str(), json!({"spec": {"claimRef": claim}})).await?;
    let pv = node.bound("data").await?;
    assert_eq!(pv.name_any(), id.as_str());
    let claims = node.claims();
    claims.delete("temporary", &DeleteParams::default()).await?;
    gone(&claims, "temporary").await?;
    // The reclaimer allows the node of the PV to write the status of the claim.
    let reclaimer = envtest::start("reclaimer", node.admin.clone(), reconciler::reclaim).await?;
    node.enlarge("data", "2Gi").await?;
    node.event("data", "VolumeResizeSuccessful").await?;
    reclaimer.stop(PATIENCE).await?;
    assert_eq!(node.volumes.record(&id).map(|record| record.size), Some(Bytes::new(2 << 30)));
    assert_eq!(node.volumes.live(), [id]);
    node.delete("data", &pv).await?;
    node.end().await
}

/// Regression: the event was only on the temporary claim, which lost its node. The populator's pod has a node, so the
/// scheduler did not select one for the claim.
pub async fn a_populated_claim_that_does_not_fit_is_reported_and_retried(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::with_disk(&cluster, "populated", Bytes::new(2 << 30)).await?;
    let other = node.provisioned("other", json!({})).await?;
    let source = json!({"apiGroup": "example.com", "kind": "Backup", "name": "monday"});
    let populated = node.claim_here("data", json!({"dataSourceRef": source})).await?;
    let temporary = format!("prime-{}", populated.uid().unwrap_or_default());
    node.claim_here(&temporary, json!({})).await?;
    node.event_with("data", "ProvisioningFailed", &[&temporary, "needs 1.25 GiB"]).await?;
    node.delete("other", &other).await?;
    node.bound(&temporary).await?;
    node.end().await
}

pub async fn a_claim_that_does_not_fit_goes_back_to_the_scheduler(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::with_disk(&cluster, "full", Bytes::GIB).await?;
    node.claim_here("large", json!({})).await?;
    node.event_with("large", "ProvisioningFailed", &["1.25 GiB", "1 GiB free"]).await?;
    let claims = node.claims();
    until("the claim without its node", async || {
        let found = claims.get("large").await?;
        Ok(found.annotations().contains_key(SELECTED_NODE).then(|| format!("{:?}", found.annotations())))
    })
    .await?;
    assert_eq!(node.volumes.live(), []);
    node.provisioned("small", json!({"resources": {"requests": {"storage": "512Mi"}}})).await?;
    node.end().await
}

pub async fn a_block_claim_gets_the_allocation_of_its_class(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start(&cluster, "block").await?;
    for (name, parameters, access, allocation) in [
        ("thick", json!({}), "ReadWriteOnce", Allocation::Thick),
        ("thin", json!({"blockAllocation": "thin", "bytesPerInode": "4096"}), "ReadWriteOncePod", Allocation::Thin),
    ] {
        node.make_class(json!({"parameters": parameters})).await?;
        let claim = node.claim_here(name, json!({"volumeMode": "Block", "accessModes": [access]})).await?;
        let pv = node.bound(name).await?;
        let spec = pv.spec.unwrap_or_default();
        assert_eq!(spec.volume_mode.as_deref(), Some("Block"));
        assert_eq!(spec.access_modes.unwrap_or_default(), [access]);
        let record = node.volumes.record(&id_of(&claim.uid().unwrap_or_default())?).expect("the volume has a record");
        assert_eq!(record.mode, Mode::Block { allocation });
        node.event_with(name, "ProvisioningSucceeded", &["a block device of 1 GiB", &allocation.to_string()]).await?;
    }
    node.end().await
}

pub async fn a_generic_ephemeral_volume_is_deleted_with_its_pod(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start(&cluster, "ephemeral").await?;
    let spec = json!({
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": node.class,
    });
    let pods = node.pod("tenant", &json!({"ephemeral": {"volumeClaimTemplate": {"spec": spec}}})).await?;
    let claims = node.claims();
    let claim = eventually(PATIENCE, "the claim of the pod", async || {
        let found = claims.get_opt("tenant-v").await?;
        Ok::<_, kube::Error>(found.map_or(Seen::NotYet("none".into()), Seen::Done))
    })
    .await?;
    let owners: Vec<_> = claim.owner_references().iter().map(|owner| Some(owner.uid.clone())).collect();
    assert_eq!(owners, [pods.get("tenant").await?.uid()]);
    node.schedule("tenant-v", &node.name).await?;
    let pv = node.bound("tenant-v").await?;
    pods.delete("tenant", &DeleteParams::default().grace_period(0)).await?;
    node.gone(&pv).await?;
    assert_eq!(claims.get_opt("tenant-v").await?, None);
    node.end().await
}

pub async fn a_denied_call_is_an_event_on_its_pod(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut node = Node::start(&cluster, "denied").await?;
    let pod = provisioner::Pod { namespace: "denied".into(), name: "tenant".into(), uid: "u".into() };
    let denied = |operation| Notice::Denied {
        pod: pod.clone(),
        container: "main".into(),
        operation,
        call: "a change of a file's project ID",
    };
    node.notices.send(denied("project"));
    let events = async || node.events("tenant").await;
    let seen = reached("event VolumeCallDenied", events, |events| !events.is_empty()).await?.swap_remove(0);
    let about = seen.regarding.unwrap_or_default();
    assert_eq!((about.kind.as_deref(), about.uid.as_deref()), (Some("Pod"), Some("u")));
    assert_eq!(about.namespace.as_deref(), Some("denied"));
    assert_eq!(seen.reason.as_deref(), Some("VolumeCallDenied"));
    let note = seen.note.unwrap_or_default();
    assert!(note.starts_with("container main was denied a change of a file's project ID"), "{note}");
    // A notice during a restart is published afterwards.
    node.halt().await?;
    node.notices.send(denied("loop"));
    node.run().await?;
    until("a second event", async || {
        let events = node.events("tenant").await?;
        Ok((events.len() != 2).then(|| format!("{events:?}")))
    })
    .await?;
    node.end().await
}

pub async fn a_revoked_detach_of_a_volume_is_reported(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start(&cluster, "revoked").await?;
    let pv = node.provisioned("data", json!({"volumeMode": "Block"})).await?;
    let id: VolumeId = pv.name_any().parse()?;
    let note = eventually(PATIENCE, "event VolumeDetachRevoked", async || {
        // Repeated until the provisioner's watch has seen the PV.
        node.revoked.send_modify(|counts| *counts.entry(id.clone()).or_default() += 1);
        let events = node.events(&pv.name_any()).await?;
        let found = events.into_iter().find(|event| event.reason.as_deref() == Some("VolumeDetachRevoked"));
        let note = found.map(|event| event.note.unwrap_or_default());
        Ok::<_, kube::Error>(note.map_or_else(|| Seen::NotYet("none".to_owned()), Seen::Done))
    })
    .await?;
    assert!(note.contains("LOOP_CLR_FD"), "{note}");
    node.end().await
}
