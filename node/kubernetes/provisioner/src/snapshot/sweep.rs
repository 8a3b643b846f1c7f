//! Compares the snapshots on the disk with the contents in the cluster, as a part of [`crate::sweep`].
//!
//! Only contents that this node serves or will serve count, not those with the label of another node.
//!
//! | on the disk | in the cluster | action |
//! |---|---|---|
//! | staged | content | none: the pass of the content continues |
//! | staged, or in the trash | no content | removed |
//! | complete or announced | no content | an orphan: reported, kept; its blocks are copied nevertheless |
//! | members of a group, one of them staged | no content | all removed: a group is ready as a whole |
//!
//! The sweep ignores snapshots of CSI's Controller service: their client decides about them. This includes the trash:
//! the client may take a snapshot of the same name again, and the removal would remove that one.

use std::collections::{BTreeMap, BTreeSet};

use apiclient::is_missing;
use dir::Ensured;
use tracing::info;
use volume::{Owner, Record, State, VolumeId, Volumes};

use crate::context::Provisioner;
use crate::error::{Error, api};
use crate::group::object::{GroupContent, group_of};
use crate::listing::list_all;
use crate::snapshot::object::Content;
use crate::sweep::round::Failed;

/// Snapshots of which no content exists.
#[derive(Debug, Default, PartialEq, Eq)]
struct Findings {
    removable: BTreeSet<VolumeId>,
    orphans: BTreeSet<VolumeId>,
}

impl Findings {
    /// Snapshots that are removed together: members of a group, by the ID of the group, or a single one, by its ID.
    fn removals(&self, snapshots: &BTreeMap<VolumeId, Record>) -> BTreeMap<VolumeId, BTreeSet<VolumeId>> {
        let mut removals = BTreeMap::<_, BTreeSet<_>>::new();
        for id in &self.removable {
            let group = snapshots.get(id).and_then(|record| group_of(id, record));
            removals.entry(group.unwrap_or_else(|| id.clone())).or_default().insert(id.clone());
        }
        removals
    }
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
        for (id, members) in found.removals(snapshots) {
            if self.locked.wait(id.as_str()).is_some() {
                continue;
            }
            let Some(guards) = self.try_lock_all(&members) else { continue };
            // Since the records were read, a snapshot may be complete, and its content deleted with `Retain`: the store
            // decides by the present records.
            let undo = move |store: &dyn Volumes| (store.undo_snapshots(&members), guards);
            match self.on_disk(undo).await {
                Ok((Ok(Ensured::Created(())), _guards)) => {
                    info!(snapshot = %id, "unfinished snapshot without a content removed");
                }
                Ok((Ok(Ensured::Unchanged(())), _guards)) => {}
                // The next sweep continues.
                Ok((Err(error), _guards)) if error.is_locked() => {
                    self.removal_locked(&id);
                }
                Ok((Err(error), _guards)) => failed.push((Some(id), Error::Store(error))),
                Err(error) => failed.push((Some(id), error.into())),
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
    let is_managed = |record: &Record| !matches!(record.owner, Owner::Controller { .. });
    let unused: Vec<_> = snapshots.iter().filter(|(id, record)| is_managed(record) && !known.contains(id)).collect();
    let staged = unused.iter().filter(|(_, record)| record.state == State::Staged);
    // Groups that are not complete, so that no member was reported.
    let begun: BTreeSet<VolumeId> = staged.filter_map(|(id, record)| group_of(id, record)).collect();
    let is_unfinished = |id: &VolumeId, record: &Record| {
        record.state == State::Staged || group_of(id, record).is_some_and(|group| begun.contains(&group))
    };
    let had_content = |(id, record): (&VolumeId, &Record)| is_managed(record) && !is_unfinished(id, record);
    let is_plausible = !contents.is_empty() || !groups.is_empty() || !snapshots.iter().any(had_content);
    let mut found = Findings::default();
    for (id, record) in unused {
        let is_removed = is_unfinished(id, record) || retired.contains(id);
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
    use std::time::SystemTime;

    use serde_json::json;
    use volume::{Mode, Sharing};

    use super::*;
    use crate::fixture::{self, NODE, id};

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
        let (provisioner, disk) = fixture::with_client(client);
        let snapshots = ["snapshot-first", "snapshot-later", "snapshot-left"].map(id);
        let snapshots = snapshots.map(|id| (id, record(State::Staged)));
        for (id, record) in &snapshots {
            disk.put(id, record.clone());
        }
        let (none, mut failed) = (BTreeSet::new(), Failed::new());
        provisioner.sweep_snapshots(&snapshots.into(), &none, &none, &mut failed).await;
        assert!(failed.is_empty(), "{failed:?}");
        assert_eq!(disk.live(), ["snapshot-first", "snapshot-later"].map(id));
    }

    /// Regression: the content was deleted with policy Retain after the disk was read, and the sweep removed the data.
    #[tokio::test]
    async fn a_snapshot_that_was_completed_meanwhile_stays() {
        let (provisioner, disk) = fixture::with_client(fixture::client(|request| Some(fixture::page(&[], request))));
        let snapshot = id("snapshot-u");
        disk.put(&snapshot, record(State::Complete));
        let read = [(snapshot.clone(), record(State::Staged))].into();
        let (none, mut failed) = (BTreeSet::new(), Failed::new());
        provisioner.sweep_snapshots(&read, &none, &none, &mut failed).await;
        assert!(failed.is_empty() && disk.record(&snapshot).is_some(), "{failed:?}");
    }

    /// Regression: a kill between the marks of a group left complete members and staged ones. The complete ones became
    /// orphans, and the others were removed.
    #[tokio::test]
    async fn a_group_that_is_not_complete_is_removed_as_a_whole() {
        let (provisioner, disk) = fixture::with_client(fixture::client(|request| Some(fixture::page(&[], request))));
        let [complete, staged] = ["group-u-pvc-1", "group-u-pvc-2"].map(id);
        let members = [(&complete, State::Complete), (&staged, State::Staged)];
        let members: BTreeMap<_, _> = members.map(|(id, state)| (id.clone(), record(state))).into();
        for (id, record) in &members {
            disk.put(id, record.clone());
        }
        disk.set_stuck(&complete, true);
        let sweep = async || {
            let (none, mut failed) = (BTreeSet::new(), Failed::new());
            let orphans = provisioner.sweep_snapshots(&members, &none, &none, &mut failed).await;
            assert!(orphans.is_empty(), "{orphans:?}");
            failed.into_iter().map(|(id, _)| id).collect::<Vec<_>>()
        };
        assert_eq!(sweep().await, [Some(id("group-u"))]);
        assert!(disk.record(&staged).is_some(), "it shows that the group is not complete");
        disk.set_stuck(&complete, false);
        assert_eq!(sweep().await, []);
        assert_eq!([&complete, &staged].map(|id| disk.record(id)), [None, None]);
    }

    #[test]
    fn members_of_a_group_are_orphans_if_all_are_complete() {
        let members = |states: [State; 2]| -> BTreeMap<VolumeId, Record> {
            let [first, second] = states.map(record);
            [(id("group-u-pvc-1"), first), (id("group-u-pvc-2"), second)].into()
        };
        let found = |states: [State; 2]| {
            let other = content("other", "local.granary.dev");
            findings(&members(states), &BTreeSet::new(), &[other], &[], NODE)
        };
        let whole = || members([State::Staged; 2]).into_keys().collect::<BTreeSet<_>>();
        for orphans in [[State::Complete; 2], [State::Announced, State::Complete]] {
            assert_eq!(found(orphans), Findings { removable: BTreeSet::new(), orphans: whole() });
        }
        // A thin member may be announced while another one is staged.
        for removable in [[State::Staged; 2], [State::Complete, State::Staged], [State::Staged, State::Announced]] {
            assert_eq!(found(removable), Findings { removable: whole(), orphans: BTreeSet::new() });
        }
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
        let with = |ready: Record| {
            let both = begun.clone().into_iter().chain([(id("snapshot-ready"), ready)]).collect();
            findings(&both, &BTreeSet::new(), &[], &[], NODE)
        };
        let found = with(record(State::Announced));
        assert_eq!((found.removable, found.orphans), (BTreeSet::new(), [id("snapshot-ready")].into()));
        // A snapshot of the Controller service never had a content.
        let owner = Owner::Controller { source: Some(id("pvc-1")) };
        let found = with(Record { owner, ..record(State::Announced) });
        assert_eq!((found.removable, found.orphans), ([id("snapshot-begun")].into(), BTreeSet::new()));
    }
}
