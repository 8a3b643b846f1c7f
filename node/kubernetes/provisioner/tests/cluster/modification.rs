//! Claims get VolumeAttributesClasses.

use std::sync::Arc;

use envtest::{Cluster, Failure, create, merge, merge_status, reached};
use k8s_openapi::api::core::v1::PersistentVolumeClaimStatus;
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use volume::{IoLimits, VolumeId};

use crate::node::{Node, until};

const SLOW: IoLimits = IoLimits { write_operations: Some(100), ..IoLimits::NONE };
const FAST: IoLimits = IoLimits { write_operations: Some(5000), ..IoLimits::NONE };

impl Node {
    async fn make_attributes_class(&self, name: &str, parameters: Value) -> Result<(), Failure> {
        let class = json!({
            "metadata": {"name": name}, "driverName": "local.granary.dev", "parameters": parameters,
        });
        create(&Api::<VolumeAttributesClass>::all(self.admin.clone()), class).await?;
        Ok(())
    }

    async fn remove_attributes_classes(&self, names: &[&str]) -> Result<(), Failure> {
        let classes = Api::<VolumeAttributesClass>::all(self.admin.clone());
        for name in names {
            classes.delete(name, &DeleteParams::default()).await?;
        }
        Ok(())
    }

    async fn request_class(&self, class: Option<&str>) -> Result<(), Failure> {
        merge(&self.claims(), "data", json!({"spec": {"volumeAttributesClassName": class}})).await?;
        Ok(())
    }

    async fn status(
        &self,
        what: &str,
        is_reached: impl Fn(&PersistentVolumeClaimStatus) -> bool,
    ) -> Result<PersistentVolumeClaimStatus, Failure> {
        reached(what, async || Ok(self.claims().get("data").await?.status.unwrap_or_default()), is_reached).await
    }

    async fn progress(&self, wanted: &str) -> Result<PersistentVolumeClaimStatus, Failure> {
        let is_reached = |status: &PersistentVolumeClaimStatus| {
            status.modify_volume_status.as_ref().is_some_and(|found| found.status == wanted)
        };
        self.status(&format!("the state {wanted} of the change"), is_reached).await
    }

    async fn has_class(&self, id: &VolumeId, class: &str, io: IoLimits) -> Result<(), Failure> {
        let is_reached = |status: &PersistentVolumeClaimStatus| {
            status.current_volume_attributes_class_name.as_deref() == Some(class)
        };
        let status = self.status(&format!("the class {class}"), is_reached).await?;
        assert_eq!((&status.modify_volume_status, conditions(&status)), (&None, vec![]));
        let pv = self.pvs().get(id.as_str()).await?;
        assert_eq!(pv.spec.unwrap_or_default().volume_attributes_class_name.as_deref(), Some(class));
        assert_eq!(self.volumes.record(id).map(|record| record.io), Some(io));
        Ok(())
    }
}

fn conditions(status: &PersistentVolumeClaimStatus) -> Vec<&str> {
    let conditions = status.conditions.iter().flatten().map(|condition| condition.type_.as_str());
    conditions.filter(|type_| type_.starts_with("Modify")).collect()
}

pub async fn a_block_claim_is_created_with_a_class_and_gets_another(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start_apart(&cluster, "modified").await?;
    node.make_attributes_class("modified-slow", json!({"writeIOPS": "100"})).await?;
    let claim = json!({"volumeMode": "Block", "volumeAttributesClassName": "modified-slow"});
    node.claim_here("data", claim).await?;
    let id: VolumeId = node.bound("data").await?.name_any().parse()?;
    node.has_class(&id, "modified-slow", SLOW).await?;
    assert!(node.event("data", "ProvisioningSucceeded").await?.contains("writeIOPS=100"));

    // The class is created after it is requested.
    node.request_class(Some("modified-fast")).await?;
    node.progress("Pending").await?;
    assert!(node.event("data", "VolumeModifyFailed").await?.contains("modified-fast does not exist"));
    node.make_attributes_class("modified-fast", json!({"writeIOPS": "5000"})).await?;
    node.has_class(&id, "modified-fast", FAST).await?;
    assert!(node.event("data", "VolumeModify").await?.contains("class modified-fast"));
    assert!(node.event("data", "VolumeModifySuccessful").await?.contains("writeIOPS=5000"));
    node.remove_attributes_classes(&["modified-slow", "modified-fast"]).await?;
    node.end().await
}

pub async fn a_class_that_is_not_possible_changes_nothing(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start_apart(&cluster, "infeasible").await?;
    node.make_class(json!({"allowVolumeExpansion": true})).await?;
    node.make_attributes_class("infeasible-good", json!({"writeIOPS": "100"})).await?;
    node.make_attributes_class("infeasible-bad", json!({"weight": "100"})).await?;
    let id = node.volume("data", json!({"volumeMode": "Block"})).await?;
    node.request_class(Some("infeasible-bad")).await?;
    let status = node.progress("Infeasible").await?;
    assert_eq!(conditions(&status), ["ModifyingVolume", "ModifyVolumeError"]);
    node.event_with("data", "VolumeModifyFailed", &["infeasible-bad cannot be used: it has weight"]).await?;
    assert_eq!(node.volumes.record(&id).map(|record| record.io), Some(IoLimits::NONE));
    // An expansion does not wait for another class.
    node.enlarge("data", "2Gi").await?;
    until("the expansion", async || {
        let size = node.volumes.record(&id).map(|record| record.size.get());
        Ok((size != Some(2 << 30)).then(|| format!("{size:?}")))
    })
    .await?;
    // The node cannot limit I/O.
    node.volumes.set_unthrottled(true);
    node.request_class(Some("infeasible-good")).await?;
    let unsupported = |status: &PersistentVolumeClaimStatus| {
        let errors = status.conditions.iter().flatten().filter(|condition| condition.type_ == "ModifyVolumeError");
        errors.filter_map(|condition| condition.message.as_deref()).any(|text| text.contains("cannot limit I/O"))
    };
    let status = node.status("the reason of the node", unsupported).await?;
    assert_eq!(status.modify_volume_status.map(|found| found.status).as_deref(), Some("Infeasible"));
    // Without a class, the claim is as before, except for the result of the last change.
    node.request_class(None).await?;
    node.event("data", "VolumeModifyCanceled").await?;
    node.status("the end of the condition", |status| conditions(status) == ["ModifyVolumeError"]).await?;
    node.volumes.set_unthrottled(false);
    node.request_class(Some("infeasible-good")).await?;
    node.has_class(&id, "infeasible-good", SLOW).await?;
    node.remove_attributes_classes(&["infeasible-good", "infeasible-bad"]).await?;
    node.end().await
}

pub async fn an_interrupted_change_is_finished_and_a_filesystem_is_not_changed(
    cluster: Arc<Cluster>,
) -> Result<(), Failure> {
    let mut node = Node::start_apart(&cluster, "interrupted").await?;
    node.make_attributes_class("interrupted", json!({"writeIOPS": "100"})).await?;
    let id = node.volume("data", json!({"volumeMode": "Block"})).await?;
    node.halt().await?;
    node.request_class(Some("interrupted")).await?;
    let begun = json!({"status": {"modifyVolumeStatus": {
        "status": "InProgress", "targetVolumeAttributesClassName": "interrupted",
    }}});
    merge_status(&node.claims(), "data", begun).await?;
    // The volume has the limits on the disk only.
    volume::Volumes::limit_io(&*node.volumes, &id, SLOW)?;
    node.run().await?;
    node.has_class(&id, "interrupted", SLOW).await?;
    node.claims().delete("data", &DeleteParams::default()).await?;
    node.removed(id.as_str(), &id).await?;

    node.provisioned("data", json!({})).await?;
    node.request_class(Some("interrupted")).await?;
    node.progress("Infeasible").await?;
    node.event_with("data", "VolumeModifyFailed", &["supported for block volumes only"]).await?;
    node.remove_attributes_classes(&["interrupted"]).await?;
    node.end().await
}
