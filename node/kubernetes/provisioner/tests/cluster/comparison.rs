//! Disk and cluster are compared when the provisioner starts.

use std::sync::Arc;

use envtest::{Cluster, Failure};
use fsquota::Drift;
use kube::ResourceExt as _;
use kube::api::ListParams;
use serde_json::json;
use units::{Bytes, Inodes};
use volume::{Claim, Drifted, Owner, Record, State, VolumeId};

use crate::node::{Node, until};
use crate::{id_of, record};

/// The comparison runs beside the pass of the claim, and does not undo its volume.
pub async fn a_staged_volume_whose_claim_exists_is_finished(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut node = Node::stopped(&cluster, "half-made", Bytes::new(100 << 30)).await?;
    let claim = node.claim_here("data", json!({})).await?;
    let uid = claim.uid().unwrap_or_default();
    let of = Claim { uid: uid.clone(), namespace: node.namespace.clone(), name: "data".into() };
    node.volumes.put(&id_of(&uid)?, record(of, "class-half-made", State::Staged));
    node.run().await?;
    let pv = node.bound("data").await?;
    assert_eq!(pv.name_any(), format!("pvc-{uid}"));
    assert_eq!(node.volumes.record(&id_of(&uid)?).map(|record| record.project.get()), Some(7), "created once");
    node.end().await
}

pub async fn an_announced_volume_without_a_pv_is_reported_and_kept(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut node = Node::stopped(&cluster, "orphan", Bytes::new(100 << 30)).await?;
    let id = id_of("0d3a7d6e-0000-4000-8000-000000000002")?;
    let claim = Claim { uid: "u".into(), namespace: node.namespace.clone(), name: "gone".into() };
    node.volumes.put(&id, record(claim, "class-orphan", State::Announced));
    node.run().await?;
    let note = node.orphan_event(&id).await?;
    assert!(note.contains("1 GiB") && note.contains("orphan/gone"), "{note}");
    // Neither the passes over another claim nor a restart remove the orphan.
    let other = node.provisioned("other", json!({})).await?;
    node.delete("other", &other).await?;
    node.halt().await?;
    node.run().await?;
    assert_eq!(node.volumes.live(), [id]);
    node.end().await
}

pub async fn a_pv_without_a_volume_is_reported(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut node = Node::start(&cluster, "lost").await?;
    let pv = node.provisioned("data", json!({})).await?;
    let id: VolumeId = pv.name_any().parse()?;
    node.settled(&id).await?;
    node.halt().await?;
    node.volumes.lose(&id);
    node.run().await?;
    // A pass over the PV at this moment delays the event by seconds.
    node.event_with(&pv.name_any(), "VolumeLost", &["does not exist on this node"]).await?;
    // The PV can be deleted nevertheless.
    node.delete("data", &pv).await?;
    node.end().await
}

/// Volumes of the Controller service have no claim and may have no PV. Only their client decides about their end.
pub async fn volumes_of_the_controller_service_are_kept(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut node = Node::stopped(&cluster, "external", Bytes::new(100 << 30)).await?;
    // Without any PV, nothing is removed at all.
    node.claim_here("other", json!({})).await?;
    node.run().await?;
    let other = node.bound("other").await?;
    node.halt().await?;
    let id = |number: u8| id_of(&format!("0d3a7d6e-0000-4000-8000-0000000000b{number}"));
    let volume = |owner, state| {
        let claim = Claim { uid: "u".into(), namespace: "external".into(), name: "gone".into() };
        Record { owner, ..record(claim, "class-external", state) }
    };
    let external = [id(1)?, id(2)?, id(3)?];
    // The comparison reaches these last.
    let removed = [id(4)?, id(5)?];
    for (id, state) in external.iter().zip([State::Announced, State::Staged, State::Announced]) {
        node.volumes.put(id, volume(Owner::Controller { source: None }, state));
    }
    for (id, state) in removed.iter().zip([State::Staged, State::Announced]) {
        node.volumes.put(id, volume(Owner::Provisioner, state));
    }
    for id in [&external[2], &removed[1]] {
        node.volumes.retire(id);
    }
    node.run().await?;
    for id in &removed {
        until("the end of the record", async || Ok(node.volumes.record(id).map(|record| format!("{record:?}"))))
            .await?;
    }
    assert!(external.iter().all(|id| node.volumes.record(id).is_some()), "{:?}", node.volumes.live());
    assert_eq!(node.volumes.retired(), external[2..]);
    node.delete("other", &other).await?;
    node.end().await
}

pub async fn an_empty_list_of_the_api_server_deletes_nothing(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut node = Node::stopped(&cluster, "empty", Bytes::new(100 << 30)).await?;
    assert_eq!(node.pvs().list(&ListParams::default()).await?.items, [], "other cases leave no PV");
    let id = |number: u8| id_of(&format!("0d3a7d6e-0000-4000-8000-0000000000a{number}"));
    let gone = || Claim { uid: "u".into(), namespace: "empty".into(), name: "gone".into() };
    let (announced, staged, retired) = (id(1)?, id(2)?, id(3)?);
    node.volumes.put(&announced, record(gone(), "class-empty", State::Announced));
    node.volumes.put(&staged, record(gone(), "class-empty", State::Staged));
    node.volumes.put(&retired, record(gone(), "class-empty", State::Announced));
    node.volumes.retire(&retired);
    node.run().await?;
    // The event about the orphan is the last action of the sweep.
    node.orphan_event(&announced).await?;
    node.halt().await?;
    assert_eq!(node.volumes.live(), [announced, staged]);
    assert_eq!(node.volumes.retired(), [retired]);
    node.end().await
}

/// The fake disk reports a file as if a pod had changed its project.
pub async fn a_file_that_counts_to_another_project_is_reported(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut node = Node::stopped(&cluster, "drifted", Bytes::new(100 << 30)).await?;
    let id = id_of("0d3a7d6e-0000-4000-8000-000000000003")?;
    let claim = Claim { uid: "u".into(), namespace: node.namespace.clone(), name: "data".into() };
    node.volumes.put(&id, record(claim, "class-drifted", State::Announced));
    let first = Some(("dir/file".into(), Drift::NoProject));
    node.volumes.set_drifted(&id, Drifted { inodes: Inodes::new(2), first });
    node.run().await?;
    node.event_with(&node.name, "VolumeProjectChanged", &[id.as_str(), "2 inodes", "dir/file"]).await?;
    node.end().await
}
