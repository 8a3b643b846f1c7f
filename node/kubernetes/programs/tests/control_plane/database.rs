//! A full database of etcd.

use std::sync::Arc;

use envtest::{Cluster, Failure, PATIENCE, Seen, Suite, accepted, create, eventually, merge, start};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::DeleteParams;
use programs::database;
use serde_json::json;
use units::Bytes;

/// Size of etcd's directory. A quarter, 8 MiB, is the limit of the database. An API server's own objects take some MiB.
const DIRECTORY: Bytes = Bytes::new(32 << 20);

/// Size of one write in bytes. A ConfigMap has at most 1 MiB.
const WRITE: usize = 900 << 10;

/// Number of writes that fills the database in any case.
const WRITES: usize = 64;

pub fn cases(suite: Suite) -> Suite {
    suite.case("a_full_database_starts_again_and_recovers", a_full_database_starts_again_and_recovers)
}

fn is_full(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.message.contains("database space exceeded"))
}

async fn write(maps: &Api<ConfigMap>, number: usize) -> Result<(), kube::Error> {
    let value = format!("{number}{}", "x".repeat(WRITE));
    merge(maps, "filler", json!({"data": {"value": value}})).await.map(drop)
}

/// Fills the database with revisions of one object.
async fn fill(maps: &Api<ConfigMap>) -> Result<(), Failure> {
    for number in 0..WRITES {
        match write(maps, number).await {
            Err(error) if is_full(&error) => return Ok(()),
            written => written?,
        }
    }
    Err(format!("no write was rejected in {WRITES}").into())
}

/// Regression: etcd with the alarm did not become ready, so that the API server was not started, and only a pod could
/// reach etcd to disarm the alarm.
async fn a_full_database_starts_again_and_recovers(cluster: Arc<Cluster>) -> Result<(), Failure> {
    cluster.stop_controllers().await?;
    cluster.stop_api_server().await;
    let mut config = cluster.config().clone();
    config.disk.etcd = DIRECTORY;
    config.paths.etcd.set_file_name("small-etcd");
    cluster.restart_etcd(&config).await?;
    cluster.start_api_server().await?;

    let maps = Api::<ConfigMap>::default_namespaced(cluster.admin());
    for name in ["filler", "deleted"] {
        // The API server creates the namespace after it is ready.
        accepted("a ConfigMap", async || create(&maps, json!({"metadata": {"name": name}})).await).await?;
    }
    fill(&maps).await?;
    maps.delete("deleted", &DeleteParams::default()).await?;
    assert!(maps.get_opt("deleted").await?.is_none(), "a deletion needs no space");

    // The restart returns when etcd is ready.
    cluster.restart_etcd(&config).await?;
    eventually(PATIENCE, "the alarm after a restart", async || {
        Ok::<_, kube::Error>(match write(&maps, 0).await {
            Err(error) if is_full(&error) => Seen::Done(()),
            other => Seen::NotYet(format!("{other:?}")),
        })
    })
    .await?;

    let _recovery = start("database", config.paths.clone(), database::recover).await?;
    accepted("a write after the recovery", async || write(&maps, 1).await).await
}
