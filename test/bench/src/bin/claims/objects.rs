//! Objects that the benchmarks put into the cluster.

use std::fmt::Debug;
use std::time::Duration;

use cluster::DRIVER_NAME;
use envtest::{Cluster, merge};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use supervisor::Supervisor;

use crate::Failure;

/// Name of the library's provisioner and of its storage class.
pub(crate) const LIBRARY: &str = "library.example.com";

/// Number of parallel requests of the benchmark.
const PARALLEL: usize = 16;

const STOP: Duration = Duration::from_secs(20);

/// Creates the storage classes and the nodes' role.
pub(crate) async fn prepare(cluster: &Cluster) -> Result<(), Failure> {
    let client = cluster.admin();
    let reconciler =
        Supervisor::start("reconciler", supervisor::Settings::default(), move |cx| reconciler::run(cx, client.clone()));
    reconciler.handle().healthy().await?;
    reconciler.stop(STOP).await?;
    let class = json!({
        "metadata": {"name": LIBRARY},
        "provisioner": LIBRARY,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer",
    });
    let classes = Api::<StorageClass>::all(cluster.admin());
    classes.create(&PostParams::default(), &serde_json::from_value(class)?).await?;
    Ok(())
}

pub(crate) async fn namespace(client: &Client, name: &str) -> Result<(), Failure> {
    let namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await?;
    Ok(())
}

/// Calls `act` for each number, with several calls in parallel.
pub(crate) async fn each<F: Future<Output = Result<(), Failure>>>(
    numbers: std::ops::Range<u32>,
    act: impl Fn(u32) -> F,
) -> Result<(), Failure> {
    stream::iter(numbers).map(act).buffer_unordered(PARALLEL).try_collect().await
}

/// Creates claims in the state in which the scheduler leaves them for a pod on `node`.
pub(crate) async fn claims(
    client: &Client,
    namespace: &str,
    number: u32,
    class: (&str, &str),
    node: &str,
) -> Result<(), Failure> {
    let api = Api::<PersistentVolumeClaim>::namespaced(client.clone(), namespace);
    each(0..number, |number| {
        let api = api.clone();
        async move {
            let claim = serde_json::from_value(claim(number, class, node))?;
            api.create(&PostParams::default(), &claim).await?;
            Ok(())
        }
    })
    .await
}

/// Deletes the claims of a namespace and all PVs. Their provisioner has ended, so this function removes the finalizers.
pub(crate) async fn delete_volumes(client: &Client, namespace: &str) -> Result<(), Failure> {
    delete_all(&Api::<PersistentVolumeClaim>::namespaced(client.clone(), namespace)).await?;
    delete_all(&Api::<PersistentVolume>::all(client.clone())).await
}

async fn delete_all<K>(objects: &Api<K>) -> Result<(), Failure>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let names: Vec<_> = objects.list(&ListParams::default()).await?.iter().map(ResourceExt::name_any).collect();
    stream::iter(names)
        .map(|name| async move {
            objects.delete(&name, &DeleteParams::default()).await?;
            match merge(objects, &name, json!({"metadata": {"finalizers": null}})).await {
                // kube-controller-manager has removed the last finalizer.
                Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
                patched => patched.map(drop).map_err(Failure::from),
            }
        })
        .buffer_unordered(PARALLEL)
        .try_collect()
        .await
}

pub(crate) const NODES_CLASS: (&str, &str) = (reconciler::CLASS, DRIVER_NAME);
pub(crate) const LIBRARY_CLASS: (&str, &str) = (LIBRARY, LIBRARY);

fn claim(number: u32, (class, provisioner): (&str, &str), node: &str) -> Value {
    let annotations = json!({
        "volume.kubernetes.io/selected-node": node,
        "volume.kubernetes.io/storage-provisioner": provisioner,
    });
    let metadata = json!({"name": format!("claim-{number}"), "annotations": annotations});
    envtest::claim(metadata, class, json!({"resources": {"requests": {"storage": "1Mi"}}}))
}
