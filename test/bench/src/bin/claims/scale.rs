//! Memory and requests of a provisioner with few and with many PVs, and with many claims of another driver.

use std::env;

use bench::{Progress, ScaleSample, print};
use envtest::{Cluster, PATIENCE, Seen, eventually};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::Failure;
use crate::objects::{NODES_CLASS, claims, each, namespace};
use crate::server::Server;

/// Number of PVs of the node.
const OWN: u32 = 1_000;

/// Number of claims with PVs of another driver.
const OTHERS: u32 = 10_000;

const NODE: &str = "scale";

const FOREIGN: &str = "foreign.example.com";

/// Number of claims that are created and deleted in each state.
const BATCH: u32 = 100;

/// Claims per namespace. The API server limits the events of a namespace, and a wait lists the claims of one namespace.
const PER_NAMESPACE: u32 = 500;

struct Scale {
    client: Client,
    server: Server,
    progress: Progress,
}

/// Measures without PVs, with the PVs of the node, and with additional claims of another driver.
pub(crate) async fn measure(cluster: &Cluster) -> Result<(), Failure> {
    let client = cluster.admin();
    let node = serde_json::from_value(json!({"metadata": {"name": NODE}}))?;
    Api::<Node>::all(client.clone()).create(&PostParams::default(), &node).await?;
    let mut command = Command::new(env::current_exe()?);
    command.args(["serve", "--node", NODE, "--kubeconfig"]).arg(cluster.storage_kubeconfig(NODE)?);
    command.arg("--reclaimer").arg(cluster.admin_kubeconfig());
    let mut scale = Scale { client, server: Server::start(command)?, progress: Progress::default() };
    print(&scale.state(0, 0).await?)?;
    scale.grow(OWN).await?;
    print(&scale.state(OWN, 0).await?)?;
    // The controllers would write to each foreign object several times while it is incomplete.
    cluster.stop_controllers().await?;
    scale.create_foreign(OTHERS).await?;
    cluster.start_controllers().await?;
    scale.wait_for_foreign(OTHERS).await?;
    print(&scale.state(OWN, OTHERS).await?)?;
    scale.server.stop().await
}

impl Scale {
    /// Creates and deletes a batch of claims while the other objects stay.
    async fn state(&mut self, own: u32, foreign: u32) -> Result<ScaleSample, Failure> {
        let state = format!("{own} own PVs, {foreign} foreign claims");
        let what = format!("{state}: memory");
        self.server.quiet(&self.progress, &what).await?;
        let pss = self.server.memory()?;
        let of = format!("batch-{own}-{foreign}");
        self.provision(&of, BATCH, &format!("{state}: new claims")).await?;
        let claims = self.server.take().requests;
        let api = Api::<PersistentVolumeClaim>::namespaced(self.client.clone(), &of);
        each(0..BATCH, |number| {
            let api = api.clone();
            async move {
                api.delete(&format!("claim-{number}"), &DeleteParams::default()).await?;
                Ok(())
            }
        })
        .await?;
        let what = format!("{state}: deleted volumes");
        self.server.until(&self.progress, &what, PATIENCE * 4, |log| log.pvs_deleted, BATCH).await?;
        let log = self.server.take();
        let (deletions, of_pvs) = (log.requests, log.of_pvs.into_values().collect());
        Ok(ScaleSample { own, foreign, pss, batch: BATCH, claims, deletions, of_pvs })
    }

    /// Creates claims in a new namespace and waits until they are bound.
    async fn provision(&mut self, of: &str, number: u32, what: &str) -> Result<(), Failure> {
        namespace(&self.client, of).await?;
        drop(self.server.take());
        claims(&self.client, of, number, NODES_CLASS, NODE).await?;
        self.server.until(&self.progress, what, PATIENCE * 4, |log| log.pvs_created, number).await?;
        self.bound(of, number, what).await?;
        self.server.quiet(&self.progress, what).await
    }

    async fn grow(&mut self, own: u32) -> Result<(), Failure> {
        for (index, number) in parts(own) {
            let what = format!("own PVs, {index} of {own} exist");
            self.provision(&format!("own-{index}"), number, &what).await?;
        }
        Ok(())
    }

    /// Creates pairs of a claim and a PV that are bound to each other.
    async fn create_foreign(&self, foreign: u32) -> Result<(), Failure> {
        for (first, number) in parts(foreign) {
            self.progress.show(&format!("foreign claims: {first} of {foreign}"));
            let namespace_name = format!("foreign-{first}");
            namespace(&self.client, &namespace_name).await?;
            let pvs = Api::<PersistentVolume>::all(self.client.clone());
            let claims = Api::<PersistentVolumeClaim>::namespaced(self.client.clone(), &namespace_name);
            each(0..number, |number| {
                let (pvs, claims, name) = (pvs.clone(), claims.clone(), format!("foreign-{}", first + number));
                async move {
                    let claim = serde_json::from_value(foreign_claim(&name))?;
                    let claim = claims.create(&PostParams::default(), &claim).await?;
                    pvs.create(&PostParams::default(), &serde_json::from_value(foreign_pv(&name, &claim))?).await?;
                    Ok(())
                }
            })
            .await?;
        }
        Ok(())
    }

    async fn wait_for_foreign(&self, foreign: u32) -> Result<(), Failure> {
        for (first, number) in parts(foreign) {
            let what = format!("foreign claims bound, {first} of {foreign}");
            self.bound(&format!("foreign-{first}"), number, &what).await?;
        }
        Ok(())
    }

    async fn bound(&self, of: &str, number: u32, what: &str) -> Result<(), Failure> {
        let api = Api::<PersistentVolumeClaim>::namespaced(self.client.clone(), of);
        let wait = eventually(PATIENCE * 4, what, async || {
            let claims = api.list(&ListParams::default()).await?;
            let phases = claims.iter().filter_map(|claim| claim.status.as_ref()?.phase.as_deref());
            let bound = phases.filter(|phase| *phase == "Bound").count();
            self.progress.show(&format!("{what}: {bound} bound"));
            Ok::<_, kube::Error>(if u32::try_from(bound).is_ok_and(|bound| bound >= number) {
                Seen::Done(())
            } else {
                Seen::NotYet(format!("{bound} of {number} are bound"))
            })
        });
        Ok(wait.await?)
    }
}

/// First number and size of each namespace.
fn parts(number: u32) -> impl Iterator<Item = (u32, u32)> {
    let size = usize::try_from(PER_NAMESPACE).unwrap_or(usize::MAX);
    (0..number).step_by(size).map(move |first| (first, PER_NAMESPACE.min(number - first)))
}

/// A claim with the labels and annotations of a StatefulSet's claims.
fn foreign_claim(name: &str) -> Value {
    let metadata = json!({
        "name": name,
        "labels": {"app.kubernetes.io/name": "database", "app.kubernetes.io/instance": name},
        "annotations": {
            "pv.kubernetes.io/bind-completed": "yes",
            "pv.kubernetes.io/bound-by-controller": "yes",
            "volume.kubernetes.io/storage-provisioner": FOREIGN,
            "volume.kubernetes.io/selected-node": NODE,
        },
    });
    envtest::claim(metadata, "foreign", json!({"volumeName": name}))
}

fn foreign_pv(name: &str, claim: &PersistentVolumeClaim) -> Value {
    json!({
        "metadata": {
            "name": name,
            "annotations": {"pv.kubernetes.io/provisioned-by": FOREIGN},
            "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"],
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "foreign",
            "persistentVolumeReclaimPolicy": "Retain",
            "capacity": {"storage": "1Gi"},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": claim.namespace(),
                "name": claim.name_any(),
                "uid": claim.uid(),
            },
            "csi": {
                "driver": FOREIGN,
                "volumeHandle": name,
                "volumeAttributes": {"storage.kubernetes.io/csiProvisionerIdentity": "1764150000000-1-foreign"},
            },
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]},
            ]}]}},
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_have_all_claims() {
        assert_eq!(parts(1200).collect::<Vec<_>>(), [(0, 500), (500, 500), (1000, 200)]);
        assert_eq!(parts(0).count(), 0);
    }
}
