//! Objects of the snapshot that keeps the former content of a volume.

use dir::Ensured;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, PostParams};
use serde_json::Value;
use volume::{Claim, Record, VolumeId};

use crate::context::Provisioner;
use crate::error::{Error, api};
use crate::rollback::plan::{self, VolumeContent};
use crate::snapshot::object::{Content, Snapshot};

impl Provisioner {
    /// Creates the objects of the kept snapshot. A content is created only if its VolumeSnapshot can be created: the
    /// sweep reports a snapshot without a content.
    pub(super) async fn create_objects(&self, kept: &VolumeId, record: &Record) -> Result<(), Error> {
        let has = VolumeContent::Requested;
        self.verify_snapshot(&record.claim, kept, has).await?;
        self.create_content(kept, record).await?;
        self.create_snapshot(&record.claim, kept, has, &PostParams::default()).await
    }

    /// Creates the content, and verifies a content that exists: every node can read the ID on the claim, and create a
    /// content of that name with its own label.
    async fn create_content(&self, kept: &VolumeId, record: &Record) -> Result<(), Error> {
        let what = "create the content of the kept snapshot";
        let contents = Api::<DynamicObject>::all_with(self.client.clone(), &ApiResource::erase::<Content>(&()));
        let content = plan::content(kept, record, &self.node);
        let created = create(&contents, content, VolumeContent::Requested, what, &PostParams::default()).await?;
        if created == Ensured::Unchanged(()) {
            let found = self.contents.get(kept.as_str()).await.map_err(api("get the content of the kept snapshot"))?;
            if !plan::is_content_of(&found, kept, record, &self.node) {
                return Err(Error::ContentTaken { id: kept.clone() });
            }
        }
        Ok(())
    }

    /// Verifies by a dry run that the API server would accept the VolumeSnapshot: a quota of the namespace may not
    /// allow it.
    pub(super) async fn verify_snapshot(&self, of: &Claim, kept: &VolumeId, has: VolumeContent) -> Result<(), Error> {
        self.create_snapshot(of, kept, has, &PostParams { dry_run: true, ..PostParams::default() }).await
    }

    /// Creates the VolumeSnapshot, and verifies one that exists: users of the namespace can read the ID on the claim,
    /// and create a snapshot of that name.
    async fn create_snapshot(
        &self,
        of: &Claim,
        kept: &VolumeId,
        has: VolumeContent,
        params: &PostParams,
    ) -> Result<(), Error> {
        let name = &of.name;
        let resource = ApiResource::erase::<Snapshot>(&());
        let snapshots = Api::<DynamicObject>::namespaced_with(self.client.clone(), &of.namespace, &resource);
        let created = create(&snapshots, plan::snapshot(kept, name), has, "create the kept snapshot", params).await?;
        if created == Ensured::Unchanged(()) {
            let found = snapshots.get(name).await.map_err(api("get the kept snapshot"))?;
            if !plan::is_snapshot_of(&found.data, kept) {
                return Err(Error::SnapshotTaken { has, name: name.clone() });
            }
        }
        Ok(())
    }
}

/// Creates an object. Returns `Unchanged` if the object exists: an earlier pass may have created it.
async fn create(
    api_of: &Api<DynamicObject>,
    object: Value,
    has: VolumeContent,
    what: &'static str,
    params: &PostParams,
) -> Result<Ensured<()>, Error> {
    let object: DynamicObject = serde_json::from_value(object).map_err(kube::Error::SerdeError).map_err(api(what))?;
    match api_of.create(params, &object).await {
        Ok(_) => Ok(Ensured::Created(())),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(Ensured::Unchanged(())),
        // A quota of the namespace may deny the object: its user can help, and no other request fails.
        Err(kube::Error::Api(status)) if status.is_forbidden() => {
            Err(Error::KeptDenied { has, what, message: status.message.clone() })
        }
        Err(error) => Err(api(what)(error).into()),
    }
}
