//! Boots the image, lets a pod use a volume, asks for many volumes, and reads what the node tells of itself.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use bench::{BootSample, Part};
use eventually::{Late, Seen, eventually};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Pod, ServiceAccount};
use kube::api::{ListParams, PostParams};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client};
use launch::{BootError, Data, Event, Image, Node, Options, SHUTDOWN_LIMIT, ShutdownError, StageState};
use serde_json::json;

/// Of the node in the cluster.
const NODE: &str = "granary";
/// Where this program makes its objects.
const NAMESPACE: &str = "bench";
/// Requests at once: the API server of an emulated node takes 50 ms of its CPU for each.
const HANDS: usize = 4;
/// A pod takes seconds in emulation, a thousand claims some minutes.
const PATIENCE: Duration = Duration::from_secs(1800);
/// The metric of what the node's program needs.
const MEMORY: &str = "granary_memory_pss_bytes";

/// `NAME=FILE`, a file of the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartFile {
    name: String,
    path: PathBuf,
}

/// No `NAME=FILE`.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not NAME=FILE")]
pub(crate) struct NotAPart(String);

impl FromStr for PartFile {
    type Err = NotAPart;

    fn from_str(text: &str) -> Result<Self, NotAPart> {
        let (name, path) = text.split_once('=').ok_or_else(|| NotAPart(text.to_owned()))?;
        Ok(Self { name: name.to_owned(), path: path.into() })
    }
}

/// Why a boot gives no figures.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageError {
    #[error("cannot look at {path}")]
    Part {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot make a temporary directory")]
    Directory(#[source] io::Error),
    #[error("the image does not boot")]
    Boot(#[from] BootError),
    #[error("the API server refuses")]
    Api(#[from] kube::Error),
    #[error("cannot watch an object")]
    Watch(#[from] kube::runtime::wait::Error),
    #[error("cannot make the request for the metrics")]
    Request(#[from] http::Error),
    #[error("an object is none")]
    Object(#[from] serde_json::Error),
    #[error(transparent)]
    Late(#[from] Late),
    #[error("the node's metrics have no {MEMORY}")]
    NoMemory,
    #[error("the node does not shut down")]
    ShutDown(#[from] ShutdownError),
}

/// What the files take. A disk image has holes, which take nothing.
pub(crate) fn weigh(files: &[PartFile]) -> Result<Vec<Part>, ImageError> {
    let part = |file: &PartFile| {
        let data = fs::metadata(&file.path).map_err(|source| ImageError::Part { path: file.path.clone(), source })?;
        // st_blocks counts 512 bytes: stat(2).
        let bytes = data.len().min(data.blocks() * 512);
        Ok(Part { name: file.name.clone(), bytes })
    };
    files.iter().map(part).collect()
}

/// Boots the image once, and lets it have so many volumes. Returns what executed it, too.
pub(crate) async fn boot(image: Image, volumes: u32) -> Result<(String, BootSample), ImageError> {
    let directory = tempfile::tempdir().map_err(ImageError::Directory)?;
    let mut options = Options::new(image, directory.path());
    options.data = Data::Temporary;
    let (mut sample, mut accelerator, mut start) = (BootSample::default(), String::new(), Instant::now());
    let node = Node::boot(&options, |event| match event {
        Event::Started { accelerator: kind, .. } => (accelerator, start) = (kind.to_string(), Instant::now()),
        Event::Stage { name, state: StageState::Ready, .. } => sample.stages.push((name.clone(), since(start))),
        _ => {}
    })
    .await?;
    sample.stages.push(("the Node is Ready".into(), since(start)));
    let client = node.client();
    sample.memory.insert(0, memory(&client).await?);
    first_pod(&client).await?;
    sample.stages.push(("a pod runs with a volume".into(), since(start)));
    sample.memory.insert(1, memory(&client).await?);
    if let Some(more) = volumes.checked_sub(1).filter(|more| *more > 0) {
        claims(&client, more).await?;
        sample.memory.insert(volumes, memory(&client).await?);
    }
    node.shut_down(SHUTDOWN_LIMIT).await?;
    Ok((accelerator, sample))
}

fn since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// A pod that only waits, with a volume.
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

/// So many more volumes, as if pods on this node waited for them.
async fn claims(client: &Client, volumes: u32) -> Result<(), ImageError> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), NAMESPACE);
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
        let list = claims.list(&ListParams::default()).await.map_err(ImageError::from)?;
        let phase = |claim: &PersistentVolumeClaim| claim.status.as_ref().and_then(|status| status.phase.clone());
        let bound = list.items.iter().filter(|claim| phase(claim).as_deref() == Some("Bound")).count();
        Ok::<_, ImageError>(if bound == list.items.len() { Seen::Done(()) } else { Seen::NotYet(format!("{bound}")) })
    })
    .await?;
    Ok(())
}

/// A claim, as the scheduler leaves it if `node` is given.
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

/// What the node's program needs, as its metrics tell.
async fn memory(client: &Client) -> Result<u64, ImageError> {
    let request = http::Request::get(format!("/api/v1/nodes/{NODE}:7839/proxy/metrics")).body(Vec::new())?;
    let text = client.request_text(request).await?;
    value(&text, MEMORY).ok_or(ImageError::NoMemory)
}

/// The value of a metric without labels, in Prometheus' text format.
fn value(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_a_name_and_a_file() {
        let part: PartFile = "kernel=a/b=c".parse().unwrap();
        assert_eq!((part.name.as_str(), part.path.to_str().unwrap()), ("kernel", "a/b=c"));
        assert_eq!("kernel".parse::<PartFile>().unwrap_err().to_string(), r#""kernel" is not NAME=FILE"#);
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
        let parts = weigh(&[PartFile { name: "sparse".into(), path }]).unwrap();
        assert_eq!(parts, [Part { name: "sparse".into(), bytes: 0 }]);
    }
}
