//! The provisioner against a real API server, with the PV controller that binds claims. The disk is a fake; the tests
//! play the scheduler.

mod fake;
mod node;

use std::process::ExitCode;
use std::sync::Arc;

use envtest::{Cluster, Failure, PATIENCE, Suite};
use eventually::{Seen, eventually};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use units::{Bytes, Inodes};
use volume::{Claim, Mode, Record, State, VolumeId};

use crate::node::{Node, SELECTED_NODE};

fn main() -> ExitCode {
    Suite::new()
        .case("a_claim_gets_a_volume_with_what_it_asked_for", a_claim_gets_a_volume_with_what_it_asked_for)
        .case("a_claim_of_another_node_is_left_alone", a_claim_of_another_node_is_left_alone)
        .case("what_cannot_be_honoured_is_refused_by_name", what_cannot_be_honoured_is_refused_by_name)
        .case("a_claim_that_does_not_fit_goes_back_to_the_scheduler", a_claim_that_does_not_fit_goes_back)
        .case("a_deleted_claim_takes_its_volume_along", a_deleted_claim_takes_its_volume_along)
        .case("a_pv_that_is_deleted_before_its_claim_leaks_no_data", a_pv_that_is_deleted_first_leaks_no_data)
        .case("retain_keeps_pv_and_data", retain_keeps_pv_and_data)
        .case("a_second_pv_of_the_same_volume_keeps_its_data", a_second_pv_keeps_the_data)
        .case("a_staged_volume_whose_claim_is_gone_is_undone", a_staged_volume_whose_claim_is_gone_is_undone)
        .case("a_staged_volume_whose_claim_is_there_is_finished", a_staged_volume_is_finished)
        .case("an_announced_volume_without_a_pv_is_never_deleted", an_orphan_is_never_deleted)
        .case("the_api_server_may_be_away_for_a_while", the_api_server_may_be_away_for_a_while)
        .case("a_burst_of_claims_is_served", a_burst_of_claims_is_served)
        .run()
}

fn id_of(uid: &str) -> Result<VolumeId, Failure> {
    Ok(format!("pvc-{uid}").parse()?)
}

fn record(claim: Claim, class: &str, state: State) -> Record {
    Record {
        claim,
        class: class.to_owned(),
        mode: Mode::Filesystem,
        size: Bytes::GIB,
        inodes: Inodes::new(1 << 19),
        project: fsquota::ProjectId::new(7).expect("an ID"),
        state,
    }
}

async fn a_claim_gets_a_volume_with_what_it_asked_for(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start(&cluster, "provision").await?;
    let claim = node.claim_here("data", json!({"resources": {"requests": {"storage": "1500000001"}}})).await?;
    let pv = node.bound("data").await?;
    let uid = claim.uid().unwrap_or_default();
    assert_eq!(pv.name_any(), format!("pvc-{uid}"));
    assert_eq!(pv.annotations()["pv.kubernetes.io/provisioned-by"], "local.granary.dev");
    let spec = pv.spec.unwrap_or_default();
    // Whole blocks of 4 KiB.
    assert_eq!(spec.capacity.unwrap_or_default()["storage"].0, "1464844Ki");
    assert_eq!(spec.access_modes.unwrap_or_default(), ["ReadWriteOnce"]);
    assert_eq!(spec.csi.map(|csi| csi.volume_handle), Some(format!("pvc-{uid}")));
    let record = node.volumes.record(&id_of(&uid)?).expect("the volume has a record");
    assert_eq!((record.size, record.claim.uid), (Bytes::new(1_464_844 << 10), uid));
    assert!(node.event("data", "ProvisioningSucceeded").await?.contains("1.39 GiB"));
    let succeeded = |events: &[k8s_openapi::api::events::v1::Event]| {
        events.iter().filter(|event| event.reason.as_deref() == Some("ProvisioningSucceeded")).count()
    };
    assert_eq!(succeeded(&node.events("data").await?), 1);
    let id = id_of(&claim.uid().unwrap_or_default())?;
    eventually(PATIENCE, "the record's state announced", async || {
        let state = node.volumes.record(&id).map(|record| record.state);
        Ok::<_, kube::Error>(if state == Some(State::Announced) {
            Seen::Done(())
        } else {
            Seen::NotYet(format!("{state:?}"))
        })
    })
    .await?;
    node.end().await
}

async fn a_claim_of_another_node_is_left_alone(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start(&cluster, "another-node").await?;
    node.claim("elsewhere", json!({})).await?;
    node.schedule("elsewhere", "another").await?;
    node.claim("nowhere", json!({})).await?;
    // A claim that comes later is served, those were seen before it.
    node.claim_here("here", json!({})).await?;
    let pv = node.bound("here").await?;
    assert_eq!(node.volumes.live(), [pv.name_any().parse()?]);
    node.end().await
}

async fn what_cannot_be_honoured_is_refused_by_name(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start(&cluster, "refusals").await?;
    let source = json!({"kind": "PersistentVolumeClaim", "name": "other"});
    for (name, field, spec) in [
        ("source", "dataSource", json!({"dataSource": source})),
        ("selector", "selector", json!({"selector": {"matchLabels": {"a": "b"}}})),
        ("many", "ReadWriteMany", json!({"accessModes": ["ReadWriteMany"]})),
        ("readers", "ReadOnlyMany", json!({"accessModes": ["ReadWriteOnce", "ReadOnlyMany"]})),
        ("attributes", "volumeAttributesClassName", json!({"volumeAttributesClassName": "gold"})),
    ] {
        node.claim_here(name, spec).await?;
        let note = node.event(name, "ProvisioningFailed").await?;
        assert!(note.contains(field), "{name}: {note}");
    }
    for (name, word, class) in [
        ("options", "mountOptions", json!({"mountOptions": ["sync"]})),
        ("parameter", "colour", json!({"parameters": {"colour": "red"}})),
    ] {
        node.make_class(class).await?;
        node.claim_here(name, json!({})).await?;
        let note = node.event(name, "ProvisioningFailed").await?;
        assert!(note.contains(word), "{name}: {note}");
    }
    assert_eq!(node.volumes.live(), []);
    node.end().await
}

async fn a_claim_that_does_not_fit_goes_back(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::with_disk(&cluster, "full", Bytes::GIB).await?;
    node.claim_here("large", json!({})).await?;
    let note = node.event("large", "ProvisioningFailed").await?;
    assert!(note.contains("1.25 GiB") && note.contains("1 GiB to promise"), "{note}");
    let claims = node.claims();
    eventually(PATIENCE, "the claim without its node", async || {
        let found = claims.get("large").await?;
        let chosen = found.annotations().contains_key(SELECTED_NODE);
        Ok::<_, kube::Error>(if chosen { Seen::NotYet(format!("{:?}", found.annotations())) } else { Seen::Done(()) })
    })
    .await?;
    assert_eq!(node.volumes.live(), []);
    node.claim_here("small", json!({"resources": {"requests": {"storage": "512Mi"}}})).await?;
    node.bound("small").await?;
    node.end().await
}

async fn a_deleted_claim_takes_its_volume_along(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start(&cluster, "delete").await?;
    node.claim_here("data", json!({})).await?;
    let pv = node.bound("data").await?;
    node.claims().delete("data", &DeleteParams::default()).await?;
    node.gone(&pv).await?;
    node.end().await
}

async fn a_pv_that_is_deleted_first_leaks_no_data(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start(&cluster, "delete-pv").await?;
    node.claim_here("data", json!({})).await?;
    let pv = node.bound("data").await?;
    node.pvs().delete(&pv.name_any(), &DeleteParams::default()).await?;
    // The claim still has it.
    assert!(node.pvs().get(&pv.name_any()).await?.metadata.deletion_timestamp.is_some());
    assert_eq!(node.volumes.live(), [pv.name_any().parse()?]);
    node.claims().delete("data", &DeleteParams::default()).await?;
    node.gone(&pv).await?;
    node.end().await
}

async fn retain_keeps_pv_and_data(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start(&cluster, "retain").await?;
    node.claim_here("data", json!({})).await?;
    let pv = node.bound("data").await?;
    let retain = Patch::Merge(json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}}));
    node.pvs().patch(&pv.name_any(), &PatchParams::default(), &retain).await?;
    eventually(PATIENCE, "the PV without our finalizer", async || {
        let finalizers = node.pvs().get(&pv.name_any()).await?.finalizers().to_owned();
        let ours = finalizers.iter().any(|name| name == provisioner::FINALIZER);
        Ok::<_, kube::Error>(if ours { Seen::NotYet(finalizers.join(" ")) } else { Seen::Done(()) })
    })
    .await?;
    node.claims().delete("data", &DeleteParams::default()).await?;
    eventually(PATIENCE, "the PV's phase Released", async || {
        let phase = node.pvs().get(&pv.name_any()).await?.status.and_then(|status| status.phase);
        Ok::<_, kube::Error>(match phase.as_deref() {
            Some("Released") => Seen::Done(()),
            other => Seen::NotYet(format!("{other:?}")),
        })
    })
    .await?;
    // Another claim goes through its whole life meanwhile: whatever was to be done was done.
    node.claim_here("other", json!({})).await?;
    let other = node.bound("other").await?;
    node.claims().delete("other", &DeleteParams::default()).await?;
    node.gone(&other).await?;
    let id: VolumeId = pv.name_any().parse()?;
    assert_eq!(node.volumes.live(), std::slice::from_ref(&id));
    // With policy Delete again, it goes.
    let delete = Patch::Merge(json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}}));
    node.pvs().patch(&pv.name_any(), &PatchParams::default(), &delete).await?;
    node.gone(&pv).await?;
    node.end().await
}

async fn a_second_pv_keeps_the_data(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start(&cluster, "second").await?;
    node.claim_here("data", json!({})).await?;
    let pv = node.bound("data").await?;
    let mut second = serde_json::to_value(&pv)?;
    second["metadata"] = json!({"name": "by-hand", "annotations": pv.annotations()});
    second["spec"]["claimRef"] = Value::Null;
    second["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
    node.pvs().create(&PostParams::default(), &serde_json::from_value(second)?).await?;
    node.claims().delete("data", &DeleteParams::default()).await?;
    let note = node.event(&pv.name_any(), "VolumeFailedDelete").await?;
    assert!(note.contains("by-hand"), "{note}");
    assert_eq!(node.volumes.live(), [pv.name_any().parse()?]);
    node.pvs().delete("by-hand", &DeleteParams::default()).await?;
    node.gone(&pv).await?;
    node.end().await
}

async fn a_staged_volume_whose_claim_is_gone_is_undone(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut node = Node::stopped(&cluster, "staged", Bytes::new(100 << 30)).await?;
    let id = id_of("0d3a7d6e-0000-4000-8000-000000000001")?;
    let claim = Claim {
        uid: "0d3a7d6e-0000-4000-8000-000000000001".into(),
        namespace: node.namespace.clone(),
        name: "gone".into(),
    };
    node.volumes.put(&id, record(claim, "class-staged", State::Staged));
    node.run().await?;
    eventually(PATIENCE, "the end of the record", async || {
        Ok::<_, kube::Error>(
            node.volumes.record(&id).map_or(Seen::Done(()), |record| Seen::NotYet(format!("{record:?}"))),
        )
    })
    .await?;
    node.end().await
}

async fn a_staged_volume_is_finished(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut node = Node::stopped(&cluster, "half-made", Bytes::new(100 << 30)).await?;
    let claim = node.claim_here("data", json!({})).await?;
    let uid = claim.uid().unwrap_or_default();
    let of = Claim { uid: uid.clone(), namespace: node.namespace.clone(), name: "data".into() };
    node.volumes.put(&id_of(&uid)?, record(of, "class-half-made", State::Staged));
    node.run().await?;
    let pv = node.bound("data").await?;
    assert_eq!(pv.name_any(), format!("pvc-{uid}"));
    assert_eq!(node.volumes.record(&id_of(&uid)?).map(|record| record.project.get()), Some(7), "made once only");
    node.end().await
}

async fn an_orphan_is_never_deleted(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut node = Node::stopped(&cluster, "orphan", Bytes::new(100 << 30)).await?;
    let id = id_of("0d3a7d6e-0000-4000-8000-000000000002")?;
    let claim = Claim { uid: "u".into(), namespace: node.namespace.clone(), name: "gone".into() };
    node.volumes.put(&id, record(claim, "class-orphan", State::Announced));
    // Healthy after the comparison; then another claim's whole life.
    node.run().await?;
    node.claim_here("other", json!({})).await?;
    let other = node.bound("other").await?;
    node.claims().delete("other", &DeleteParams::default()).await?;
    node.gone(&other).await?;
    node.halt().await?;
    node.run().await?;
    assert_eq!(node.volumes.live(), [id]);
    node.end().await
}

async fn the_api_server_may_be_away_for_a_while(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start(&cluster, "away").await?;
    node.claim_here("before", json!({})).await?;
    let pv = node.bound("before").await?;
    cluster.stop_api_server().await?;
    cluster.start_api_server().await?;
    node.claim_here("after", json!({})).await?;
    node.bound("after").await?;
    node.claims().delete("before", &DeleteParams::default()).await?;
    node.gone(&pv).await?;
    assert_eq!(node.attempts(), 1, "the provisioner goes on by itself");
    node.end().await
}

async fn a_burst_of_claims_is_served(cluster: Arc<Cluster>) -> Result<(), Failure> {
    const CLAIMS: usize = 100;

    let node = Node::start(&cluster, "burst").await?;
    let small = json!({"resources": {"requests": {"storage": "1Mi"}}});
    for number in 0..CLAIMS {
        node.claim_here(&format!("data-{number}"), small.clone()).await?;
    }
    for number in 0..CLAIMS {
        node.bound(&format!("data-{number}")).await?;
    }
    assert_eq!(node.volumes.live().len(), CLAIMS);
    node.end().await
}
