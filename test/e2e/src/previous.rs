//! A data disk of the previous release. Its first boot is an upgrade; see `previous/README.md`.

use crate::cost::cost;
use crate::setting::path;
use crate::{Case, Failure, PATIENCE, Seen, Server, Setting, eventually, observer};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use launch::{ClusterBoot, ClusterError, ClusterOptions, Event, Nodes, Options, StageState, StepError};
use localstorage::Part;
use serde_json::json;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use tokio::sync::Notify;

/// Namespace of all objects in `previous/objects.yaml`.
const NAMESPACE: &str = "previous";
const NOTE: &str = "written-by-the-previous-release";
const SIZE: u64 = 16 << 20;
/// Name and value of the Secret.
const SECRET: [&str; 2] = ["word", "in-plain-text"];
/// Size limit of XFS metadata in the volume.
const METADATA: u64 = 1 << 20;
/// The first project ID that no volume gets. After an upgrade, parts of the disk that every pod can read have lower
/// IDs.
const FIRST_HIDDEN: u32 = 1 << 31;

impl Setting {
    /// Unpacks a copy of the disk from the file in `GRANARY_PREVIOUS`.
    pub fn previous_disk(&self) -> Result<PathBuf, StepError> {
        let packed = path("GRANARY_PREVIOUS")?;
        let disk = self.file("previous.img");
        // Most of the disk is zeros, which become holes. `-f` reads through the symbolic links of a sandbox.
        let unpacked = Command::new("zstd").args(["-dqf", "--sparse", "-o"]).arg(&disk).arg(&packed).status();
        match unpacked {
            Ok(status) if status.success() => Ok(disk),
            Ok(status) => {
                Err(StepError::of(format!("unpack {}", packed.display()))(format!("zstd ended with {status}")))
            }
            Err(source) => Err(StepError::of("run zstd")(source)),
        }
    }
}

/// Kernel argument that leaves out BPF-LSM and keeps all other security modules that the node uses.
const WITHOUT_BPF: &str = "lsm=landlock,lockdown,yama";

/// Boots the node with a kernel that cannot restrict pods. Cuts the power after the second report of this failure, when
/// the API server is ready. By then, the parts of the disk have new projects, new keys and certificates are stored and
/// used, and no container runtime has started.
pub async fn cut_without_guard(options: &Options) -> Result<(), ClusterError> {
    let options = Options { kernel_arguments: WITHOUT_BPF.to_owned(), ..options.clone() };
    let failed = |stages: &[Stage]| stages.iter().filter(|stage| **stage == guard(StageState::Failed)).count();
    let api_server = ("kube-apiserver".to_owned(), StageState::Ready);
    let stages = cut_when(&options, |stages| failed(stages) >= 2 && stages.contains(&api_server)).await?;
    assert!(!stages.contains(&guard(StageState::Ready)), "{stages:?}");
    let runs = |name: &str| stages.iter().any(|(stage, _)| stage == name);
    assert!(!runs("containerd") && !runs("kubelet"), "{stages:?}");
    let console = fs::read(options.logs.join("console.log")).unwrap_or_default();
    let console = String::from_utf8_lossy(&console);
    assert!(console.contains("BPF is not an active LSM"), "the node does not report why it is not Ready: {console}");
    Ok(())
}

type Stage = (String, StageState);

fn guard(state: StageState) -> Stage {
    ("pod-guard".to_owned(), state)
}

/// Boots a single node and cuts its power after it has announced these stages. Returns the announced stages.
async fn cut_when(options: &Options, reached: impl Fn(&[Stage]) -> bool) -> Result<Vec<Stage>, ClusterError> {
    let (stages, end) = (RefCell::new(Vec::new()), Notify::new());
    let print = |_: &str, event: &Event| {
        println!("before the power cut: {event}");
        if let Event::Stage { name, state } = event {
            stages.borrow_mut().push((name.clone(), *state));
            if reached(&stages.borrow()) {
                end.notify_one();
            }
        }
    };
    cost("boots");
    let mut booting = ClusterBoot::start(&ClusterOptions::new(options.clone(), Nodes::ONE), print).await?;
    tokio::select! {
        ready = booting.until_ready(print) => {
            ready?;
            panic!("the node is Ready: {:?}", stages.borrow());
        }
        () = end.notified() => {}
    }
    drop(booting);
    Ok(stages.take())
}

/// The pod on the disk, with `/files` and `/dev/device`. Waits until it responds.
pub async fn keeper(client: &Client) -> Result<Server, Failure> {
    Case::resume(client.clone(), NAMESPACE.to_owned()).find("keeper").await
}

/// Verifies that the data of the disk are preserved and that everything else is like on a new disk.
pub async fn is_upgraded(client: &Client) -> Result<(), Failure> {
    let case = Case::resume(client.clone(), NAMESPACE.to_owned());
    let (keeper, ()) = tokio::try_join!(keeper(client), observer::start(client))?;
    for place in ["/files/note", "/dev/device"] {
        assert_eq!(keeper.read(place).await?, NOTE, "{place}");
    }
    let fill = keeper.fill("/files", false).await?;
    assert_eq!((fill.errno.as_str(), fill.before.size), ("ENOSPC", SIZE));
    assert!((SIZE - METADATA..=SIZE).contains(&fill.written), "{} of {SIZE} bytes could be written", fill.written);
    // The restrictions of pods are active, and all Secrets have been rewritten.
    case.all_services_are_ready().await?;
    is_encrypted(&case).await?;
    eventually(PATIENCE, "the projects of an upgraded disk", async || {
        let fault = fault_of_projects(&case).await?;
        Ok(fault.map_or(Seen::Done(()), Seen::NotYet))
    })
    .await
}

/// Verifies that the stored Secret is encrypted. The API server rewrites an unchanged object only if its stored form
/// differs from that of the first provider, `secretbox`.
async fn is_encrypted(case: &Case) -> Result<(), Failure> {
    let [name, value] = SECRET;
    let secrets: Api<Secret> = case.api();
    let before = secrets.get(name).await.map_err(Failure::api("read a Secret"))?;
    let data = before.data.clone().unwrap_or_default();
    assert_eq!(data.get(name).map(|found| found.0.as_slice()), Some(value.as_bytes()));
    let nothing = Patch::Merge(json!({}));
    let patched = secrets.patch_metadata(name, &PatchParams::default(), &nothing).await;
    let after = patched.map_err(Failure::api("write a Secret again"))?;
    assert_eq!(after.resource_version(), before.resource_version(), "the Secret was not stored as configured");
    let metrics = case.get("/metrics").await?;
    let encrypted = metrics.lines().find(|line| {
        line.starts_with("apiserver_storage_transformation_operations_total{")
            && line.contains("transformation_type=\"to_storage\"")
            && line.contains("secretbox")
    });
    assert!(encrypted.is_some(), "the API server has encrypted nothing: {metrics}");
    Ok(())
}

/// Verifies that the parts of the disk have projects with limits, besides those of the volumes, and that the former
/// project is removed.
async fn fault_of_projects(case: &Case) -> Result<Option<String>, Failure> {
    let node = case.look_at_the_node().await?;
    let of_volumes: BTreeSet<u32> = node.entries.iter().filter_map(|entry| entry.project).collect();
    let of_parts: Vec<_> = node.projects.iter().filter(|project| !of_volumes.contains(&project.id)).collect();
    let visible = of_parts.iter().filter(|project| project.id < FIRST_HIDDEN).count();
    let is_limited = of_parts.iter().all(|project| project.bytes.is_some() && project.inodes.is_some());
    let is_right = of_parts.len() == Part::ALL.len() && visible == 2 && is_limited;
    Ok((!is_right).then(|| format!("{of_parts:?}")))
}
