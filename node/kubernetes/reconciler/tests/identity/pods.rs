//! Pod network that the cluster assigns to a node.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use envtest::{Cluster, Failure, PATIENCE, Seen, eventually, remove};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use programs::{Config, Paths};
use serde_json::{Value, json};
use supervisor::{Settings, Supervisor};

use crate::Nodes;

pub(crate) async fn pods_have_addresses_of_the_assigned_network(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let admin = Api::<Node>::all(nodes.admin);
    let scratch = tempfile::tempdir()?;
    // Replace nft, so that the kernel is not changed.
    symlink("/bin/true", scratch.path().join("nft"))?;
    let paths = Paths {
        programs: scratch.path().to_owned(),
        ephemeral: scratch.path().to_owned(),
        ..cluster.config().paths.clone()
    };
    let config = Config { node: "one".to_owned(), paths, ..cluster.config().clone() };
    let own = nodes.own;
    let network =
        Supervisor::start("pods", Settings::default(), move |cx| programs::pods::run(cx, own.clone(), config.clone()));

    // The Node object does not exist yet.
    assert_eq!(subnet(scratch.path())?, Value::Null);
    create(&admin).await?;
    network.handle().healthy().await?;
    let first = subnet(scratch.path())?;
    assert_eq!(first, json!(admin.get("one").await?.spec.and_then(|spec| spec.pod_cidr)));
    assert!(first.as_str().is_some_and(|range| range.starts_with("10.244.") && range.ends_with(".0/24")), "{first}");

    admin.delete("one", &DeleteParams::default()).await?;
    create(&admin).await?;
    eventually(PATIENCE, "the network of the new Node", async || {
        let given = admin.get("one").await?.spec.and_then(|spec| spec.pod_cidr);
        let used = subnet(scratch.path())?;
        Ok::<_, LookError>(if used != first && used == json!(given) {
            Seen::Done(())
        } else {
            Seen::NotYet(format!("{used} of {given:?}"))
        })
    })
    .await?;
    network.stop(Duration::from_secs(20)).await?;
    remove(&admin, "one").await
}

#[derive(Debug, thiserror::Error)]
enum LookError {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error(transparent)]
    File(#[from] std::io::Error),
}

async fn create(admin: &Api<Node>) -> Result<(), Failure> {
    admin.create(&PostParams::default(), &serde_json::from_value(json!({"metadata": {"name": "one"}}))?).await?;
    Ok(())
}

/// The subnet in containerd's network configuration; `null` without a configuration.
fn subnet(ephemeral: &Path) -> Result<Value, std::io::Error> {
    match fs::read(ephemeral.join("cni/net.d/10-pods.conflist")) {
        Ok(text) => {
            let conflist: Value = serde_json::from_slice(&text)?;
            Ok(conflist["plugins"][0]["ipam"]["ranges"][0][0]["subnet"].clone())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Value::Null),
        Err(error) => Err(error),
    }
}
