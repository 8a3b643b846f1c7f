//! Serves bursts of claims in several ways. For each burst, the program creates the claims first, then starts the
//! provisioner, and then waits until every claim has a PV.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Instant;

use bench::{Binder, BurstSample, DirectoryLimit, Progress, Way, children_cpu_ms, print};
use clap::Args;
use envtest::{Cluster, Identity, PATIENCE};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use kube::api::PostParams;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::process::Command;
use tokio::time::timeout;

use crate::Failure;
use crate::directories::Directories;
use crate::objects::{LIBRARY, LIBRARY_CLASS, NODES_CLASS, claims, delete_volumes, namespace};
use crate::server::Server;

/// Serves many claims that exist when the provisioner starts.
#[derive(Debug, Args)]
pub(crate) struct Sizes {
    /// Number of runs; each run measures every way.
    runs: u32,
    /// Number of claims at once.
    claims: u32,
}

/// Maximum number of claims for the library with client-go's default limit. The other ways serve all claims.
const OF_LIMITED_LIBRARY: u32 = 50;

/// Claims of a first burst that is not counted. The API server compiles its admission policies at their first use.
const WARM_UP: u32 = 20;

/// Programs of the control plane, which run beside every provisioner. Any other child is the provisioner or the program
/// that it starts for each volume.
const CONTROL_PLANE: [&str; 3] = ["etcd", "kube-apiserver", "kube-controller-manager"];

struct Task<'a> {
    cluster: &'a Cluster,
    directories: &'a Directories,
    way: Way,
    binder: Binder,
    run: u32,
    claims: u32,
    progress: &'a Progress,
    what: &'a str,
}

pub(crate) async fn measure(cluster: &Cluster, sizes: &Sizes) -> Result<(), Failure> {
    let progress = &Progress::default();
    let directories = &Directories::new(&program("BENCH_XFSPROGS")?)?;
    for way in [Way::Ours, Way::Library] {
        let claims = sizes.claims.min(WARM_UP);
        let (binder, run, what) = (Binder::Running, 0, "first claims");
        Task { cluster, directories, way, binder, run, claims, progress, what }.measure().await?;
    }
    // Unbound claims would be work for the controllers during the next burst.
    for binder in [Binder::Running, Binder::Stopped] {
        if binder == Binder::Stopped {
            cluster.stop_controllers().await?;
        }
        for run in 1..=sizes.runs {
            for way in in_turn(binder, run) {
                let is_limited = way == Way::LimitedLibrary;
                let claims = if is_limited { sizes.claims.min(OF_LIMITED_LIBRARY) } else { sizes.claims };
                let what = &format!("{}, run {run} of {}", way.title(), sizes.runs);
                print(&Task { cluster, directories, way, binder, run, claims, progress, what }.measure().await?)?;
            }
        }
    }
    Ok(())
}

/// Returns all ways, beginning with another way in each run, because the programs of the control plane keep data of the
/// ways before it.
fn in_turn(binder: Binder, run: u32) -> impl Iterator<Item = Way> {
    let ways = binder.ways();
    let first = usize::try_from(run).unwrap_or_default() % ways.len();
    ways.iter().cycle().skip(first).take(ways.len()).copied()
}

impl Task<'_> {
    async fn measure(&self) -> Result<BurstSample, Failure> {
        let Self { cluster, directories, way, binder, run, claims: number, progress, what } = *self;
        // Every burst uses its own node and namespace, so that the provisioner ignores the objects of other runs.
        let word = |value: serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let [way_name, binder_name] = [serde_json::to_value(way)?, serde_json::to_value(binder)?].map(word);
        let name = format!("{way_name}-{binder_name}-{run}");
        let client = cluster.admin();
        let node = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        Api::<Node>::all(client.clone()).create(&PostParams::default(), &node).await?;
        namespace(&client, &name).await?;
        let is_library = matches!(way, Way::Library | Way::LimitedLibrary);
        progress.show(&format!("{what}: creating {number} claims"));
        claims(&client, &name, number, if is_library { LIBRARY_CLASS } else { NODES_CLASS }, &name).await?;

        let parent = tempfile::tempdir_in(directories.path())?;
        let (mut command, kubeconfig) = if is_library {
            let mut command = Command::new(program("BENCH_LIBRARY")?);
            command.args(["--name", LIBRARY]);
            if way == Way::LimitedLibrary {
                command.arg("--limited");
            }
            (command, cluster.credentials().kubeconfig(Identity::Admin))
        } else {
            let mut command = Command::new(env::current_exe()?);
            command.args(["serve", "--node", &name]);
            if way == Way::OneWorker {
                command.args(["--parallel", "1"]);
            }
            (command, cluster.storage_kubeconfig(&name)?)
        };
        command.arg("--kubeconfig").arg(kubeconfig);
        command.arg("--directories").arg(parent.path()).arg("--create").arg(program("BENCH_DIRECTORY")?);
        // The provisioners pass their environment to the program.
        if directories.without_quota.is_none() {
            command.env(DirectoryLimit::VARIABLE, "1");
        }
        let before = children_cpu_ms();
        let mut server = Server::start(command)?;
        let served = server.until(progress, what, PATIENCE * 4, |log| log.pvs_created, number);
        let binding = async {
            Ok::<_, Failure>(match binder {
                Binder::Stopped => None,
                Binder::Running => Some(last_bound(&client, &name, number).await?),
            })
        };
        let ((), last_bound) = tokio::try_join!(served, binding)?;
        let (log, cpu) = (server.take(), used(&before, children_cpu_ms()));
        server.stop().await?;
        progress.show(&format!("{what}: deleting {number} claims and PVs"));
        delete_volumes(&client, &name).await?;
        let (times, requests) = (log.times(last_bound), log.requests);
        let without_quota = directories.without_quota.clone();
        Ok(BurstSample { way, binder, run, claims: number, requests, flushes: 0, times, cpu, without_quota })
    }
}

/// Waits until the wanted number of claims is bound. Returns the time at which the last one became bound.
async fn last_bound(client: &Client, namespace: &str, wanted: u32) -> Result<Instant, Failure> {
    let api = Api::<PersistentVolumeClaim>::namespaced(client.clone(), namespace);
    let mut changes = pin!(watcher(api, watcher::Config::default()).default_backoff().applied_objects());
    let mut bound = BTreeSet::new();
    let all = async {
        while let Some(change) = changes.next().await {
            // The watch continues after a failure.
            let Ok(claim) = change else { continue };
            if claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound") {
                bound.insert(claim.name_any());
            }
            if u32::try_from(bound.len()).is_ok_and(|bound| bound >= wanted) {
                return Some(Instant::now());
            }
        }
        None
    };
    let end = timeout(PATIENCE * 4, all).await.ok().flatten();
    Ok(end.ok_or_else(|| format!("not all of the {wanted} claims in {namespace} were bound"))?)
}

/// CPU time since `before`, when the provisioner did not run yet.
fn used(before: &BTreeMap<String, u64>, now: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for (program, cpu) in now {
        let since = cpu.saturating_sub(before.get(&program).copied().unwrap_or_default());
        let is_other = CONTROL_PLANE.contains(&program.as_str());
        *all.entry(if is_other { program } else { "provisioner".to_owned() }).or_default() += since;
    }
    all
}

/// Path of a program, from a variable that the benchmark's target sets.
fn program(variable: &str) -> Result<PathBuf, Failure> {
    let path =
        env::var_os(variable).ok_or_else(|| format!("{variable} is not set; run the benchmark by its target"))?;
    Ok(std::path::absolute(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_begins_with_another_way() {
        let first = |run| in_turn(Binder::Running, run).collect::<Vec<_>>();
        assert_eq!([first(1), first(2)], [[Way::Library, Way::Ours], [Way::Ours, Way::Library]]);
        assert_eq!(in_turn(Binder::Stopped, 3).count(), Binder::Stopped.ways().len());
    }

    #[test]
    fn what_is_not_of_the_control_plane_is_the_provisioner() {
        let all = |programs: &[(&str, u64)]| -> BTreeMap<String, u64> {
            programs.iter().map(|&(name, cpu)| (name.to_owned(), cpu)).collect()
        };
        let found = used(&all(&[("etcd", 500)]), all(&[("etcd", 750), ("claims", 30), ("other", 20)]));
        assert_eq!(found, all(&[("etcd", 250), ("provisioner", 50)]));
    }
}
