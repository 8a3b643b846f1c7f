//! Boots the image, starts a pod with a volume, requests many volumes, and reads the node's metrics.

use std::error::Error;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bench::{BootSample, Part, Stage, children_cpu_ms};
use envtest::{Seen, eventually};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Pod, ServiceAccount};
use kube::api::{ListParams, PostParams};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client};
use launch::{Data, Event, Image, Node, Options, SHUTDOWN_LIMIT, StageState};
use serde_json::json;

const NODE: &str = "granary";
const NAMESPACE: &str = "bench";
/// Number of parallel requests. The API server of an emulated node uses 50 ms of CPU time for each request.
const HANDS: usize = 4;
/// Deadline of one wait. In emulation, a pod takes seconds and a thousand claims take several minutes.
const PATIENCE: Duration = Duration::from_secs(1800);
const MEMORY: &str = "granary_memory_pss_bytes";

/// Name and path of a file of the image.
pub(crate) type PartFile = (String, PathBuf);

/// Parses `NAME=FILE`.
pub(crate) fn part_file(text: &str) -> Result<PartFile, &'static str> {
    let (name, path) = text.split_once('=').ok_or("it is not NAME=FILE")?;
    Ok((name.to_owned(), path.into()))
}

/// Error that is only printed.
pub(crate) type ImageError = Box<dyn Error + Send + Sync>;

/// Allocated bytes of the files. Holes of a disk image do not count.
pub(crate) fn weigh(files: &[PartFile]) -> Result<Vec<Part>, ImageError> {
    let part = |(name, path): &PartFile| {
        let data = fs::metadata(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        // `st_blocks` counts units of 512 bytes (stat(2)).
        let bytes = data.len().min(data.blocks() * 512);
        Ok(Part { name: name.clone(), bytes })
    };
    files.iter().map(part).collect()
}

/// Boots the image once and creates the volumes. Also returns the accelerator that executed the guest. `show` gets each
/// step, since the steps take minutes.
pub(crate) async fn boot(image: Image, volumes: u32, show: impl Fn(&str)) -> Result<(String, BootSample), ImageError> {
    let directory = tempfile::tempdir()?;
    let mut options = Options::new(image, directory.path());
    options.data = Data::Temporary;
    let (mut sample, mut accelerator, mut start) = (BootSample::default(), String::new(), Instant::now());
    let node = Node::boot(&options, |event| match event {
        Event::Started { accelerator: kind, .. } => (accelerator, start) = (kind.to_string(), Instant::now()),
        Event::Stage { name, state: StageState::Ready, .. } => {
            show(&format!("{name} is ready"));
            sample.stages.push(stage(name, start));
        }
        _ => {}
    })
    .await?;
    sample.stages.push(stage("the Node is Ready", start));
    show("waiting for the controllers");
    let client = node.client();
    // Wait for the first object of kube-controller-manager, because the Node may be Ready before this object exists.
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    await_condition(accounts, "default", conditions::is_created()).await?;
    sample.stages.push(stage("the Node is Ready, and the controllers run", start));
    sample.memory.insert(0, memory(&client).await?);
    show("starting a pod with a volume");
    first_pod(&client).await?;
    sample.stages.push(stage("a pod runs with a volume", start));
    sample.memory.insert(1, memory(&client).await?);
    if let Some(more) = volumes.checked_sub(1).filter(|more| *more > 0) {
        claims(&client, more, &show).await?;
        sample.memory.insert(volumes, memory(&client).await?);
    }
    show("shutting down");
    node.shut_down(SHUTDOWN_LIMIT).await?;
    Ok((accelerator, sample))
}

fn stage(name: &str, start: Instant) -> Stage {
    let at_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
    // QEMU is the only child of this program during the boot.
    Stage { name: name.to_owned(), at_ms, cpu_ms: children_cpu_ms().into_values().sum() }
}

/// Creates a pod that only waits, with a volume.
async fn first_pod(client: &Client) -> Result<(), ImageError> {
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}}))?;
    Api::all(client.clone()).create(&PostParams::default(), &namespace).await?;
    let claims = Api::namespaced(client.clone(), NAMESPACE);
    claims.create(&PostParams::default(), &claim("first", None)?).await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    await_condition(accounts, "default", conditions::is_created()).await?;
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "first"},
        "spec": {
            "containers": [{
                "name": "pause",
                "image": "granary.invalid/pause:1",
                "imagePullPolicy": "Never",
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "first"}}],
        },
    }))?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    pods.create(&PostParams::default(), &pod).await?;
    await_condition(pods, "first", conditions::is_pod_running()).await?;
    Ok(())
}

/// Creates more volumes, as if pods on this node waited for them.
async fn claims(client: &Client, volumes: u32, show: &impl Fn(&str)) -> Result<(), ImageError> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), NAMESPACE);
    show(&format!("creating {volumes} claims"));
    stream::iter(0..volumes)
        .map(|number| {
            let claims = claims.clone();
            async move {
                let claim = claim(&format!("claim-{number}"), Some(NODE))?;
                claims.create(&PostParams::default(), &claim).await.map(drop).map_err(ImageError::from)
            }
        })
        .buffer_unordered(HANDS)
        .try_collect::<()>()
        .await?;
    eventually(PATIENCE, &format!("{volumes} claims are bound"), async || {
        let list = claims.list(&ListParams::default()).await?;
        let phase = |claim: &PersistentVolumeClaim| claim.status.as_ref().and_then(|status| status.phase.clone());
        let bound = list.items.iter().filter(|claim| phase(claim).as_deref() == Some("Bound")).count();
        show(&format!("{bound} of {volumes} claims are bound"));
        Ok::<_, kube::Error>(if bound == list.items.len() { Seen::Done(()) } else { Seen::NotYet(format!("{bound}")) })
    })
    .await?;
    Ok(())
}

/// A claim. With `node`, the claim has the annotations that the scheduler adds.
fn claim(name: &str, node: Option<&str>) -> Result<PersistentVolumeClaim, serde_json::Error> {
    let annotations = node.map(|node| {
        json!({
            "volume.kubernetes.io/selected-node": node,
            "volume.kubernetes.io/storage-provisioner": cluster::DRIVER_NAME,
        })
    });
    serde_json::from_value(json!({
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
    }))
}

/// Memory of the node's program in bytes, read from its metrics.
async fn memory(client: &Client) -> Result<u64, ImageError> {
    let request = http::Request::get(format!("/api/v1/nodes/{NODE}:7839/proxy/metrics")).body(Vec::new())?;
    let text = client.request_text(request).await?;
    value(&text, MEMORY).ok_or_else(|| format!("the node's metrics have no {MEMORY}").into())
}

/// Value of a metric without labels, in Prometheus' text format.
fn value(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_a_name_and_a_file() {
        assert_eq!(part_file("kernel=a/b=c"), Ok(("kernel".into(), "a/b=c".into())));
        assert!(part_file("kernel").is_err());
    }

    #[test]
    fn a_metric_is_read_by_its_whole_name() {
        let text = "# HELP a x\n# TYPE a gauge\na_b 7\na{c=\"d\"} 8\na 9\n";
        assert_eq!(value(text, "a"), Some(9));
        assert_eq!(value(text, "c"), None);
    }

    #[test]
    fn a_file_weighs_what_it_takes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sparse");
        fs::File::create(&path).unwrap().set_len(1 << 30).unwrap();
        let parts = weigh(&[("sparse".into(), path)]).unwrap();
        assert_eq!(parts, [Part { name: "sparse".into(), bytes: 0 }]);
    }
}
