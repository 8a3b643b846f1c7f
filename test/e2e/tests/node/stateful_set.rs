//! A StatefulSet, whose pods come back with their claims; and kubelet's statistics of these.

use e2e::{Case, Claim, Failure, PATIENCE, Part, Pod, Seen, Server, Stopped, Volume, eventually};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod as PodObject;
use kube::api::DeleteParams;
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 16 * MIB;
/// See `directory`.
const METADATA: u64 = 256 << 10;
const POD: &str = "set-0";

pub async fn run(part: Part) -> Result<(), Stopped> {
    let case = &part.case;
    let pod = part.must_show("a_stateful_set_has_two_claims_for_a_pod", start(case)).await?;
    let pod = part.must_show("a_lost_pod_is_created_again_with_its_volumes", is_lost(case, &pod)).await?;
    part.shows("kubelet_has_statistics_of_the_volumes", statistics(case, &pod)).await;
    Ok(())
}

async fn start(case: &Case) -> Result<Server, Failure> {
    let template = |claim: Claim| json!({"metadata": {"name": claim.name}, "spec": claim.spec()});
    let pod = Pod::server("set").with(Volume::claim("data")).with(Volume::device("device")).restarting();
    case.create::<StatefulSet>(json!({
        "metadata": {"name": "set"},
        "spec": {
            "serviceName": "set",
            "replicas": 1,
            "selector": {"matchLabels": {"app": "set"}},
            "template": {"metadata": {"labels": {"app": "set"}}, "spec": pod.spec()},
            "volumeClaimTemplates": [template(Claim::new("data", SIZE)), template(Claim::block("device", SIZE))],
        },
    }))
    .await?;
    let pod = case.find(POD).await?;
    pod.write("/data/note", "kept").await?;
    pod.write("/dev/device", "kept").await?;
    // For the statistics, which kubelet updates about once a minute.
    assert_eq!(pod.fill(Pod::PATH, true).await?.errno, "ENOSPC");
    Ok(pod)
}

async fn is_lost(case: &Case, pod: &Server) -> Result<Server, Failure> {
    let pods = case.api::<PodObject>();
    let first = pods.get(pod.name()).await.map_err(Failure::api("read a pod"))?.metadata.uid;
    pods.delete(pod.name(), &DeleteParams::default()).await.map_err(Failure::api("delete a pod"))?;
    eventually(PATIENCE, "another pod of the set", async || {
        let now = pods.get_opt(pod.name()).await.map_err(Failure::api("look for a pod"))?;
        let now = now.and_then(|pod| pod.metadata.uid);
        Ok(if now.is_some() && now != first { Seen::Done(()) } else { Seen::NotYet(format!("{now:?}")) })
    })
    .await?;
    let pod = case.find(pod.name()).await?;
    assert_eq!(pod.read("/data/note").await?, "kept");
    assert_eq!(pod.read("/dev/device").await?, "kept");
    Ok(pod)
}

async fn statistics(case: &Case, pod: &Server) -> Result<(), Failure> {
    let number = |of: &Value, name: &str| of[name].as_u64().unwrap_or_else(|| panic!("{name} is missing: {of}"));
    let files = case.volume_statistics(pod.name(), "data-set-0").await?;
    assert_eq!((number(&files, "capacityBytes"), number(&files, "inodes")), (SIZE, SIZE / 2048), "{files}");
    let (used, available) = (number(&files, "usedBytes"), number(&files, "availableBytes"));
    assert!((SIZE - METADATA..=SIZE).contains(&used), "{files}");
    assert_eq!(used + available, SIZE, "{files}");
    // The volume's root, the note, and what fills it.
    assert_eq!((number(&files, "inodesUsed"), number(&files, "inodesFree")), (3, SIZE / 2048 - 3), "{files}");
    let device = case.volume_statistics(pod.name(), "device-set-0").await?;
    assert_eq!(number(&device, "capacityBytes"), SIZE, "{device}");
    Ok(())
}
