//! Bursts in several ways: claims that wait for a node, then the provisioner's process, then as many PVs.

use std::env;
use std::path::PathBuf;

use bench::{BurstSample, Progress, Way, print};
use clap::Args;
use envtest::{Cluster, Identity, PATIENCE};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;
use tempfile::TempDir;
use tokio::process::Command;

use crate::Failure;
use crate::objects::{LIBRARY, LIBRARY_CLASS, NODES_CLASS, claims, namespace};
use crate::server::Server;

/// Serves many claims that exist when the provisioner starts.
#[derive(Debug, Args)]
pub(crate) struct Sizes {
    /// How often each way is measured.
    runs: u32,
    /// How many claims there are at once.
    claims: u32,
}

/// Claims for the library with client-go's default limit, at most as many as for the others.
const OF_LIMITED_LIBRARY: u32 = 50;

pub(crate) async fn measure(cluster: &Cluster, sizes: &Sizes) -> Result<(), Failure> {
    let progress = Progress::default();
    for run in 1..=sizes.runs {
        for way in Way::SERVERS {
            let is_limited = way == Way::LimitedLibrary;
            let claims = if is_limited { sizes.claims.min(OF_LIMITED_LIBRARY) } else { sizes.claims };
            let what = format!("{}, run {run} of {}", way.title(), sizes.runs);
            print(&one(cluster, way, run, claims, (&progress, &what)).await?)?;
        }
    }
    Ok(())
}

async fn one(
    cluster: &Cluster,
    way: Way,
    run: u32,
    number: u32,
    (progress, what): (&Progress, &str),
) -> Result<BurstSample, Failure> {
    // A node and a namespace of its own: a provisioner ignores what other runs left.
    let name = format!("{}-{run}", serde_json::to_value(way)?.as_str().unwrap_or_default());
    let client = cluster.admin();
    let node = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    Api::<Node>::all(client.clone()).create(&PostParams::default(), &node).await?;
    namespace(&client, &name).await?;
    let is_library = matches!(way, Way::Library | Way::LimitedLibrary);
    progress.show(&format!("{what}: creating {number} claims"));
    claims(&client, &name, number, if is_library { LIBRARY_CLASS } else { NODES_CLASS }, &name).await?;

    let directories = TempDir::with_prefix("bench-")?;
    let kubeconfig = cluster.credentials().kubeconfig(Identity::Admin);
    let mut command = if is_library {
        let mut command = Command::new(program("BENCH_LIBRARY")?);
        command.args(["--name", LIBRARY]);
        if way == Way::LimitedLibrary {
            command.arg("--limited");
        }
        command
    } else {
        let mut command = Command::new(env::current_exe()?);
        command.args(["serve", "--node", &name]);
        if way == Way::OneWorker {
            command.args(["--parallel", "1"]);
        }
        command
    };
    command.arg("--kubeconfig").arg(kubeconfig);
    command.arg("--directories").arg(directories.path()).arg("--create").arg(program("BENCH_DIRECTORY")?);
    let mut server = Server::start(command)?;
    server.until(progress, what, PATIENCE * 4, |log| log.pvs_created, number).await?;
    let log = server.take();
    server.stop().await?;
    let milliseconds = log.milliseconds();
    Ok(BurstSample { way, run, claims: number, requests: log.requests, flushes: 0, milliseconds })
}

/// The target of the benchmark sets the variable.
fn program(variable: &str) -> Result<PathBuf, Failure> {
    let path =
        env::var_os(variable).ok_or_else(|| format!("{variable} is not set; run the benchmark by its target"))?;
    Ok(std::path::absolute(path)?)
}
