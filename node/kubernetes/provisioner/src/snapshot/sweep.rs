//! Compares the snapshots on the disk with the contents in the cluster, as a part of [`crate::sweep`].
//!
//! Only contents that this node serves or will serve count, not those with the label of another node.
//!
//! | on the disk | in the cluster | action |
//! |---|---|---|
//! | staged | content | none: the pass of the content continues |
//! | staged, or in the trash | no content | removed |
//! | complete or announced | no content | an orphan: reported, kept; its blocks are copied nevertheless |
//!
//! The sweep ignores snapshots of CSI's Controller service: their client decides about them.

use std::collections::{BTreeMap, BTreeSet};

use apiclient::is_missing;
use dir::Ensured;
use tracing::info;
use volume::{Owner, Record, State, VolumeId, Volumes};

use crate::context::Provisioner;
use crate::error::{Error, api};
use crate::group::object::GroupContent;
use crate::listing::list_all;
use crate::snapshot::object::Content;
use crate::sweep::round::Failed;

/// Snapshots of which no content exists.
#[derive(Debug, Default, PartialEq, Eq)]
struct Findings {
    removable: BTreeSet<VolumeId>,
    orphans: BTreeSet<VolumeId>,
}

impl Provisioner {
    /// Removes unfinished snapshots, and returns the orphans. The caller has read the disk before this call lists the
    /// contents. If the list fails, the orphans are those of the last comparison.
    pub(crate) async fn sweep_snapshots(
        &self,
        snapshots: &BTreeMap<VolumeId, Record>,
        retired: &BTreeSet<VolumeId>,
        reported: &BTreeSet<VolumeId>,
        failed: &mut Failed,
    ) -> BTreeSet<VolumeId> {
        if snapshots.is_empty() {
            return BTreeSet::new();
        }
        let found = match self.find_unused(snapshots, retired).await {
            Ok(found) => found,
            Err(error) => {
                failed.push((None, error));
                return reported.iter().filter(|id| snapshots.contains_key(*id)).cloned().collect();
            }
        };
        for id in &found.removable {
            let Some(guard) = self.locks.try_lock(id) else { continue };
            let was_retired = retired.contains(id);
            let remove = move |store: &dyn Volumes, id: &VolumeId| {
                // Since its record was read, the snapshot may be complete, and its content deleted with `Retain`.
                let is_staged = || matches!(store.record(id), Ok(Some(record)) if record.state == State::Staged);
                let removed = was_retired || is_staged();
                (if removed { store.remove_snapshot(id) } else { Ok(Ensured::Unchanged(())) }, guard)
            };
            match self.on_volume(id, remove).await {
                Ok((Ok(Ensured::Created(())), _guard)) => {
                    info!(snapshot = %id, "unfinished snapshot without a content removed");
                }
                Ok((Ok(Ensured::Unchanged(())), _guard)) => {}
                Ok((Err(error), _guard)) => failed.push((Some(id.clone()), Error::Store(error))),
                Err(error) => failed.push((Some(id.clone()), error.into())),
            }
        }
        found.orphans
    }

    async fn find_unused(
        &self,
        snapshots: &BTreeMap<VolumeId, Record>,
        retired: &BTreeSet<VolumeId>,
    ) -> Result<Findings, Error> {
        let listed = match list_all(&self.contents).await {
            Ok(contents) => contents,
            // The CRDs were removed with all contents, which proves nothing about a snapshot.
            Err(error) if is_missing(&error) => Vec::new(),
            Err(error) => return Err(api("list the contents of snapshots")(error).into()),
        };
        Ok(findings(snapshots, retired, &listed, &self.all_groups().await?, &self.node))
    }
}

/// If the API server returns no content at all although snapshots are ready, it may have lost its data, or may be that
/// of another cluster. Then nothing is removed.
fn findings(
    snapshots: &BTreeMap<VolumeId, Record>,
    retired: &BTreeSet<VolumeId>,
    contents: &[Content],
    groups: &[GroupContent],
    node: &str,
) -> Findings {
    // Another node can create contents with its own label and any ID.
    let is_served = |label: Option<&str>| label.is_none_or(|served| served == node);
    let groups_here = groups.iter().filter(|group| group.is_of_driver() && is_served(group.node()));
    let here = contents.iter().filter(|content| content.is_of_driver() && is_served(content.node()));
    let known: BTreeSet<VolumeId> =
        here.filter_map(Content::id).chain(groups_here.flat_map(GroupContent::members)).collect();
    let is_plausible =
        !contents.is_empty() || !groups.is_empty() || snapshots.values().all(|record| record.state == State::Staged);
    let mut found = Findings::default();
    let is_managed = |record: &Record| !matches!(record.owner, Owner::Controller { .. });
    for (id, record) in snapshots.iter().filter(|(id, record)| is_managed(record) && !known.contains(id)) {
        let is_removed = record.state == State::Staged || retired.contains(id);
        match (is_removed, is_plausible) {
            (true, true) => drop(found.removable.insert(id.clone())),
            (true, false) => {}
            (false, _) => drop(found.orphans.insert(id.clone())),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use envtest::FakeVolumes;
    use serde_json::json;
    use units::Bytes;
    use volume::{Mode, Sharing};

    use super::*;
    use crate::Metrics;
    use crate::fixture::{self, id};

    const NODE: &str = "one";

    fn record(state: State) -> Record {
        fixture::record(Mode::Snapshot { taken: SystemTime::UNIX_EPOCH, sharing: Sharing::Temporary }, state)
    }

    fn content(uid: &str, driver: &str) -> Content {
        let spec = json!({"driver": driver, "source": {"volumeHandle": "pvc-1"}});
        serde_json::from_value(json!({"metadata": {"uid": uid}, "spec": spec})).expect("a content")
    }

    #[tokio::test]
    async fn a_content_on_a_later_page_keeps_its_snapshot() {
        let contents = ["first", "later"].map(|uid| {
            let spec = json!({"driver": "local.granary.dev", "source": {"volumeHandle": "pvc-1"}});
            json!({"metadata": {"name": uid, "uid": uid}, "spec": spec})
        });
        let client = fixture::client(move |request| {
            let is_list = request.uri().path().ends_with("/volumesnapshotcontents");
            Some(if is_list { fixture::page(&contents, request) } else { fixture::no_kind() })
        });
        let disk = Arc::new(FakeVolumes::with_size(Bytes::GIB));
        let snapshots = ["snapshot-first", "snapshot-later", "snapshot-left"].map(id);
        let snapshots = snapshots.map(|id| (id, record(State::Staged)));
        for (id, record) in &snapshots {
            disk.put(id, record.clone());
        }
        let provisioner = Provisioner::new(client, NODE.to_owned(), disk.clone(), Metrics::default());
        let (none, mut failed) = (BTreeSet::new(), Failed::new());
        provisioner.sweep_snapshots(&snapshots.into(), &none, &none, &mut failed).await;
        assert!(failed.is_empty(), "{failed:?}");
        assert_eq!(disk.live(), ["snapshot-first", "snapshot-later"].map(id));
    }

    /// Regression: the content was deleted with policy Retain after the disk was read, and the sweep removed the data.
    #[tokio::test]
    async fn a_snapshot_that_was_completed_meanwhile_stays() {
        let client = fixture::client(|request| Some(fixture::page(&[], request)));
        let (disk, snapshot) = (Arc::new(FakeVolumes::with_size(Bytes::GIB)), id("snapshot-u"));
        disk.put(&snapshot, record(State::Complete));
        let provisioner = Provisioner::new(client, NODE.to_owned(), disk.clone(), Metrics::default());
        let read = [(snapshot.clone(), record(State::Staged))].into();
        let (none, mut failed) = (BTreeSet::new(), Failed::new());
        provisioner.sweep_snapshots(&read, &none, &none, &mut failed).await;
        assert!(failed.is_empty() && disk.record(&snapshot).is_some(), "{failed:?}");
    }

    #[test]
    fn only_unfinished_snapshots_without_a_content_are_removed() {
        let snapshots = [
            (id("snapshot-begun"), record(State::Staged)),
            (id("snapshot-left"), record(State::Staged)),
            (id("snapshot-ready"), record(State::Announced)),
            (id("snapshot-orphan"), record(State::Announced)),
            (id("snapshot-trash"), record(State::Announced)),
            // Its content was deleted with policy Retain while its blocks were copied.
            (id("snapshot-complete"), record(State::Complete)),
        ];
        let (snapshots, retired) = (BTreeMap::from(snapshots), BTreeSet::from([id("snapshot-trash")]));
        let contents = [content("begun", "local.granary.dev"), content("ready", "local.granary.dev")];
        let found = findings(&snapshots, &retired, &contents, &[], NODE);
        assert_eq!(found.removable, [id("snapshot-left"), id("snapshot-trash")].into());
        assert_eq!(found.orphans, [id("snapshot-complete"), id("snapshot-orphan")].into());
        // A content of another driver does not keep the snapshot.
        let foreign = findings(&snapshots, &retired, &[content("begun", "example.invalid")], &[], NODE);
        assert!(foreign.removable.contains(&id("snapshot-begun")));
    }

    /// Regression: root on a worker could keep the unfinished snapshots of all nodes, by a content of its own for each.
    #[test]
    fn contents_of_other_nodes_keep_no_snapshot() {
        let labelled = |node: &str, mut content: serde_json::Value| {
            content["metadata"]["labels"] = json!({cluster::snapshot::MANAGED_BY: node});
            content
        };
        let content = |node: &str| -> Content {
            let source = json!({"snapshotHandle": "snapshot-begun"});
            let spec = json!({"driver": "local.granary.dev", "source": source});
            serde_json::from_value(labelled(node, json!({"metadata": {"uid": "c"}, "spec": spec}))).expect("a content")
        };
        let group = |node: &str| -> GroupContent {
            let spec = json!({"driver": "local.granary.dev", "source": {"volumeHandles": ["pvc-1"]}});
            serde_json::from_value(labelled(node, json!({"metadata": {"uid": "u"}, "spec": spec}))).expect("a content")
        };
        let begun = ["snapshot-begun", "group-u-pvc-1"].map(id);
        let snapshots = begun.clone().map(|id| (id, record(State::Staged))).into();
        let found = |node: &str| findings(&snapshots, &BTreeSet::new(), &[content(node)], &[group(node)], NODE);
        assert_eq!(found("another").removable, begun.into());
        assert_eq!(found(NODE), Findings::default());
    }

    #[test]
    fn snapshots_of_the_controller_service_are_left_to_its_client() {
        let owner = || Owner::Controller { source: Some(id("pvc-1")) };
        let snapshots = [(id("snapshot-begun"), State::Staged), (id("snapshot-ready"), State::Announced)];
        let snapshots = snapshots.map(|(id, state)| (id, Record { owner: owner(), ..record(state) })).into();
        let other = [content("other", "local.granary.dev")];
        let found = findings(&snapshots, &BTreeSet::from([id("snapshot-ready")]), &other, &[], NODE);
        assert_eq!(found, Findings::default());
    }

    #[test]
    fn a_group_has_its_members() {
        let spec = json!({"driver": "local.granary.dev", "source": {"volumeHandles": ["pvc-1"]}});
        let group = serde_json::from_value(json!({"metadata": {"uid": "u"}, "spec": spec})).expect("a content");
        let snapshots = [("group-u-pvc-1", State::Staged), ("group-u-pvc-2", State::Staged)];
        let snapshots = snapshots.map(|(name, state)| (id(name), record(state))).into();
        let found = findings(&snapshots, &BTreeSet::new(), &[], &[group], NODE);
        assert_eq!(found.removable, [id("group-u-pvc-2")].into());
    }

    #[test]
    fn an_empty_list_removes_nothing_if_a_snapshot_was_ready() {
        let begun = BTreeMap::from([(id("snapshot-begun"), record(State::Staged))]);
        assert_eq!(findings(&begun, &BTreeSet::new(), &[], &[], NODE).removable, [id("snapshot-begun")].into());
        let mut both = begun;
        both.insert(id("snapshot-ready"), record(State::Announced));
        let found = findings(&both, &BTreeSet::new(), &[], &[], NODE);
        assert_eq!((found.removable, found.orphans), (BTreeSet::new(), [id("snapshot-ready")].into()));
    }
}
