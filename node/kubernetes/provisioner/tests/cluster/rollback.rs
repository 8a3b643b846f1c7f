//! Claims return to snapshots. The tests act as the snapshot controller.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use cluster::claim::{RESTORE_FROM, ROLLBACK};
use cluster::snapshot::group::HANDLE;
use cluster::snapshot::{MANAGED_BY, PROTECTION};
use envtest::{Cluster, Failure, SnapshotApi, create, denied, merge, merge_status};
use fsquota::ProjectId;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use provisioner::Settings;
use serde_json::{Value, json};
use units::Bytes;
use volume::{
    Allocation, Claim, Cloning, Mode, Owner, Record, Rollback, RollbackRequest, Sharing, State, VolumeId, Volumes,
};

use crate::capacity::metric;
use crate::node::{Node, until};

pub mod quota;

/// A node with a bound claim `data`, and its snapshot `before`.
struct Fixture {
    node: Node,
    api: SnapshotApi,
    volume: VolumeId,
    snapshot: VolumeId,
}

async fn take(node: &Node, api: &SnapshotApi, name: &str, volume: &VolumeId) -> Result<VolumeId, Failure> {
    let content = api.create(name, Some(&node.name), json!({"volumeHandle": volume.as_str()}), json!({})).await?;
    api.ready(name, &content.name_any()).await?;
    Ok(format!("snapshot-{}", content.uid().unwrap_or_default()).parse()?)
}

fn snapshot_of(name: &str, source: Value) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": name},
        "spec": {"source": source},
    })
}

/// A VolumeSnapshotContent of a node, with this ID and the VolumeSnapshot of this claim.
fn content_of(node: &str, policy: &str, id: &str, namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {"name": id, "labels": {MANAGED_BY: node}},
        "spec": {
            "driver": "local.granary.dev", "deletionPolicy": policy, "source": {"snapshotHandle": id},
            "volumeSnapshotRef": {"namespace": namespace, "name": name},
        },
    })
}

impl Fixture {
    async fn new(cluster: &Cluster, namespace: &str) -> Result<Self, Failure> {
        Self::with_mode(cluster, namespace, "Block").await
    }

    async fn with_mode(cluster: &Cluster, namespace: &str, mode: &str) -> Result<Self, Failure> {
        Self::on(Node::apart(cluster, namespace).await?, cluster, mode).await
    }

    async fn on(mut node: Node, cluster: &Cluster, mode: &str) -> Result<Self, Failure> {
        let api = SnapshotApi::install(cluster, &node.namespace).await?;
        node.run().await?;
        let volume = node.volume("data", json!({"volumeMode": mode})).await?;
        let snapshot = take(&node, &api, "before", &volume).await?;
        Ok(Self { node, api, volume, snapshot })
    }

    async fn annotate(&self, annotations: Value) -> Result<(), Failure> {
        merge(&self.node.claims(), "data", json!({"metadata": {"annotations": annotations}})).await?;
        Ok(())
    }

    async fn annotation(&self, key: &str) -> Result<Option<String>, kube::Error> {
        Ok(self.node.claims().get("data").await?.annotations().get(key).cloned())
    }

    /// Requests a rollback, and waits until the content is copied. Returns the kept snapshot.
    async fn begin_to_copy(&self) -> Result<VolumeId, Failure> {
        self.node.volumes.set_passes(u32::MAX);
        self.begin().await?;
        let kept: VolumeId = self.annotation(ROLLBACK).await?.unwrap_or_default().parse()?;
        self.copied(&kept).await?;
        Ok(kept)
    }

    /// Requests a rollback, and waits until the node has begun it.
    async fn begin(&self) -> Result<(), Failure> {
        self.annotate(json!({RESTORE_FROM: "before"})).await?;
        until("the annotation of the node", async || {
            Ok(self.annotation(ROLLBACK).await?.is_none().then(|| "none".to_owned()))
        })
        .await
    }

    async fn copied(&self, kept: &VolumeId) -> Result<(), Failure> {
        until("the copy", async || Ok(self.node.volumes.record(kept).is_none().then(|| "none".to_owned()))).await
    }

    /// Ends the process while the content is copied. Returns the kept snapshot and the claim of its record.
    async fn end_within_the_copy(&mut self) -> Result<(VolumeId, Claim), Failure> {
        let kept = self.begin_to_copy().await?;
        self.node.halt().await?;
        let record = self.node.volumes.record(&kept).ok_or("a record")?;
        Ok((kept, record.claim))
    }

    /// Exchanges the content, as a process that ends before its next request to the API server.
    fn exchange(&self, kept: &VolumeId, claim: Claim) -> Result<(), Failure> {
        self.node.volumes.set_passes(0);
        let want = RollbackRequest { claim, volume: self.volume.clone(), source: self.snapshot.clone() };
        let disk: &dyn Volumes = &*self.node.volumes;
        disk.roll_back(kept, &want)?;
        Ok(())
    }

    async fn ended(&self) -> Result<(), Failure> {
        until("the end of the request", async || {
            let found = self.node.claims().get("data").await?;
            let keys = [RESTORE_FROM, ROLLBACK].map(|key| found.annotations().get(key).cloned());
            Ok((keys != [None, None]).then(|| format!("{keys:?}")))
        })
        .await
    }

    async fn kept(&self, snapshot: &str) -> Result<DynamicObject, Failure> {
        let found = self.api.snapshots.get(snapshot).await?;
        let name = found.data["spec"]["source"]["volumeSnapshotContentName"].as_str().unwrap_or_default().to_owned();
        // Bind both objects as the controller does: they name each other, and the content has the finalizer.
        let bound =
            json!({"metadata": {"finalizers": [PROTECTION]}, "spec": {"volumeSnapshotRef": {"uid": found.uid()}}});
        let content = merge(&self.api.contents, &name, bound).await?;
        merge_status(&self.api.snapshots, snapshot, json!({"status": {"boundVolumeSnapshotContentName": name}}))
            .await?;
        self.api.ready(snapshot, &name).await?;
        Ok(content)
    }

    async fn name_of_kept(&self) -> Result<String, Failure> {
        let note = self.node.event("data", "RolledBack").await?;
        let words: Vec<&str> = note.split_whitespace().collect();
        let name = words.iter().find(|word| word.contains("-before-rollback-"));
        Ok((*name.ok_or(note.as_str())?).to_owned())
    }

    async fn end(self) -> Result<(), Failure> {
        for content in self.api.contents.list(&ListParams::default()).await? {
            let of = &content.data["spec"]["volumeSnapshotRef"];
            if of["namespace"] == self.node.namespace.as_str() {
                self.api.force(of["name"].as_str().unwrap_or_default(), &content.name_any()).await?;
            }
        }
        self.node.end().await
    }
}

pub async fn a_claim_returns_to_a_snapshot_and_back(cluster: Arc<Cluster>) -> Result<(), Failure> {
    returns_and_back(Fixture::new(&cluster, "rollback").await?).await
}

pub async fn files_return_to_a_snapshot_and_back(cluster: Arc<Cluster>) -> Result<(), Failure> {
    returns_and_back(Fixture::with_mode(&cluster, "rollback-files", "Filesystem").await?).await
}

async fn returns_and_back(fixture: Fixture) -> Result<(), Failure> {
    let Fixture { node, api, volume, .. } = &fixture;
    node.volumes.set_passes(2);
    let former = node.volumes.record(volume).ok_or("a record")?.project;
    fixture.annotate(json!({RESTORE_FROM: "before"})).await?;
    node.event_with("data", "RollbackStarted", &["snapshot before", "To cancel"]).await?;
    fixture.ended().await?;
    node.event_with("data", "RolledBack", &["content of snapshot before", "to undo"]).await?;
    assert_eq!(node.volumes.source(volume), Some(fixture.snapshot.clone()));
    let name = fixture.name_of_kept().await?;
    assert!(name.starts_with("data-before-rollback-"), "{name}");
    let content = fixture.kept(&name).await?;
    assert_eq!(content.labels().get(MANAGED_BY), Some(&node.name));
    let mode = node.claims().get("data").await?.spec.and_then(|spec| spec.volume_mode);
    assert_eq!(content.data["spec"]["sourceVolumeMode"].as_str(), mode.as_deref());
    let kept: VolumeId = content.name_any().parse()?;
    let record = node.volumes.record(&kept).ok_or("a record")?;
    assert_eq!((record.project, record.state, record.rollback()), (former, State::Announced, None));

    // Undo the rollback: the kept snapshot is one of the claim's snapshots.
    fixture.annotate(json!({RESTORE_FROM: name})).await?;
    fixture.ended().await?;
    until("the former content", async || {
        let source = node.volumes.source(volume);
        Ok((source.as_ref() != Some(&kept)).then(|| format!("{source:?}")))
    })
    .await?;
    // Confirm the rollback by the deletion of the kept snapshot.
    api.gone(&name, &content.name_any()).await?;
    assert_eq!(node.volumes.record(&kept), None);
    fixture.end().await
}

pub async fn a_rollback_waits_until_no_pod_has_the_volume(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let fixture = Fixture::new(&cluster, "rollback-waits").await?;
    let Fixture { node, volume, .. } = &fixture;
    let target = Path::new("/var/lib/kubelet/pods/7/volumeDevices/data");
    node.volumes.set_published(volume, Some(target));
    fixture.annotate(json!({RESTORE_FROM: "before"})).await?;
    let note = node.event("data", "RollbackWaiting").await?;
    assert!(
        note.contains("waits until no pod") && note.contains("/pods/7/") && note.contains("delete the pod"),
        "{note}"
    );
    assert_eq!(node.volumes.source(volume), None);
    // Cancel the rollback.
    fixture.annotate(json!({RESTORE_FROM: null})).await?;
    fixture.ended().await?;
    until("the end of the copy", async || {
        let records = node.volumes.live();
        Ok((records.len() != 2).then(|| format!("{records:?}")))
    })
    .await?;
    // Request the rollback again, and let it complete.
    fixture.begin().await?;
    let in_use = r#"granary_volume_operations_total{operation="roll_back",result="in_use"}"#;
    let passes = || metric(node, in_use).ok().flatten().unwrap_or_default();
    let before = passes();
    until("five more passes", async || {
        let more = passes() - before;
        Ok((more < 5.0).then(|| more.to_string()))
    })
    .await?;
    // By the back-off alone, the next pass would follow after 8 seconds or more.
    let begin = Instant::now();
    node.volumes.set_published(volume, None);
    fixture.ended().await?;
    assert!(begin.elapsed() < Duration::from_millis(7500), "{:?}", begin.elapsed());
    assert_eq!(node.volumes.source(volume), Some(fixture.snapshot.clone()));
    fixture.end().await
}

pub async fn a_rollback_waits_for_the_end_of_a_clone_with_an_event(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let fixture = Fixture::new(&cluster, "rollback-shared").await?;
    let Fixture { node, volume, .. } = &fixture;
    let record = node.volumes.record(volume).ok_or("a record")?;
    let clone: VolumeId = "pvc-clone".parse()?;
    let cloning = Some(Cloning::new(volume.clone(), record.size));
    // The clone is of a client that has ended.
    let owner = Owner::Controller { source: Some(volume.clone()) };
    node.volumes.put(&clone, Record { owner, cloning, state: State::Staged, ..record });
    fixture.annotate(json!({RESTORE_FROM: "before"})).await?;
    node.event_with("data", "RollbackWaiting", &["no clone or snapshot of the volume is being created"]).await?;
    assert_eq!(node.volumes.source(volume), None);
    node.volumes.lose(&clone);
    fixture.ended().await?;
    assert_eq!(node.volumes.source(volume), Some(fixture.snapshot.clone()));
    fixture.end().await
}

pub async fn what_cannot_be_rolled_back_is_reported_and_changes_nothing(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let fixture = Fixture::new(&cluster, "unrolled").await?;
    let Fixture { node, api, volume, .. } = &fixture;
    let live = node.volumes.live();
    api.create("other", Some(&node.name), json!({"volumeHandle": "pvc-other"}), json!({})).await?;
    api.create("far", Some("another"), json!({"volumeHandle": volume.as_str()}), json!({})).await?;
    for (snapshot, words) in [
        ("none", "claim unrolled/data cannot be rolled back to snapshot none, which does not exist"),
        ("other", "snapshot other, which is not a snapshot of this claim; create a claim from it"),
        ("far", "snapshot far, which is on node another"),
        // No request can have such a name in its path.
        ("", "rolled back to snapshot , which does not exist"),
        ("not a name", "snapshot not a name, which does not exist"),
    ] {
        fixture.annotate(json!({RESTORE_FROM: snapshot})).await?;
        node.note("data", None, &[words]).await?;
    }
    assert_eq!(fixture.annotation(ROLLBACK).await?, None);
    assert_eq!(node.volumes.live(), live);
    fixture.annotate(json!({RESTORE_FROM: null})).await?;

    // The disk has no space for the copy.
    node.volumes.put(&"pvc-hog".parse()?, {
        let record = node.volumes.record(volume).ok_or("a record")?;
        volume::Record { size: Bytes::new(97 << 30), ..record }
    });
    fixture.annotate(json!({RESTORE_FROM: "before"})).await?;
    node.note("data", None, &["the data disk has"]).await?;
    fixture.annotate(json!({RESTORE_FROM: null})).await?;
    fixture.ended().await?;
    node.volumes.lose(&"pvc-hog".parse()?);
    assert_eq!(node.volumes.live(), live);
    fixture.end().await
}

/// Regression: the node accepted a VolumeSnapshot of another user as the one of the former content. That content had no
/// VolumeSnapshot then, and stayed on the disk when the user deleted the supposed kept snapshot.
pub async fn a_snapshot_of_the_kept_name_delays_the_end_of_a_rollback(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut fixture = Fixture::new(&cluster, "rollback-name").await?;
    let (kept, claim) = fixture.end_within_the_copy().await?;
    // The ID on the claim has the number of the name.
    let name = format!("data-before-rollback-{}", kept.as_str().rsplit('-').next().unwrap_or_default());
    let other = snapshot_of(&name, json!({"persistentVolumeClaimName": "data"}));
    create(&fixture.api.snapshots, other).await?;
    fixture.exchange(&kept, claim)?;
    fixture.node.run().await?;
    fixture.node.event_with("data", "RollbackFailed", &[&name, "delete it"]).await?;
    assert_eq!(fixture.annotation(ROLLBACK).await?.as_deref(), Some(kept.as_str()), "the request has not ended");
    fixture.api.snapshots.delete(&name, &DeleteParams::default()).await?;
    fixture.ended().await?;
    assert_eq!(fixture.kept(&name).await?.name_any(), kept.as_str());
    fixture.end().await
}

/// Root on another node reads the ID on the claim, and creates the content of the kept snapshot as one of its own.
pub async fn a_content_of_another_node_delays_the_end_of_a_rollback(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut fixture = Fixture::new(&cluster, "rollback-content").await?;
    let (kept, claim) = fixture.end_within_the_copy().await?;
    let foreign = content_of("another", "Delete", kept.as_str(), &claim.namespace, &claim.name);
    create(&fixture.api.contents, foreign).await?;
    fixture.exchange(&kept, claim)?;
    fixture.node.run().await?;
    fixture.node.event_with("data", "RollbackFailed", &[&format!("content {kept} exists"), "delete it"]).await?;
    assert_eq!(fixture.annotation(ROLLBACK).await?.as_deref(), Some(kept.as_str()), "the request has not ended");
    fixture.api.contents.delete(kept.as_str(), &DeleteParams::default()).await?;
    fixture.ended().await?;
    let found = fixture.api.contents.get(kept.as_str()).await?;
    assert_eq!(found.labels().get(MANAGED_BY), Some(&fixture.node.name));
    fixture.end().await
}

/// The owner of the claim writes the node's annotation, with the ID of a snapshot that an earlier rollback has kept.
pub async fn a_kept_snapshot_that_a_user_annotates_stays(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let fixture = Fixture::new(&cluster, "rollback-annotated").await?;
    let Fixture { node, volume, .. } = &fixture;
    fixture.annotate(json!({RESTORE_FROM: "before"})).await?;
    fixture.ended().await?;
    let name = fixture.name_of_kept().await?;
    let kept: VolumeId = fixture.kept(&name).await?.name_any().parse()?;
    let records = || [volume, &kept].map(|id| node.volumes.record(id));
    let before = records();
    assert!(before.iter().all(Option::is_some), "{before:?}");
    // The annotation is like that of a rollback to cancel, which would remove its copy.
    fixture.annotate(json!({ROLLBACK: kept.as_str()})).await?;
    fixture.ended().await?;
    assert_eq!(records(), before);
    // The annotations are like those of a rollback that has begun, which would be exchanged.
    fixture.annotate(json!({RESTORE_FROM: "before", ROLLBACK: kept.as_str()})).await?;
    node.event_with("data", "RollbackFailed", &["claim rollback-annotated/data-before-rollback-"]).await?;
    fixture.annotate(json!({RESTORE_FROM: null, ROLLBACK: null})).await?;
    fixture.ended().await?;
    assert_eq!(records(), before);
    fixture.end().await
}

/// The volume was expanded while the content was copied.
pub async fn a_rollback_of_an_expanded_volume_begins_again(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut fixture = Fixture::new(&cluster, "rollback-grown").await?;
    let (kept, _) = fixture.end_within_the_copy().await?;
    let record = fixture.node.volumes.record(&kept).ok_or("the copy")?;
    let size = record.size;
    fixture.node.volumes.put(&kept, Record { size: Bytes::new(size.get() / 2), ..record });
    fixture.node.volumes.set_passes(0);
    fixture.node.run().await?;
    fixture.ended().await?;
    fixture.name_of_kept().await?;
    let sizes = [&fixture.volume, &kept].map(|id| fixture.node.volumes.record(id).map(|record| record.size));
    assert_eq!(sizes, [Some(size); 2]);
    fixture.end().await
}

/// The process ended after the content was exchanged, before the request on the claim was ended.
pub async fn an_interrupted_rollback_is_served_once(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut fixture = Fixture::new(&cluster, "rollback-cut").await?;
    let (kept, claim) = fixture.end_within_the_copy().await?;
    fixture.exchange(&kept, claim)?;
    // A second exchange would change the project.
    let project = fixture.node.volumes.record(&fixture.volume).map(|record| record.project);
    fixture.node.run().await?;
    fixture.ended().await?;
    let found = fixture.node.volumes.record(&fixture.volume).map(|record| record.project);
    assert_eq!(found, project, "exchanged once");
    fixture.name_of_kept().await?;
    fixture.end().await
}

/// The process ended after the content was exchanged, and a user named another snapshot before the next pass.
pub async fn a_request_for_another_snapshot_is_served_afterwards(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut fixture = Fixture::new(&cluster, "rollback-other").await?;
    let other = take(&fixture.node, &fixture.api, "other", &fixture.volume).await?;
    let (kept, claim) = fixture.end_within_the_copy().await?;
    fixture.exchange(&kept, claim)?;
    assert_eq!(fixture.node.volumes.source(&fixture.volume), Some(fixture.snapshot.clone()));
    fixture.annotate(json!({RESTORE_FROM: "other"})).await?;
    fixture.node.run().await?;
    fixture.ended().await?;
    assert_eq!(fixture.node.volumes.source(&fixture.volume), Some(other));
    let rollback = fixture.node.volumes.record(&kept).ok_or("the former content")?;
    assert_eq!(rollback.rollback(), None);
    fixture.end().await
}

/// A user has removed both annotations while the content was copied, and then after it was exchanged.
pub async fn a_rollback_without_a_request_is_ended_by_the_sweep(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut fixture = Fixture::new(&cluster, "rollback-left").await?;
    let (kept, claim) = fixture.end_within_the_copy().await?;
    // The copy stays while the request exists.
    fixture.node.run().await?;
    assert!(fixture.node.volumes.record(&kept).is_some());
    fixture.node.halt().await?;
    fixture.annotate(json!({RESTORE_FROM: null, ROLLBACK: null})).await?;
    fixture.node.run().await?;
    until("the end of the copy", async || Ok(fixture.node.volumes.record(&kept).map(|record| format!("{record:?}"))))
        .await?;

    fixture.node.halt().await?;
    let name = claim.name.clone();
    fixture.exchange(&kept, claim)?;
    fixture.node.run().await?;
    until("the end of the rollback", async || {
        let record = fixture.node.volumes.record(&kept);
        let is_ended = |record: &Record| record.rollback().is_none() && record.state == State::Announced;
        Ok((!record.as_ref().is_some_and(is_ended)).then(|| format!("{record:?}")))
    })
    .await?;
    assert_eq!(fixture.kept(&name).await?.name_any(), kept.as_str(), "the owner can confirm and undo it");
    fixture.end().await
}

/// Regression: removals of unfinished copies with many files took the passes over all claims, and later still those of
/// copies whose volumes were expanded meanwhile.
pub async fn claims_are_served_while_removals_of_copies_take_long(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut fixture = Fixture::new(&cluster, "rollback-slow").await?;
    let Fixture { node, api, .. } = &mut fixture;
    let mut copies = Vec::new();
    // More copies than passes at once. Every second rollback continues, the others are canceled.
    for number in 0..=Settings::PARALLEL.get() {
        let name = format!("data-{number}");
        let volume = node.volume(&name, json!({"volumeMode": "Block"})).await?;
        let uid = node.claims().get(&name).await?.uid().unwrap_or_default();
        let (mut request, mut source) = (None, "snapshot-before".parse::<VolumeId>()?);
        if number % 2 == 1 {
            let snapshot = format!("before-{number}");
            source = take(node, api, &snapshot, &volume).await?;
            request = Some(snapshot);
        }
        copies.push((name, request, volume, source, format!("snapshot-{uid}-1").parse::<VolumeId>()?));
    }
    node.halt().await?;
    for (number, (name, request, volume, source, kept)) in (1000..).zip(&copies) {
        let record = node.volumes.record(volume).ok_or("a record")?;
        let (source, allocation) = (source.clone(), Allocation::Thick);
        let owner = Owner::Rollback(Rollback { volume: volume.clone(), source, project: record.project, allocation });
        let mode = Mode::Snapshot { taken: SystemTime::UNIX_EPOCH, sharing: Sharing::Temporary };
        // Another project than the volume's: the content is not exchanged.
        let project = ProjectId::new(number).ok_or("a project")?;
        // The volume was expanded while the content was copied.
        let size = Bytes::new(record.size.get() / 2);
        node.volumes.put(kept, Record { owner, mode, size, project, state: State::Staged, ..record });
        let annotations = json!({RESTORE_FROM: request, ROLLBACK: kept.as_str()});
        merge(&node.claims(), name, json!({"metadata": {"annotations": annotations}})).await?;
    }
    node.volumes.hold(true);
    node.run().await?;
    node.provisioned("other", json!({})).await?;
    for (name, ..) in &copies {
        merge(&node.claims(), name, json!({"metadata": {"annotations": {RESTORE_FROM: null}}})).await?;
    }
    node.volumes.hold(false);
    for (name, .., kept) in &copies {
        until("the end of the rollback", async || {
            let annotation = node.claims().get(name).await?.annotations().get(ROLLBACK).cloned();
            let found = (annotation, node.volumes.record(kept));
            Ok((found != (None, None)).then(|| format!("{found:?}")))
        })
        .await?;
    }
    fixture.end().await
}

pub async fn a_node_annotates_only_claims_on_it(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let fixture = Fixture::new(&cluster, "rollback-rights").await?;
    let Fixture { node, .. } = &fixture;
    let storage = node.storage.clone();
    let own = Api::<PersistentVolumeClaim>::namespaced(storage.clone(), &node.namespace);
    let uid = node.claims().get("data").await?.uid().unwrap_or_default();
    let kept = format!("snapshot-{uid}-1");
    let write = async |claim: &str, annotations: Value| {
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        let dry = PatchParams { dry_run: true, ..PatchParams::default() };
        own.patch(claim, &dry, &patch).await.map(drop)
    };
    let claims = "begins or ends the rollback of a volume on it";
    write("data", json!({ROLLBACK: kept})).await?;
    denied(write("data", json!({ROLLBACK: "snapshot-other-1"})).await, claims);
    denied(write("data", json!({RESTORE_FROM: "before"})).await, claims);
    denied(write("data", json!({ROLLBACK: kept, "a": "b"})).await, claims);
    node.claim("unbound", json!({})).await?;
    denied(write("unbound", json!({ROLLBACK: kept})).await, claims);
    let api = SnapshotApi::of(storage, &node.namespace);
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    for (name, source) in [
        ("data-before-rollback-1", json!({"persistentVolumeClaimName": "data"})),
        ("data-before-rollback-1", json!({"volumeSnapshotContentName": "snapcontent-1"})),
        ("mine", json!({"volumeSnapshotContentName": kept})),
    ] {
        let snapshot = serde_json::from_value(snapshot_of(name, source))?;
        let created = api.snapshots.create(&dry, &snapshot).await.map(drop);
        denied(created, "creates the snapshots that rollbacks keep");
    }
    let content =
        |node: &str, policy: &str| content_of(node, policy, &kept, "rollback-rights", "data-before-rollback-1");
    for (node, policy) in [("another", "Delete"), (node.name.as_str(), "Retain")] {
        let created = api.contents.create(&dry, &serde_json::from_value(content(node, policy))?).await.map(drop);
        denied(created, "contents of local.granary.dev");
    }
    for (part, field, value) in [
        // A content with this source would take a snapshot.
        ("spec", "source", json!({"volumeHandle": fixture.volume.as_str()})),
        ("spec", "source", json!({"snapshotHandle": "snapshot-other"})),
        ("spec", "driver", "example.invalid".into()),
        ("metadata", "name", "snapcontent-1".into()),
        ("metadata", "labels", json!({MANAGED_BY: node.name, "a": "b"})),
        ("metadata", "annotations", json!({HANDLE: "group-of-another"})),
        ("metadata", "finalizers", json!([PROTECTION])),
    ] {
        let mut attack = content(&node.name, "Delete");
        attack[part][field] = value;
        let created = api.contents.create(&dry, &serde_json::from_value(attack)?).await.map(drop);
        denied(created, "contents of local.granary.dev");
    }
    api.contents.create(&dry, &serde_json::from_value(content(&node.name, "Delete"))?).await?;
    fixture.end().await
}
