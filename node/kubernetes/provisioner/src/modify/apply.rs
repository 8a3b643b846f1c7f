//! Changes the VolumeAttributesClass of a bound claim, as [`plan`](super::plan) decides.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tracing::info;
use volume::{IoLimits, VolumeId, VolumeMode};

use crate::claim::plan::Rejection;
use crate::context::Provisioner;
use crate::error::{ApiError, Error, api};
use crate::modify::class;
use crate::modify::plan::{Progress, Step};
use crate::modify::status::{self, StatusChange};

impl Provisioner {
    /// Executes the step. Reports a failure in the claim's status and by an event.
    pub(crate) async fn modify(
        &self,
        claim: &PersistentVolumeClaim,
        pv: &PersistentVolume,
        id: &VolumeId,
        step: Step,
    ) -> Result<(), Error> {
        let (class, progress) = match step {
            Step::Done => return Ok(()),
            Step::Cancel => {
                self.patch_class(claim, StatusChange::Canceled).await?;
                self.events.modify_canceled(claim);
                return Ok(());
            }
            Step::Modify { class, progress } => (class, progress),
        };
        let modified = self.change_class(claim.clone(), pv, id, &class, progress).await;
        if let Err(error) = &modified
            && !error.is_race()
        {
            self.events.modify_failed(claim, &class, error);
        }
        modified
    }

    async fn change_class(
        &self,
        mut claim: PersistentVolumeClaim,
        pv: &PersistentVolume,
        id: &VolumeId,
        class: &str,
        progress: Progress,
    ) -> Result<(), Error> {
        let mode = match claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()) {
            Some("Block") => VolumeMode::Block,
            _ => VolumeMode::Filesystem,
        };
        let io = match self.io_of_class(class, mode).await {
            Ok(io) => io,
            Err(error) => {
                let reason = &causes::line(&error);
                let change = match &error {
                    Error::UnknownAttributesClass { .. } => StatusChange::Pending,
                    Error::Rejected(_) => StatusChange::Infeasible { class, reason },
                    _ => return Err(error),
                };
                self.patch_class(&claim, change).await?;
                return Err(error);
            }
        };
        if progress == Progress::New {
            claim = self.patch_class(&claim, StatusChange::Begun { class }).await?;
            self.events.modifying(&claim, class);
        }
        if let Err(source) = self.on_volume(id, move |store, id| store.limit_io(id, io)).await? {
            let is_infeasible = source.is_infeasible();
            let error = Error::Modify(source);
            let reason = &causes::line(&error);
            let change = if is_infeasible {
                StatusChange::Infeasible { class, reason }
            } else {
                StatusChange::Failed { class, reason }
            };
            self.patch_class(&claim, change).await?;
            return Err(error);
        }
        // Change the PV first: a claim with the class in its status needs no further pass.
        if pv.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.as_deref()) != Some(class) {
            self.patch_pv(pv, json!({"volumeAttributesClassName": class}), "write the PV's class").await?;
        }
        self.patch_class(&claim, StatusChange::Finished { class }).await?;
        info!(class, %io, "class of the volume changed");
        self.events.modified(&claim, class, io);
        Ok(())
    }

    pub(crate) async fn io_of_class(&self, class: &str, mode: VolumeMode) -> Result<IoLimits, Error> {
        let classes = Api::<VolumeAttributesClass>::all(self.client.clone());
        let found = classes.get_opt(class).await.map_err(api("get the VolumeAttributesClass"))?;
        let found = found.ok_or_else(|| Error::UnknownAttributesClass { class: class.to_owned() })?;
        let rejected = |source| Rejection::AttributesClass { class: class.to_owned(), source };
        Ok(class::limits(&found, mode).map_err(rejected)?)
    }

    /// Patches the claim's status, and returns the changed claim. Fails if the claim was changed since it was read.
    async fn patch_class(
        &self,
        claim: &PersistentVolumeClaim,
        change: StatusChange<'_>,
    ) -> Result<PersistentVolumeClaim, ApiError> {
        let Some(patch) = status::patch(claim, change, &Time(Timestamp::now())) else { return Ok(claim.clone()) };
        self.claims_beside(claim)
            .patch_status(&claim.name_any(), &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map_err(api("write the claim's status"))
    }
}
