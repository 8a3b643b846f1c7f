//! The API of volume snapshots without its controller. The test acts as the controller.

use cluster::DRIVER_NAME;
use cluster::snapshot::{
    BEING_DELETED, CLASS, CLASSES, CONTENT, CONTENTS, GROUP, MANAGED_BY, PROTECTION, SNAPSHOT, SNAPSHOTS, VERSION,
    group,
};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::{Cluster, Failure, PATIENCE, Seen, eventually};

/// Snapshots and groups of a namespace, all contents, and all classes.
pub struct SnapshotApi {
    pub groups: Api<DynamicObject>,
    pub group_contents: Api<DynamicObject>,
    pub group_classes: Api<DynamicObject>,
    pub classes: Api<DynamicObject>,
    pub snapshots: Api<DynamicObject>,
    pub contents: Api<DynamicObject>,
    namespace: String,
    group_version: &'static str,
}

fn resource(kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, VERSION, kind), plural)
}

fn group_resource(version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group::GROUP, version, kind), plural)
}

impl SnapshotApi {
    /// Creates the CRDs like a node does, once for all cases: those that run at the same time must not do it together.
    pub async fn install(cluster: &Cluster, namespace: &str) -> Result<Self, Failure> {
        static INSTALLED: OnceCell<()> = OnceCell::const_new();
        INSTALLED.get_or_try_init(|| cluster.reconcile_snapshots()).await?;
        let api = Self::of(cluster.admin(), namespace);
        eventually(PATIENCE, "the API of snapshots", async || {
            let all = ListParams::default();
            api.snapshots.list(&all).await?;
            api.groups.list(&all).await?;
            api.group_contents.list(&all).await?;
            api.contents.list(&all).await.map(|_| Seen::Done(()))
        })
        .await?;
        Ok(api)
    }

    /// The same API with another client, and so with another user.
    pub fn of(client: Client, namespace: &str) -> Self {
        Self::with_groups(client, namespace, VERSION)
    }

    /// The same API with this version of groups.
    pub fn with_groups(client: Client, namespace: &str, group_version: &'static str) -> Self {
        let groups = |kind, plural| group_resource(group_version, kind, plural);
        let snapshots = groups(group::SNAPSHOT, group::SNAPSHOTS);
        Self {
            groups: Api::namespaced_with(client.clone(), namespace, &snapshots),
            group_contents: Api::all_with(client.clone(), &groups(group::CONTENT, group::CONTENTS)),
            group_classes: Api::all_with(client.clone(), &groups(group::CLASS, group::CLASSES)),
            classes: Api::all_with(client.clone(), &resource(CLASS, CLASSES)),
            snapshots: Api::namespaced_with(client.clone(), namespace, &resource(SNAPSHOT, SNAPSHOTS)),
            contents: Api::all_with(client, &resource(CONTENT, CONTENTS)),
            namespace: namespace.to_owned(),
            group_version,
        }
    }

    /// Creates a snapshot and its content with this source. `more` contains additional fields of the content's spec.
    pub async fn create(
        &self,
        name: &str,
        node: Option<&str>,
        source: Value,
        more: Value,
    ) -> Result<DynamicObject, Failure> {
        self.create_with(name, node, source, more, &[]).await
    }

    async fn create_with(
        &self,
        name: &str,
        node: Option<&str>,
        source: Value,
        more: Value,
        annotations: &[(&str, &str)],
    ) -> Result<DynamicObject, Failure> {
        let new = DynamicObject::new(name, &resource(SNAPSHOT, SNAPSHOTS));
        let new = new.data(json!({"spec": {"source": {"persistentVolumeClaimName": "data"}}}));
        let snapshot = self.snapshots.create(&PostParams::default(), &new).await?;
        let uid = snapshot.uid().unwrap_or_default();
        let mut spec = json!({
            "driver": DRIVER_NAME, "deletionPolicy": "Delete", "source": source, "sourceVolumeMode": "Block",
            "volumeSnapshotClassName": "local",
            "volumeSnapshotRef": {
                "apiVersion": format!("{GROUP}/{VERSION}"), "kind": SNAPSHOT, "namespace": self.namespace, "name": name,
                "uid": uid,
            },
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        let mut new = DynamicObject::new(&format!("snapcontent-{uid}"), &resource(CONTENT, CONTENTS));
        new.metadata.labels = node.map(|node| [(MANAGED_BY.to_owned(), node.to_owned())].into());
        new.metadata.annotations =
            Some(annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect());
        new.metadata.finalizers = Some(vec![PROTECTION.to_owned()]);
        let content = self.contents.create(&PostParams::default(), &new.data(json!({"spec": spec}))).await?;
        let status = json!({"status": {"boundVolumeSnapshotContentName": content.name_any(), "readyToUse": false}});
        self.snapshots.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await?;
        Ok(content)
    }

    pub async fn create_class(&self, name: &str, parameters: Value) -> Result<(), Failure> {
        let class = DynamicObject::new(name, &resource(CLASS, CLASSES));
        let fields = json!({"driver": DRIVER_NAME, "deletionPolicy": "Delete", "parameters": parameters});
        self.classes.create(&PostParams::default(), &class.data(fields)).await?;
        Ok(())
    }

    /// Creates a group and its content with this source. `more` contains additional fields of the content's spec.
    pub async fn create_group(
        &self,
        name: &str,
        node: Option<&str>,
        source: Value,
        more: Value,
    ) -> Result<DynamicObject, Failure> {
        let version = self.group_version;
        let new = DynamicObject::new(name, &group_resource(version, group::SNAPSHOT, group::SNAPSHOTS));
        let selector = json!({"selector": {"matchLabels": {"app": "shop"}}});
        let new = new.data(json!({"spec": {"source": selector, "volumeGroupSnapshotClassName": "local"}}));
        let uid = self.groups.create(&PostParams::default(), &new).await?.uid().unwrap_or_default();
        let mut spec = json!({
            "driver": DRIVER_NAME, "deletionPolicy": "Delete", "source": source,
            "volumeGroupSnapshotClassName": "local",
            "volumeGroupSnapshotRef": {
                "apiVersion": format!("{}/{version}", group::GROUP), "kind": group::SNAPSHOT,
                "namespace": self.namespace, "name": name, "uid": uid,
            },
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        let kind = group_resource(version, group::CONTENT, group::CONTENTS);
        let mut new = DynamicObject::new(&format!("groupsnapcontent-{uid}"), &kind);
        new.metadata.labels = node.map(|node| [(MANAGED_BY.to_owned(), node.to_owned())].into());
        new.metadata.finalizers = Some(vec![group::PROTECTION.to_owned()]);
        Ok(self.group_contents.create(&PostParams::default(), &new.data(json!({"spec": spec}))).await?)
    }

    pub async fn create_group_class(&self, name: &str, parameters: Value) -> Result<(), Failure> {
        let kind = group_resource(self.group_version, group::CLASS, group::CLASSES);
        let class = DynamicObject::new(name, &kind);
        let fields = json!({"driver": DRIVER_NAME, "deletionPolicy": "Delete", "parameters": parameters});
        self.group_classes.create(&PostParams::default(), &class.data(fields)).await?;
        Ok(())
    }

    /// Waits until the status of a group's content fulfils the condition.
    pub async fn group_status(&self, content: &str, is_reached: impl Fn(&Value) -> bool) -> Result<Value, Failure> {
        status_of(&self.group_contents, content, is_reached).await
    }

    /// Deletes the content of a group, like the controller does after the deletion of the group.
    pub async fn delete_group(&self, group: &str, content: &str) -> Result<(), Failure> {
        let announced = json!({"annotations": {group::BEING_DELETED: "yes"}});
        delete_with(&self.groups, group, &self.group_contents, content, announced).await
    }

    /// Deletes the content of a group and waits until it is removed.
    pub async fn group_gone(&self, group: &str, content: &str) -> Result<(), Failure> {
        self.delete_group(group, content).await?;
        end_of(&self.group_contents, content).await
    }

    /// Removes the content of a group regardless of its finalizers.
    pub async fn force_group(&self, group: &str, content: &str) -> Result<(), Failure> {
        delete_with(&self.groups, group, &self.group_contents, content, json!({"finalizers": null})).await
    }

    pub async fn create_member(&self, name: &str, group: &str, volume: &str) -> Result<DynamicObject, Failure> {
        let source = json!({"volumeHandle": volume});
        self.create_with(name, None, source, json!({}), &[(group::HANDLE, group)]).await
    }

    /// Waits until the content is ready, and returns its status. Then marks the snapshot as ready.
    pub async fn ready(&self, snapshot: &str, content: &str) -> Result<Value, Failure> {
        let status = self.status(content, |status| status["readyToUse"] == true).await?;
        let ready = json!({"status": {"readyToUse": true}});
        self.snapshots.patch_status(snapshot, &PatchParams::default(), &Patch::Merge(ready)).await?;
        Ok(status)
    }

    /// Waits until the status of the content fulfils the condition.
    pub async fn status(&self, content: &str, is_reached: impl Fn(&Value) -> bool) -> Result<Value, Failure> {
        status_of(&self.contents, content, is_reached).await
    }

    /// Deletes the content, like the controller does after the deletion of its snapshot.
    pub async fn delete(&self, snapshot: &str, content: &str) -> Result<(), Failure> {
        let announced = json!({"annotations": {BEING_DELETED: "yes"}});
        delete_with(&self.snapshots, snapshot, &self.contents, content, announced).await
    }

    pub async fn gone(&self, snapshot: &str, content: &str) -> Result<(), Failure> {
        self.delete(snapshot, content).await?;
        end_of(&self.contents, content).await
    }

    /// Removes a content regardless of its finalizers.
    pub async fn force(&self, snapshot: &str, content: &str) -> Result<(), Failure> {
        delete_with(&self.snapshots, snapshot, &self.contents, content, json!({"finalizers": null})).await
    }
}

/// Changes the metadata of the content, and deletes the content and then its snapshot or group.
async fn delete_with(
    owners: &Api<DynamicObject>,
    owner: &str,
    contents: &Api<DynamicObject>,
    content: &str,
    metadata: Value,
) -> Result<(), Failure> {
    let change = Patch::Merge(json!({"metadata": metadata}));
    contents.patch(content, &PatchParams::default(), &change).await?;
    contents.delete(content, &DeleteParams::default()).await?;
    owners.delete(owner, &DeleteParams::default()).await?;
    Ok(())
}

async fn status_of(
    contents: &Api<DynamicObject>,
    content: &str,
    is_reached: impl Fn(&Value) -> bool,
) -> Result<Value, Failure> {
    let what = format!("the status of content {content}");
    let status = eventually(PATIENCE, &what, async || {
        let status = contents.get(content).await?.data["status"].clone();
        Ok::<_, kube::Error>(if is_reached(&status) { Seen::Done(status) } else { Seen::NotYet(status.to_string()) })
    });
    Ok(status.await?)
}

async fn end_of(contents: &Api<DynamicObject>, content: &str) -> Result<(), Failure> {
    eventually(PATIENCE, &format!("the end of content {content}"), async || {
        let found = contents.get_opt(content).await?;
        Ok::<_, kube::Error>(found.map_or(Seen::Done(()), |found| Seen::NotYet(found.data.to_string())))
    })
    .await?;
    Ok(())
}
