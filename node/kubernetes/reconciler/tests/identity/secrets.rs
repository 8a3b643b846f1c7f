//! Secrets that a PV refers to.

use std::sync::Arc;

use envtest::{Cluster, Failure, PATIENCE, Seen, eventually, remove};
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Error, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::storage::retained;
use crate::{Nodes, certificate, denied, forbidden};

const NODE: &str = "intruder";
const NAMESPACE: &str = "victim";
const TREASURE: &str = "treasure";

fn read<T: DeserializeOwned>(object: Value) -> Result<T, serde_json::Error> {
    serde_json::from_value(object)
}

/// The Node authorizer lets a kubelet read the Secrets of PVs whose claims its pods use.
pub(crate) async fn a_node_reads_no_secret_by_a_pv_of_its_own(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let admin = Nodes::of(&cluster).await?.admin;
    let (post, dry) = (PostParams::default(), PostParams { dry_run: true, ..PostParams::default() });
    let (nodes, volumes) = (Api::<Node>::all(admin.clone()), Api::<PersistentVolume>::all(admin.clone()));
    let namespaces = Api::<Namespace>::all(admin.clone());
    let pods = Api::<Pod>::default_namespaced(admin.clone());
    let claims = Api::<PersistentVolumeClaim>::default_namespaced(admin.clone());
    namespaces.create(&post, &read(json!({"metadata": {"name": NAMESPACE}}))?).await?;
    let treasure = read(json!({"metadata": {"name": TREASURE}, "stringData": {"password": "secret"}}))?;
    Api::<Secret>::namespaced(admin, NAMESPACE).create(&post, &treasure).await?;
    nodes.create(&post, &read(json!({"metadata": {"name": NODE}}))?).await?;
    let claim = envtest::claim(json!({"name": "lure"}), "none", json!({}));
    let claim: PersistentVolumeClaim = claims.create(&post, &read(claim)?).await?;
    let pod = json!({
        "metadata": {"name": "lure"},
        "spec": {
            "nodeName": NODE,
            "containers": [{"name": "c", "image": "granary.invalid/none"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "lure"}}],
        },
    });
    pods.create(&post, &read(pod)?).await?;

    let honest = serde_json::to_value(retained(&claim.uid().unwrap_or_default(), NODE))?;
    let mut attack = honest.clone();
    attack["spec"]["claimRef"]["name"] = "lure".into();
    attack["spec"]["csi"]["nodePublishSecretRef"] = json!({"namespace": NAMESPACE, "name": TREASURE});
    let attack: PersistentVolume = read(attack)?;
    let own = Api::<PersistentVolume>::all(cluster.storage_of(NODE).await?);
    own.create(&dry, &read(honest)?).await?;
    denied(own.create(&post, &attack).await, "without spec.csi.nodePublishSecretRef");
    let secrets = Api::<Secret>::namespaced(certificate::kubelet(&cluster, NODE).await?, NAMESPACE);
    forbidden(secrets.get(TREASURE).await);

    // An administrator can create the PV, which lets the kubelet read the Secret.
    let created = volumes.create(&post, &attack).await?;
    let read = eventually(PATIENCE, "the Secret", async || match secrets.get(TREASURE).await {
        Ok(secret) => Ok(Seen::Done(secret)),
        Err(Error::Api(status)) if status.is_forbidden() => Ok(Seen::NotYet(status.message)),
        Err(error) => Err(error),
    });
    assert_eq!(read.await?.name_any(), TREASURE);

    pods.delete("lure", &DeleteParams::default().grace_period(0)).await?;
    claims.delete("lure", &DeleteParams::default()).await?;
    volumes.delete(&created.name_any(), &DeleteParams::default()).await?;
    nodes.delete(NODE, &DeleteParams::default()).await?;
    remove(&namespaces, NAMESPACE).await
}
