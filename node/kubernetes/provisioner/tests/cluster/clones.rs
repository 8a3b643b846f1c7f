//! Claims whose volumes are clones.

use std::sync::Arc;

use envtest::{Cluster, Failure, gone};
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use provisioner::Settings;
use serde_json::{Value, json};
use units::Bytes;
use volume::{Allocation, Claim, Mode, Owner, Request, Volumes};

use crate::id_of;
use crate::node::{Node, until};

pub fn clone_of(source: &str) -> Value {
    json!({"volumeMode": "Block", "dataSource": {"kind": "PersistentVolumeClaim", "name": source}})
}

pub async fn a_claim_is_cloned_from_a_claim(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start_apart(&cluster, "clone").await?;
    let source = node.claim_here("data", json!({"volumeMode": "Block"})).await?;
    node.bound("data").await?;
    let id = id_of(&source.uid().unwrap_or_default())?;
    node.volumes.set_passes(3);
    let mut larger = clone_of("data");
    larger["resources"] = json!({"requests": {"storage": "2Gi"}});
    let clone = node.claim_here("copy", larger).await?;
    let pv = node.bound("copy").await?;
    assert_eq!(pv.spec.unwrap_or_default().capacity.unwrap_or_default()["storage"].0, "2Gi");
    let copy = id_of(&clone.uid().unwrap_or_default())?;
    assert_eq!(node.volumes.source(&copy), Some(id));
    let record = node.volumes.record(&copy).expect("the volume has a record");
    assert_eq!((record.size, record.cloning), (Bytes::new(2 << 30), None));
    node.event("copy", "Provisioning").await?;
    node.event("copy", "ProvisioningSucceeded").await?;
    let failed = node.events("copy").await?.into_iter().filter(|event| event.type_.as_deref() == Some("Warning"));
    assert_eq!(failed.collect::<Vec<_>>(), [], "a pass that does not end the copy does not fail");
    node.end().await
}

pub async fn a_source_may_be_deleted_while_its_blocks_are_copied(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start_apart(&cluster, "outlived").await?;
    let source = node.provisioned("data", json!({"volumeMode": "Block"})).await?;
    node.volumes.set_passes(u32::MAX);
    let mut copies = Vec::new();
    for name in ["copy", "dropped"] {
        let clone = node.claim_here(name, clone_of("data")).await?;
        copies.push(id_of(&clone.uid().unwrap_or_default())?);
    }
    until("two clones in part", async || {
        let records: Vec<_> = copies.iter().map(|copy| node.volumes.record(copy)).collect();
        let have_begun = records.iter().all(|record| record.as_ref().is_some_and(|record| record.cloning.is_some()));
        Ok((!have_begun).then(|| format!("{records:?}")))
    })
    .await?;
    // The reservation of a clone ends with its claim.
    node.claims().delete("dropped", &DeleteParams::default()).await?;
    until("the end of the record", async || Ok(node.volumes.record(&copies[1]).map(|record| format!("{record:?}"))))
        .await?;
    node.delete("data", &source).await?;
    node.volumes.set_passes(0);
    node.bound("copy").await?;
    node.end().await
}

/// The process ended after the last pass over the clone, before it created the PV.
pub async fn a_source_may_be_deleted_before_the_clone_has_its_pv(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut node = Node::start_apart(&cluster, "unbound-clone").await?;
    let source = node.claim_here("data", json!({"volumeMode": "Block"})).await?;
    let source = (id_of(&source.uid().unwrap_or_default())?, node.bound("data").await?);
    node.settled(&source.0).await?;
    node.halt().await?;
    let clone = node.claim_here("copy", clone_of("data")).await?;
    let uid = clone.uid().unwrap_or_default();
    let copy = id_of(&uid)?;
    let want = Request {
        claim: Claim { uid, namespace: node.namespace.clone(), name: "copy".into() },
        owner: Owner::Provisioner,
        class: node.class.clone(),
        mode: Mode::Block { allocation: Allocation::Thick },
        size: Bytes::GIB,
        source: Some(source.0),
    };
    let disk: &dyn Volumes = &*node.volumes;
    disk.provision(&copy, &want)?;
    node.claims().delete("data", &DeleteParams::default()).await?;
    gone(&node.claims(), "data").await?;
    node.run().await?;
    node.bound("copy").await?;
    node.gone(&source.1).await?;
    node.end().await
}

/// Regression: clones of a volume with many files, and all that waited for their source, took the passes over all
/// claims.
pub async fn claims_are_served_while_clones_take_long(cluster: Arc<Cluster>) -> Result<(), Failure> {
    const SOURCES: u16 = 3;
    let node = Node::start_apart(&cluster, "slow-clones").await?;
    for number in 0..SOURCES {
        node.volume(&format!("data-{number}"), json!({"volumeMode": "Block"})).await?;
    }
    node.volumes.hold(true);
    // More clones than passes at once.
    let clones: Vec<String> = (0..Settings::PARALLEL.get() + SOURCES).map(|number| format!("copy-{number}")).collect();
    for (number, clone) in (0..).zip(&clones) {
        node.claim_here(clone, clone_of(&format!("data-{}", number % SOURCES))).await?;
    }
    node.provisioned("other", json!({})).await?;
    node.volumes.hold(false);
    for clone in &clones {
        node.bound(clone).await?;
    }
    node.end().await
}

pub async fn what_cannot_be_cloned_is_reported_with_both_claims(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start_apart(&cluster, "unclonable").await?;
    node.claim_here("files", json!({})).await?;
    node.claim_here("large", json!({"volumeMode": "Block", "resources": {"requests": {"storage": "2Gi"}}})).await?;
    node.bound("files").await?;
    node.bound("large").await?;
    node.claim("unbound", json!({"volumeMode": "Block"})).await?;
    let live = node.volumes.live();
    let mut directory = clone_of("large");
    directory["volumeMode"] = "Filesystem".into();
    for (name, source, words, spec) in [
        ("of-none", "none", "does not exist", clone_of("none")),
        ("of-space", "not a name", "does not exist", clone_of("not a name")),
        ("of-files", "files", "set spec.volumeMode: Filesystem", clone_of("files")),
        ("of-large", "large", "request at least as much", clone_of("large")),
        ("of-unbound", "unbound", "has no volume yet", clone_of("unbound")),
        ("directory", "large", "set spec.volumeMode: Block", directory),
    ] {
        node.claim_here(name, spec).await?;
        let note = node.event(name, "ProvisioningFailed").await?;
        for word in [format!("unclonable/{name}"), format!("unclonable/{source}"), words.to_owned()] {
            assert!(note.contains(&word), "{name}: {note}");
        }
    }
    assert_eq!(node.volumes.live(), live);
    node.end().await
}
