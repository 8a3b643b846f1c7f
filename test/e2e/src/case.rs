//! What a case works with: a namespace of its own, and verbs.

use crate::{Claim, Failure, PATIENCE, Pod, Seen, eventually};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt};
use std::sync::atomic::{AtomicU32, Ordering};
use workload::{Check, Finding, Volumes};

/// The node's volumes, on its data disk.
const VOLUMES: &str = "/data/volumes";

/// One test of a suite.
pub struct Case {
    client: Client,
    namespace: String,
    /// Makes names of pods different.
    looks: AtomicU32,
}

impl Case {
    /// Makes the namespace.
    pub(crate) async fn begin(client: Client, namespace: String) -> Result<Self, Failure> {
        let metadata = ObjectMeta { name: Some(namespace.clone()), ..ObjectMeta::default() };
        let object = core::Namespace { metadata, ..core::Namespace::default() };
        let namespaces: Api<core::Namespace> = Api::all(client.clone());
        namespaces.create(&PostParams::default(), &object).await.map_err(Failure::api("create a namespace"))?;
        let case = Self { client, namespace, looks: AtomicU32::new(0) };
        // Pods are refused until the controller manager has made it.
        let accounts: Api<core::ServiceAccount> = case.api();
        eventually(PATIENCE, "the namespace's service account", async || {
            let found = accounts.get_opt("default").await.map_err(Failure::api("look for a service account"))?;
            Ok(found.map_or_else(|| Seen::NotYet("none".to_owned()), |_| Seen::Done(())))
        })
        .await?;
        Ok(case)
    }

    /// A storage class of the cluster.
    ///
    /// # Errors
    /// It never appears.
    pub async fn class(&self, name: &str) -> Result<StorageClass, Failure> {
        let classes: Api<StorageClass> = Api::all(self.client.clone());
        eventually(PATIENCE, &format!("storage class {name}"), async || {
            let found = classes.get_opt(name).await.map_err(Failure::api("look for a storage class"))?;
            Ok(found.map_or_else(|| Seen::NotYet("no such class".to_owned()), Seen::Done))
        })
        .await
    }

    /// Makes a claim.
    ///
    /// # Errors
    /// The API server refuses it.
    pub async fn claim(&self, claim: &Claim) -> Result<(), Failure> {
        let doing = format!("create claim {}", claim.name);
        self.claims().create(&PostParams::default(), &claim.object()?).await.map_err(Failure::api(doing))?;
        Ok(())
    }

    /// Reads a claim.
    ///
    /// # Errors
    /// It is not there.
    pub async fn read_claim(&self, name: &str) -> Result<core::PersistentVolumeClaim, Failure> {
        self.claims().get(name).await.map_err(Failure::api(format!("read claim {name}")))
    }

    /// Deletes a claim.
    ///
    /// # Errors
    /// It is not there.
    pub async fn delete_claim(&self, name: &str) -> Result<(), Failure> {
        let deleted = self.claims().delete(name, &DeleteParams::default()).await;
        deleted.map(drop).map_err(Failure::api(format!("delete claim {name}")))
    }

    /// The volume that a claim is bound to.
    ///
    /// # Errors
    /// It is bound to none.
    pub async fn volume_of(&self, claim: &str) -> Result<core::PersistentVolume, Failure> {
        let name = eventually(PATIENCE, &format!("the volume of claim {claim}"), async || {
            let found = self.read_claim(claim).await?;
            let phase = found.status.and_then(|status| status.phase).unwrap_or_default();
            let volume = found.spec.and_then(|spec| spec.volume_name);
            Ok(volume.filter(|_| phase == "Bound").map_or_else(|| Seen::NotYet(phase), Seen::Done))
        })
        .await?;
        self.volumes().get(&name).await.map_err(Failure::api(format!("read volume {name}")))
    }

    /// A persistent volume, if it is there.
    ///
    /// # Errors
    /// The API server does not answer.
    pub async fn find_volume(&self, name: &str) -> Result<Option<core::PersistentVolume>, Failure> {
        self.volumes().get_opt(name).await.map_err(Failure::api(format!("look for volume {name}")))
    }

    /// Makes a pod and leaves it to its fate.
    ///
    /// # Errors
    /// The API server refuses it.
    pub async fn start(&self, pod: &Pod) -> Result<(), Failure> {
        let doing = format!("create pod {}", pod.name);
        self.pods().create(&PostParams::default(), &pod.object()?).await.map_err(Failure::api(doing))?;
        Ok(())
    }

    /// Makes a pod, waits for its end, removes it, and returns what it found.
    ///
    /// # Errors
    /// The pod does not end, or its check could not be made.
    pub async fn run(&self, pod: &Pod) -> Result<Finding, Failure> {
        self.start(pod).await?;
        let what = format!("the end of pod {}", pod.name);
        let (phase, message) = eventually(PATIENCE, &what, async || {
            let found = self.pods().get(&pod.name).await.map_err(Failure::api("read the pod"))?;
            let status = found.status.unwrap_or_default();
            match status.phase.as_deref() {
                Some(phase @ ("Succeeded" | "Failed")) => Ok(Seen::Done((phase.to_owned(), message(&status)))),
                phase => {
                    let events = self.events(&pod.name).await?;
                    Ok(Seen::NotYet(format!("{}; {}", phase.unwrap_or_default(), events.join("; "))))
                }
            }
        })
        .await?;
        self.remove(&pod.name).await?;
        if phase == "Failed" {
            return Err(Failure::Pod { pod: pod.name.clone(), message });
        }
        serde_json::from_str(&message).map_err(|source| Failure::Report { pod: pod.name.clone(), message, source })
    }

    /// Deletes a pod and waits until it is gone.
    ///
    /// # Errors
    /// It does not go.
    pub async fn remove(&self, pod: &str) -> Result<(), Failure> {
        let deleted = self.pods().delete(pod, &DeleteParams::default()).await;
        deleted.map_err(Failure::api(format!("delete pod {pod}")))?;
        eventually(PATIENCE, &format!("the removal of pod {pod}"), async || {
            let found = self.pods().get_opt(pod).await.map_err(Failure::api("look for the pod"))?;
            Ok(found.map_or(Seen::Done(()), |_| Seen::NotYet("it is there".to_owned())))
        })
        .await
    }

    /// The node's side: directories and projects of all volumes.
    ///
    /// # Errors
    /// As [`Case::run`].
    pub async fn look_at_the_node(&self) -> Result<Volumes, Failure> {
        let name = format!("look-{}", self.looks.fetch_add(1, Ordering::Relaxed));
        let check = Check::Volumes { path: Pod::PATH.into() };
        match self.run(&Pod::of_the_node(&name, VOLUMES, check)).await? {
            Finding::Volumes(volumes) => Ok(volumes),
            other => Err(Failure::Pod { pod: name, message: format!("it made another check: {other:?}") }),
        }
    }

    /// Waits for an event about an object of the namespace, and returns its message.
    ///
    /// # Errors
    /// No event with this reason.
    pub async fn event(&self, object: &str, reason: &str) -> Result<String, Failure> {
        eventually(PATIENCE, &format!("event {reason} about {object}"), async || {
            let events = self.events(object).await?;
            let found = events.iter().find_map(|event| event.strip_prefix(reason)?.strip_prefix(": "));
            Ok(found.map_or_else(|| Seen::NotYet(events.join("; ")), |message| Seen::Done(message.to_owned())))
        })
        .await
    }

    /// `REASON: MESSAGE` of each event about an object.
    async fn events(&self, object: &str) -> Result<Vec<String>, Failure> {
        let about = ListParams::default().fields(&format!("involvedObject.name={object}"));
        let events = self.api::<core::Event>().list(&about).await.map_err(Failure::api("list events"))?;
        let text =
            |event: core::Event| format!("{}: {}", event.reason.unwrap_or_default(), event.message.unwrap_or_default());
        Ok(events.items.into_iter().map(text).collect())
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn claims(&self) -> Api<core::PersistentVolumeClaim> {
        self.api()
    }

    fn pods(&self) -> Api<core::Pod> {
        self.api()
    }

    fn volumes(&self) -> Api<core::PersistentVolume> {
        Api::all(self.client.clone())
    }
}

/// Deletes the namespace of a case; does not wait until it is gone.
pub(crate) async fn end(client: &Client, namespace: &str) -> Result<(), Failure> {
    let namespaces: Api<core::Namespace> = Api::all(client.clone());
    match namespaces.delete(namespace, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        // The case failed before it had one.
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(error) => Err(Failure::api(format!("delete namespace {namespace}"))(error)),
    }
}

/// Waits until the namespaces and all volumes are gone.
pub(crate) async fn all_gone(client: &Client, namespaces: &[String]) -> Result<(), Failure> {
    let spaces: Api<core::Namespace> = Api::all(client.clone());
    let volumes: Api<core::PersistentVolume> = Api::all(client.clone());
    let everything = ListParams::default();
    eventually(PATIENCE, "the removal of all namespaces and volumes of the cases", async || {
        let spaces = spaces.list(&everything).await.map_err(Failure::api("list namespaces"))?;
        let volumes = volumes.list(&everything).await.map_err(Failure::api("list volumes"))?;
        let spaces = spaces.items.iter().map(ResourceExt::name_any).filter(|name| namespaces.contains(name));
        let left: Vec<String> = spaces.chain(volumes.items.iter().map(ResourceExt::name_any)).collect();
        Ok(if left.is_empty() { Seen::Done(()) } else { Seen::NotYet(left.join(" ")) })
    })
    .await
}

/// What the container reported, or what kubelet says about the pod.
fn message(status: &core::PodStatus) -> String {
    let container = status.container_statuses.iter().flatten().next();
    let reported = container.and_then(|container| container.state.as_ref()?.terminated.as_ref()?.message.clone());
    reported.or_else(|| status.message.clone()).unwrap_or_default()
}
