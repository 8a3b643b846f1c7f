//! Snapshots of volumes, and volumes that are restored from them. The tests act as the snapshot controller.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cluster::claim::RESTORE_FROM;
use cluster::snapshot::{MANAGED_BY, PROTECTION};
use envtest::{Cluster, Failure, Identity, SnapshotApi, accepted, create, forbidden, gone, merge, merge_status};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, DynamicObject, ListParams};
use kube::{Api, ResourceExt as _};
use prometheus::TextEncoder;
use provisioner::Settings;
use serde_json::{Value, json};
use tokio::time::sleep;
use units::Bytes;
use volume::{Record, State, VolumeId};

use crate::id_of;
use crate::node::{Node, until};

/// A node with a bound block claim `data`, and the source of its snapshots.
async fn with_data(cluster: &Cluster, namespace: &str) -> Result<(Node, SnapshotApi, Value), Failure> {
    let api = SnapshotApi::install(cluster, namespace).await?;
    let node = Node::start_apart(cluster, namespace).await?;
    let id = node.volume("data", json!({"volumeMode": "Block"})).await?;
    Ok((node, api, json!({"volumeHandle": id.as_str()})))
}

fn snapshot_of(content: &DynamicObject) -> Result<VolumeId, Failure> {
    Ok(format!("snapshot-{}", content.uid().unwrap_or_default()).parse()?)
}

fn restored_from(snapshot: &str) -> Value {
    let source = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": snapshot});
    json!({"volumeMode": "Block", "dataSource": source})
}

async fn removed(node: &Node, id: &VolumeId) -> Result<(), Failure> {
    until("the end of the snapshot", async || Ok(node.volumes.record(id).map(|record| format!("{record:?}")))).await
}

pub async fn a_snapshot_is_taken_restored_and_deleted(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (node, api, source) = with_data(&cluster, "snapshot").await?;
    node.volumes.set_passes(3);
    let before = SystemTime::now();
    let content = api.create("before", Some(&node.name), source.clone(), json!({})).await?;
    let (name, id) = (content.name_any(), snapshot_of(&content)?);
    let status = api.ready("before", &name).await?;
    assert_eq!((&status["snapshotHandle"], &status["restoreSize"]), (&id.as_str().into(), &(1_u64 << 30).into()));
    let taken = UNIX_EPOCH + Duration::from_nanos(status["creationTime"].as_u64().unwrap_or_default());
    assert!((before..=SystemTime::now()).contains(&taken), "{status}");
    for object in ["before", name.as_str()] {
        node.event_with(object, "SnapshotTaken", &["snapshot of 1 GiB; it reserves 1.01 GiB (1085027328 B)"]).await?;
        let events = node.events(object).await?;
        assert!(events.iter().all(|event| event.type_.as_deref() == Some("Normal")), "{events:?}");
    }
    let mut larger = restored_from("before");
    larger["resources"] = json!({"requests": {"storage": "2Gi"}});
    let claim = node.claim_here("restored", larger).await?;
    let pv = node.bound("restored").await?;
    assert_eq!(pv.spec.unwrap_or_default().capacity.unwrap_or_default()["storage"].0, "2Gi");
    assert_eq!(node.volumes.source(&id_of(&claim.uid().unwrap_or_default())?), Some(id.clone()));
    api.gone("before", &name).await?;
    assert_eq!(node.volumes.record(&id), None, "the snapshot is removed before its content");

    // A thin snapshot is ready without a copy.
    node.volumes.set_passes(u32::MAX);
    api.create_class("thin", json!({"thin": "true"})).await?;
    let of_class = json!({"volumeSnapshotClassName": "thin"});
    let content = api.create("thin", Some(&node.name), source, of_class).await?;
    let (name, id) = (content.name_any(), snapshot_of(&content)?);
    api.ready("thin", &name).await?;
    assert!(node.volumes.record(&id).is_some_and(|record| record.mode.is_thin() && record.cloning.is_some()));
    let words = ["thin snapshot of 1 GiB", "reserves nothing and shares its blocks"];
    node.event_with("thin", "SnapshotTaken", &words).await?;
    api.gone("thin", &name).await?;
    removed(&node, &id).await?;
    node.end().await
}

pub async fn a_snapshot_of_files_is_taken_within_its_pause_and_restored_as_files(
    cluster: Arc<Cluster>,
) -> Result<(), Failure> {
    let api = SnapshotApi::install(&cluster, "files").await?;
    let mut node = Node::start_apart(&cluster, "files").await?;
    let source = node.volume("data", json!({})).await?;
    api.create_class("short", json!({"maxPause": "750ms"})).await?;
    let more = json!({"sourceVolumeMode": "Filesystem", "volumeSnapshotClassName": "short"});
    let content = api.create("before", Some(&node.name), json!({"volumeHandle": source.as_str()}), more).await?;
    let (name, id) = (content.name_any(), snapshot_of(&content)?);
    api.ready("before", &name).await?;
    assert_eq!(node.volumes.pauses().first(), Some(&Duration::from_millis(750)));
    node.claim_here("device", restored_from("before")).await?;
    node.event_with("device", "ProvisioningFailed", &["snapshot files/before", "set spec.volumeMode: Filesystem"])
        .await?;
    let mut files = restored_from("before");
    files["volumeMode"] = "Filesystem".into();
    let claim = node.claim_here("restored", files).await?;
    node.bound("restored").await?;
    assert_eq!(node.volumes.source(&id_of(&claim.uid().unwrap_or_default())?), Some(id.clone()));
    api.gone("before", &name).await?;
    removed(&node, &id).await?;

    // Regression: a snapshot that the store had undone after its instant was taken again within the default pause. An
    // earlier release wrote the handle before the snapshot was ready.
    node.volumes.set_passes(u32::MAX);
    let more = json!({"sourceVolumeMode": "Filesystem", "volumeSnapshotClassName": "short"});
    let content = api.create("undone", Some(&node.name), json!({"volumeHandle": source.as_str()}), more).await?;
    let (name, id) = (content.name_any(), snapshot_of(&content)?);
    api.ready("undone", &name).await?;
    node.halt().await?;
    let unready = json!({"status": {"readyToUse": false}});
    merge_status(&api.contents, &name, unready.clone()).await?;
    let before = node.volumes.pauses().len();
    node.volumes.lose(&id);
    // The owner of the snapshot writes its annotations. Only the class sets the pause.
    let longer = json!({"metadata": {"annotations": {"maxPause": "1m", "granary.dev/maxPause": "1m"}}});
    merge(&api.snapshots, "undone", longer.clone()).await?;
    merge(&api.contents, &name, longer).await?;
    node.run().await?;
    assert_eq!(node.pause_after(before).await?, Some(Duration::from_millis(750)));

    api.ready("undone", &name).await?;

    // Regression: a snapshot that the former process had not undone completely was taken again within the default
    // pause.
    node.halt().await?;
    merge_status(&api.contents, &name, unready).await?;
    let record = node.volumes.record(&id).ok_or("a record")?;
    node.volumes.put(&id, Record { state: State::Staged, ..record });
    let before = node.volumes.pauses().len();
    node.run().await?;
    assert_eq!(node.pause_after(before).await?, Some(Duration::from_millis(750)));
    node.volumes.set_passes(0);
    api.ready("undone", &name).await?;
    api.gone("undone", &name).await?;
    node.end().await
}

pub async fn copies_pause_while_they_wait_for_their_sources(cluster: Arc<Cluster>) -> Result<(), Failure> {
    /// About a hundred passes of a copy that does not pause.
    const OBSERVED: Duration = Duration::from_secs(1);
    /// Number of passes that a copy with pauses stays below. The pauses are 500 ms, 1 s and so on. Changes of the
    /// objects start passes, too.
    const FEW: u32 = 10;
    let (node, api, source) = with_data(&cluster, "waiting").await?;
    let data: VolumeId = source["volumeHandle"].as_str().unwrap_or_default().parse()?;
    let mut others = Vec::new();
    for name in ["log", "index", "text"] {
        others.push(node.volume(name, json!({"volumeMode": "Block"})).await?);
    }
    let [log, index, text] = &others[..] else { return Err("three volumes".into()) };
    let sources = [&data, log, index];
    for id in sources {
        node.volumes.set_overfull(id, true);
    }
    let content = api.create("before", Some(&node.name), source, json!({})).await?.name_any();
    let clone = json!({"volumeMode": "Block", "dataSource": {"kind": "PersistentVolumeClaim", "name": "log"}});
    node.claim_here("copy", clone).await?;
    let members = json!({"volumeHandles": [index.as_str(), text.as_str()]});
    let group = api.create_group("both", Some(&node.name), members, json!({})).await?.name_any();
    let waited = || sources.map(|id| node.volumes.waited(id));
    until("a pass over each copy that waits", async || {
        let passes = waited();
        Ok(passes.contains(&0).then(|| format!("{passes:?}")))
    })
    .await?;
    let before = waited();
    sleep(OBSERVED).await;
    let after = waited();
    let are_few = before.iter().zip(&after).all(|(before, after)| after - before < FEW);
    assert!(are_few, "passes over the snapshot, the clone and the group: {before:?}, then {after:?}");
    for id in sources {
        node.volumes.set_overfull(id, false);
    }
    api.ready("before", &content).await?;
    node.bound("copy").await?;
    api.group_status(&group, |status| status["readyToUse"] == true).await?;
    api.gone("before", &content).await?;
    api.group_gone("both", &group).await?;
    node.end().await
}

pub async fn a_snapshot_is_ready_before_its_blocks_are_copied(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (mut node, api, source) = with_data(&cluster, "copied-later").await?;
    let state = |node: &Node, id: &VolumeId| node.volumes.record(id).map(|record| record.state);
    node.volumes.set_passes(u32::MAX);
    let mut contents = Vec::new();
    for (name, policy) in [("kept", "Retain"), ("ended", "Delete"), ("restored", "Delete")] {
        let content = api.create(name, Some(&node.name), source.clone(), json!({"deletionPolicy": policy})).await?;
        api.ready(name, &content.name_any()).await?;
        assert_eq!(state(&node, &snapshot_of(&content)?), Some(State::Complete), "{name}");
        contents.push(content);
    }
    let [kept, ended, restored] = &contents[..] else { return Err("three contents".into()) };
    // A deletion ends the copy, and policy Retain keeps the data.
    api.gone("ended", &ended.name_any()).await?;
    assert_eq!(node.volumes.record(&snapshot_of(ended)?), None);
    api.gone("kept", &kept.name_any()).await?;
    node.halt().await?;
    node.run().await?;
    let kept = snapshot_of(kept)?;
    node.orphan_event(&kept).await?;
    assert_eq!(state(&node, &kept), Some(State::Complete));
    // A restored claim waits.
    node.claim_here("from-snapshot", restored_from("restored")).await?;
    node.event_with("from-snapshot", "ProvisioningFailed", &["are still being copied"]).await?;
    // On an overcommitted disk, the copy waits for space.
    node.volumes.set_full(true);
    node.event_with(&node.name, "SnapshotCopyFailed", &["cannot be copied", "the snapshot stays"]).await?;
    node.volumes.set_passes(0);
    node.volumes.set_full(false);
    let all = [kept.clone(), snapshot_of(restored)?];
    until("the end of both copies", async || {
        let states = all.each_ref().map(|id| state(&node, id));
        Ok((states != [Some(State::Announced); 2]).then(|| format!("{states:?}")))
    })
    .await?;
    node.bound("from-snapshot").await?;
    // Another content shows the data that was retained, and removes it.
    let again = api.create("again", None, json!({"snapshotHandle": kept.as_str()}), json!({})).await?;
    api.ready("again", &again.name_any()).await?;
    api.gone("again", &again.name_any()).await?;
    removed(&node, &kept).await?;
    api.gone("restored", &restored.name_any()).await?;
    node.end().await
}

pub async fn a_retained_snapshot_is_shown_by_a_content_made_by_hand(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (node, api, source) = with_data(&cluster, "retained").await?;
    let content = api.create("first", Some(&node.name), source.clone(), json!({"deletionPolicy": "Retain"})).await?;
    let id = snapshot_of(&content)?;
    let first = api.ready("first", &content.name_any()).await?;
    api.gone("first", &content.name_any()).await?;
    assert!(node.volumes.record(&id).is_some_and(|record| record.state.is_reported()));
    // The content has no label: the node of the snapshot sets it.
    let handle = json!({"snapshotHandle": id.as_str()});
    let content = api.create("again", None, handle.clone(), json!({})).await?;
    let second = api.ready("again", &content.name_any()).await?;
    assert_eq!(second, first, "the instant and the size stay");
    let found = api.contents.get(&content.name_any()).await?;
    assert_eq!(found.labels().get(MANAGED_BY), Some(&node.name));
    // A content of a volume has no label either if the snapshot controller runs without its option. The first such
    // content is reported.
    let bare = api.create("bare", None, source.clone(), json!({})).await?.name_any();
    api.ready("bare", &bare).await?;
    node.event_with(&node.name, "SnapshotsNotDistributed", &[&bare, "--enable-distributed-snapshotting"]).await?;
    let metrics = TextEncoder::new().encode_to_string(&node.registry.gather())?;
    let line = r#"granary_snapshot_requirements_missing{requirement="distribution"} 1"#;
    assert!(metrics.lines().any(|found| found == line), "{line} in:\n{metrics}");
    api.gone("bare", &bare).await?;
    // A second content protects the snapshot.
    let other = api.create("other", Some(&node.name), handle, json!({"deletionPolicy": "Retain"})).await?;
    api.ready("other", &other.name_any()).await?;
    api.delete("again", &content.name_any()).await?;
    node.event_with(&content.name_any(), "SnapshotDeleteError", &[&other.name_any(), "Retain"]).await?;
    api.gone("other", &other.name_any()).await?;
    removed(&node, &id).await?;

    // Regression: of two contents that were deleted, as with their namespace, each protected the snapshot, and neither
    // was removed.
    let one = api.create("one", Some(&node.name), source, json!({})).await?;
    api.ready("one", &one.name_any()).await?;
    let id = snapshot_of(&one)?;
    let two = api.create("two", Some(&node.name), json!({"snapshotHandle": id.as_str()}), json!({})).await?;
    api.ready("two", &two.name_any()).await?;
    api.delete("one", &one.name_any()).await?;
    api.gone("two", &two.name_any()).await?;
    removed(&node, &id).await?;
    gone(&api.contents, &one.name_any()).await?;
    node.end().await
}

/// Regression: root on a worker could keep all nodes from removing snapshots, by a content of its own for each.
pub async fn a_content_of_another_node_does_not_keep_a_snapshot(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (node, api, source) = with_data(&cluster, "foreign-content").await?;
    let content = api.create("before", Some(&node.name), source, json!({})).await?;
    let (name, id) = (content.name_any(), snapshot_of(&content)?);
    api.ready("before", &name).await?;
    let other = api.create("other", Some("another"), json!({"snapshotHandle": id.as_str()}), json!({})).await?;
    api.gone("before", &name).await?;
    assert_eq!(node.volumes.record(&id), None);
    api.force("other", &other.name_any()).await?;
    node.end().await
}

pub async fn what_cannot_be_taken_is_reported_in_status_and_events(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (node, api, source) = with_data(&cluster, "untaken").await?;
    let volume = source["volumeHandle"].clone();
    let files = node.volume("files", json!({})).await?;
    let live = node.volumes.live();
    // The disk has too little free space for a snapshot, and the files of a volume take longer than any pause.
    let (data, hog): (VolumeId, VolumeId) = (volume.as_str().unwrap_or_default().parse()?, "pvc-hog".parse()?);
    let record = node.volumes.record(&data).ok_or("a record")?;
    node.volumes.put(&hog, Record { size: Bytes::new(96 << 30), ..record });
    node.volumes.set_late(true);
    api.create_class("brief", json!({"maxPause": "600ms"})).await?;
    api.create_class("paused", json!({"maxPause": "2 s"})).await?;
    api.create_class("unclear", json!({"thin": "yes"})).await?;
    let of_class = |class: &str| json!({"volumeSnapshotClassName": class});
    for (name, source, more, words) in [
        ("full", source.clone(), json!({}), "(inodes and extent maps included), the data disk has"),
        (
            "late",
            json!({"volumeHandle": files.as_str()}),
            json!({"sourceVolumeMode": "Filesystem", "volumeSnapshotClassName": "brief"}),
            "would be frozen for more than 600ms; raise maxPause in the VolumeSnapshotClass",
        ),
        (
            "paused",
            source.clone(),
            of_class("paused"),
            "the VolumeSnapshotClass paused has the parameter maxPause with",
        ),
        ("unclear", source.clone(), of_class("unclear"), "the VolumeSnapshotClass unclear has the parameter thin with"),
        ("classless", source, of_class("none"), "the VolumeSnapshotClass none does not exist; create it"),
        ("none", json!({"volumeHandle": "pvc-none"}), json!({}), "volume pvc-none does not exist on this node"),
        ("unknown", json!({"snapshotHandle": "snapshot-none"}), json!({}), "snapshot snapshot-none does not exist"),
        // A volume is not a snapshot: the deletion of the content must not remove it.
        ("volume", json!({"snapshotHandle": volume}), json!({}), "does not exist on this node, or is not ready"),
    ] {
        let content = api.create(name, Some(&node.name), source, more).await?;
        let failed = |status: &Value| status["error"]["message"].as_str().is_some_and(|text| text.contains(words));
        let status = api.status(&content.name_any(), failed).await?;
        assert_eq!(status["readyToUse"], false);
        node.event_with(name, "SnapshotCreationFailed", &[words]).await?;
        if name == "volume" {
            api.delete(name, &content.name_any()).await?;
            node.event(&content.name_any(), "SnapshotDeleteError").await?;
            merge(&api.contents, &content.name_any(), json!({"spec": {"deletionPolicy": "Retain"}})).await?;
            gone(&api.contents, &content.name_any()).await?;
        } else {
            api.gone(name, &content.name_any()).await?;
        }
    }
    // An error can contain the path of a file: 32 KiB that a tenant chose.
    let content = api.create("long", Some(&node.name), json!({"volumeHandle": "x".repeat(5000)}), json!({})).await?;
    let shortened = |status: &Value| status["error"]["message"].as_str().is_some_and(|text| text.len() <= 1000);
    api.status(&content.name_any(), shortened).await?;
    api.gone("long", &content.name_any()).await?;
    node.volumes.lose(&hog);
    assert_eq!(node.volumes.live(), live);
    node.claim_here("early", restored_from("none")).await?;
    node.event_with("early", "ProvisioningFailed", &["snapshot untaken/none", "does not exist"]).await?;
    node.end().await
}

/// Regression: removals of snapshots with many files took the passes over all contents.
pub async fn snapshots_are_taken_while_removals_take_long(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (mut node, api, source) = with_data(&cluster, "slow-removal").await?;
    let mut contents = Vec::new();
    // More snapshots than passes at once.
    for number in 0..=Settings::PARALLEL.get() {
        let name = format!("former-{number}");
        let content = api.create(&name, Some(&node.name), source.clone(), json!({})).await?;
        api.ready(&name, &content.name_any()).await?;
        contents.push((name, content));
    }
    // Removals share a list of the contents, and so begin together.
    node.halt().await?;
    node.volumes.hold(true);
    for (name, content) in &contents {
        api.delete(name, &content.name_any()).await?;
    }
    node.run().await?;
    let content = api.create("late", Some(&node.name), source, json!({})).await?;
    api.ready("late", &content.name_any()).await?;
    node.volumes.hold(false);
    api.gone("late", &content.name_any()).await?;
    for (_, content) in &contents {
        removed(&node, &snapshot_of(content)?).await?;
    }
    node.end().await
}

pub async fn snapshots_without_a_content_are_removed_or_reported(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (mut node, api, source) = with_data(&cluster, "abandoned").await?;
    let mut contents = Vec::new();
    for name in ["kept", "orphan"] {
        let content = api.create(name, Some(&node.name), source.clone(), json!({})).await?;
        api.ready(name, &content.name_any()).await?;
        contents.push(content);
    }
    node.volumes.set_passes(u32::MAX);
    let begun = api.create("begun", Some(&node.name), source, json!({})).await?;
    api.ready("begun", &begun.name_any()).await?;
    let [kept, orphan] = &contents[..] else { return Err("two contents".into()) };
    node.halt().await?;
    api.force("orphan", &orphan.name_any()).await?;
    api.force("begun", &begun.name_any()).await?;
    // The process ended before the snapshot was complete.
    let record = node.volumes.record(&snapshot_of(&begun)?).ok_or("a record")?;
    node.volumes.put(&snapshot_of(&begun)?, Record { state: State::Staged, ..record });
    // Regression: root on a worker could keep the snapshot, by a content of its own.
    let handle = json!({"snapshotHandle": snapshot_of(&begun)?.as_str()});
    let foreign = api.create("foreign", Some("another"), handle, json!({})).await?;
    node.run().await?;
    removed(&node, &snapshot_of(&begun)?).await?;
    api.force("foreign", &foreign.name_any()).await?;
    let (kept_id, orphan_id) = (snapshot_of(kept)?, snapshot_of(orphan)?);
    let note = node.orphan_event(&orphan_id).await?;
    assert!(note.contains("sourceVolumeMode Block") && note.contains("has no VolumeSnapshotContent"), "{note}");
    assert!([&kept_id, &orphan_id].into_iter().all(|id| node.volumes.record(id).is_some()));
    node.volumes.set_passes(0);
    api.gone("kept", &kept.name_any()).await?;
    node.end().await
}

/// A tenant with all rights on claims and snapshots of its namespace, also on their statuses, names those of another
/// namespace.
pub async fn no_claim_gets_the_content_of_another_namespace(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (mut node, api, source) = with_data(&cluster, "lender").await?;
    let content = api.create("before", Some(&node.name), source, json!({})).await?.name_any();
    api.ready("before", &content).await?;
    create(&Api::<Namespace>::all(node.admin.clone()), json!({"metadata": {"name": "thief"}})).await?;
    node.namespace = "thief".to_owned();
    // The snapshot names the content of the owner, which names the snapshot of the owner.
    let thief = SnapshotApi::of(node.admin.clone(), "thief");
    let stolen = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": "stolen"},
        "spec": {"source": {"volumeSnapshotContentName": content}},
    });
    create(&thief.snapshots, stolen).await?;
    let bound = json!({"status": {"boundVolumeSnapshotContentName": content, "readyToUse": true}});
    merge_status(&thief.snapshots, "stolen", bound).await?;
    let own = node.volume("own", json!({"volumeMode": "Block"})).await?;
    let live = node.volumes.live();
    let cloned =
        |claim: &str| json!({"volumeMode": "Block", "dataSource": {"kind": "PersistentVolumeClaim", "name": claim}});
    for (name, spec, words) in [
        ("claim", cloned("data"), "claim thief/data, which does not exist"),
        ("path", cloned("../../lender/persistentvolumeclaims/data"), "/data, which does not exist"),
        ("restored", restored_from("before"), "snapshot thief/before, which does not exist"),
        ("restored-path", restored_from("../../lender/volumesnapshots/before"), "/before, which does not exist"),
        ("restored-stolen", restored_from("stolen"), "snapshot thief/stolen, which is not ready"),
    ] {
        node.claim_here(name, spec).await?;
        node.event_with(name, "ProvisioningFailed", &[words]).await?;
    }
    for (snapshot, words) in [
        ("before", "snapshot before, which does not exist"),
        ("../../lender/volumesnapshots/before", "/before, which does not exist"),
        ("stolen", "snapshot stolen, which is not ready"),
    ] {
        merge(&node.claims(), "own", json!({"metadata": {"annotations": {RESTORE_FROM: snapshot}}})).await?;
        node.note("own", None, &[words]).await?;
    }
    assert_eq!(node.volumes.live(), live, "nothing is created");
    assert_eq!(node.volumes.source(&own), None);
    node.claims().delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    until("the end of the thief's claims", async || {
        let left = node.claims().list(&ListParams::default()).await?.items.len();
        Ok((left != 0).then(|| left.to_string()))
    })
    .await?;
    thief.snapshots.delete("stolen", &DeleteParams::default()).await?;
    node.namespace = "lender".to_owned();
    api.gone("before", &content).await?;
    node.end().await
}

/// Asserts that the policy of contents denied the request.
pub fn denied(answer: Result<(), kube::Error>) {
    assert!(
        matches!(&answer, Err(kube::Error::Api(status)) if status.message.contains("a node ")
            && status.message.contains("contents of local.granary.dev")),
        "{answer:?}"
    );
}

pub async fn a_node_writes_only_contents_that_it_serves(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let api = SnapshotApi::install(&cluster, "default").await?;
    crate::node::reconcile(&cluster).await?;
    let own = SnapshotApi::of(cluster.client(Identity::Storage).await?, "default");
    let (node, source) = (cluster.node(), json!({"volumeHandle": "pvc-1"}));
    let mut names = Vec::new();
    for (name, label) in [("own", Some(node)), ("bare", None), ("foreign", Some("another"))] {
        names.push(api.create(name, label, source.clone(), json!({})).await?.name_any());
    }
    let [mine, bare, foreign] = &names[..] else { return Err("three contents".into()) };
    let status = |handle: Value| json!({"status": {"snapshotHandle": handle, "readyToUse": true}});
    let uid = api.contents.get(mine).await?.uid().unwrap_or_default();
    let handle = Value::from(format!("snapshot-{uid}"));
    let write_status = async |name: &str, status: Value| merge_status(&own.contents, name, status).await.map(drop);
    let write =
        async |name: &str, metadata: Value| merge(&own.contents, name, json!({"metadata": metadata})).await.map(drop);
    accepted("the rights on contents", async || write_status(mine, status(handle.clone())).await).await?;
    denied(write_status(foreign, status(handle.clone())).await);
    denied(write_status(bare, status(handle)).await);
    denied(write_status(mine, status("snapshot-of-another".into())).await);
    let label = |node: &str| json!({"labels": {MANAGED_BY: node}});
    denied(write(foreign, label(node)).await);
    denied(write(bare, label("another")).await);
    write(bare, label(node)).await?;
    denied(write(mine, label("another")).await);
    denied(write(mine, json!({"annotations": {"a": "b"}})).await);
    denied(write(mine, json!({"labels": {"a": "b"}})).await);
    denied(write(mine, json!({"finalizers": []})).await);
    denied(write(mine, json!({"finalizers": [PROTECTION, "example.invalid/other"]})).await);
    denied(merge(&own.contents, mine, json!({"spec": {"deletionPolicy": "Retain"}})).await.map(drop));
    // The role of the node has no such rights.
    for content in &names {
        forbidden(own.contents.delete(content, &DeleteParams::default()).await.map(drop));
    }
    forbidden(merge_status(&own.snapshots, "foreign", json!({"status": {"readyToUse": true}})).await);
    forbidden(own.snapshots.delete("foreign", &DeleteParams::default()).await.map(drop));
    forbidden(own.classes.delete("local", &DeleteParams::default()).await.map(drop));
    for (name, content) in ["own", "bare", "foreign"].into_iter().zip(&names) {
        api.delete(name, content).await?;
    }
    denied(write(foreign, json!({"finalizers": []})).await);
    write(mine, json!({"finalizers": []})).await?;
    for content in [bare, foreign] {
        merge(&api.contents, content, json!({"metadata": {"finalizers": null}})).await?;
    }
    Ok(())
}
