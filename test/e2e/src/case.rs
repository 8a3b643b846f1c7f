//! A case: its namespace, and operations on its objects.

use crate::{Failure, PATIENCE, Seen, eventually};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, ObjectMeta, Patch, PatchParams, PostParams,
};
use kube::core::{ClusterResourceScope, NamespaceResourceScope};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::{self, Debug};

/// Label with the case of an object without a namespace.
const LABEL: &str = "e2e-case";

/// Namespace of a test or of a part of a suite, with the operations of a test. Clones share the namespace.
#[derive(Clone)]
pub struct Case {
    pub(crate) client: Client,
    namespace: String,
}

impl Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Case {
    /// Creates the namespace, with the default Pod Security level.
    pub async fn begin(client: Client, namespace: String) -> Result<Self, Failure> {
        Self::begin_labelled(client, namespace, BTreeMap::new()).await
    }

    /// Creates the namespace with the Pod Security level `privileged`.
    pub async fn begin_privileged(client: Client, namespace: String) -> Result<Self, Failure> {
        let label = ("pod-security.kubernetes.io/enforce".to_owned(), "privileged".to_owned());
        Self::begin_labelled(client, namespace, BTreeMap::from([label])).await
    }

    async fn begin_labelled(
        client: Client,
        namespace: String,
        labels: BTreeMap<String, String>,
    ) -> Result<Self, Failure> {
        let metadata = ObjectMeta { name: Some(namespace.clone()), labels: Some(labels), ..ObjectMeta::default() };
        let object = core::Namespace { metadata, ..core::Namespace::default() };
        let namespaces: Api<core::Namespace> = Api::all(client.clone());
        namespaces.create(&PostParams::default(), &object).await.map_err(Failure::api("create a namespace"))?;
        let case = Self { client, namespace };
        // The API server rejects pods until the controller manager has created the service account.
        let accounts: Api<core::ServiceAccount> = case.api();
        eventually(PATIENCE, "the namespace's service account", async || {
            let found = accounts.get_opt("default").await.map_err(Failure::api("look for a service account"))?;
            Ok(found.map_or_else(|| Seen::NotYet("none".to_owned()), |_| Seen::Done(())))
        })
        .await?;
        Ok(case)
    }

    /// Uses the namespace that an earlier boot of the same disk has created.
    pub fn resume(client: Client, namespace: String) -> Self {
        Self { client, namespace }
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub fn unique(&self, name: &str) -> String {
        format!("{}-{name}", self.namespace)
    }

    /// Labels for objects without a namespace. The end of the case deletes the objects with these labels.
    pub fn labels(&self) -> Value {
        json!({LABEL: self.namespace})
    }

    pub async fn create<K>(&self, object: Value) -> Result<K, Failure>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
    {
        let object: K = serde_json::from_value(object)?;
        let doing = format!("create {} {}", K::kind(&()), object.name_any());
        self.api::<K>().create(&PostParams::default(), &object).await.map_err(Failure::api(doing))
    }

    /// Applies an object like `kubectl apply --server-side --validate=strict`.
    pub async fn apply(&self, object: &DynamicObject) -> Result<(), Failure> {
        let types = object.types.clone().unwrap_or_default();
        let kind = GroupVersionKind::try_from(&types).unwrap_or_else(|error| panic!("{types:?}: {error}"));
        let objects: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &self.namespace, &ApiResource::from_gvk(&kind));
        let (name, params) = (object.name_any(), PatchParams::apply("e2e").validation_strict());
        let applied = objects.patch(&name, &params, &Patch::Apply(object)).await;
        applied.map(drop).map_err(Failure::api(format!("apply {} {name}", kind.kind)))
    }

    pub async fn get(&self, path: &str) -> Result<String, Failure> {
        let request = http::Request::get(path).body(Vec::new()).map_err(Failure::Request)?;
        self.client.request_text(request).await.map_err(Failure::api(format!("get {path}")))
    }

    /// Events about an object in the case's namespace, each as `REASON: MESSAGE`.
    pub async fn events(&self, object: &str) -> Result<Vec<String>, Failure> {
        self.events_in(&self.namespace, object).await
    }

    /// Events about an object. Events about objects without a namespace are in `default`.
    pub async fn events_in(&self, namespace: &str, object: &str) -> Result<Vec<String>, Failure> {
        let about = ListParams::default().fields(&format!("involvedObject.name={object}"));
        let events = self.api_of::<core::Event>(namespace).list(&about).await.map_err(Failure::api("list events"))?;
        let text =
            |event: core::Event| format!("{}: {}", event.reason.unwrap_or_default(), event.message.unwrap_or_default());
        Ok(events.items.into_iter().map(text).collect())
    }

    pub fn snapshots(&self) -> Api<DynamicObject> {
        self.dynamic("snapshot.storage.k8s.io", "VolumeSnapshot")
    }

    pub fn snapshot_groups(&self) -> Api<DynamicObject> {
        self.dynamic("groupsnapshot.storage.k8s.io", "VolumeGroupSnapshot")
    }

    fn dynamic(&self, group: &str, kind: &str) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
    }

    pub fn api<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub fn api_of<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub fn cluster<K: Resource<Scope = ClusterResourceScope, DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }
}

/// Deletes a case's objects without waiting. The namespace stays, because the controller manager would list all kinds
/// to delete it.
pub(crate) async fn end(client: &Client, namespace: &str) -> Result<(), Failure> {
    let classes: Api<StorageClass> = Api::all(client.clone());
    let of_case = ListParams::default().labels(&format!("{LABEL}={namespace}"));
    let deleted = classes.delete_collection(&DeleteParams::default(), &of_case).await;
    deleted.map_err(Failure::api(format!("delete the classes of {namespace}")))?;
    // Delete owners first.
    clear::<StatefulSet>(client, namespace).await?;
    clear::<core::Pod>(client, namespace).await?;
    clear::<core::PersistentVolumeClaim>(client, namespace).await
}

async fn clear<K>(client: &Client, namespace: &str) -> Result<(), Failure>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let all: Api<K> = Api::namespaced(client.clone(), namespace);
    let deleted = all.delete_collection(&DeleteParams::background(), &ListParams::default()).await;
    let doing = || format!("delete each {} of {namespace}", K::kind(&()));
    deleted.map(drop).map_err(|error| Failure::api(doing())(error))
}
