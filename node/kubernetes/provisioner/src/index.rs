//! Index of the driver's PVs on all nodes, by volume. Data is removed only if no PV has its volume.
//!
//! The index comes from the watch of PVs, which may be behind or broken. Therefore the index has the moment up to which
//! it is complete: each PV that existed then is in the index, or its end has arrived. Two facts move the moment:
//!
//! - A list has all PVs that existed when it was requested.
//! - The API server delivers the changes of all PVs in their order. When the removal of a finalizer arrives that this
//!   node requested, all earlier PVs have arrived.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;
use kube::runtime::watcher::{self, Event};
use tokio::sync::watch;
use tokio::time::Instant;
use volume::VolumeId;

use crate::pv::object;
use crate::pv::plan::{self, PvPlan};

#[derive(Debug)]
pub(crate) struct PvIndex {
    node: String,
    state: Mutex<IndexState>,
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct IndexState {
    /// Moment up to which the index is complete; `None` before the first complete list.
    complete: Option<Instant>,
    pvs: ByVolume,
    /// The list that is being received, with the moment before its request.
    list: Option<(Instant, ByVolume)>,
    /// The watch failed, and has delivered no list or change since.
    is_broken: bool,
    /// PVs whose finalizer this node removed, by UID, with the moment before the request.
    removed: HashMap<String, (VolumeId, Instant)>,
}

type ByVolume = HashMap<VolumeId, Vec<IndexedPv>>;

#[derive(Debug)]
struct IndexedPv {
    name: String,
    uid: String,
    /// This node is deleting the PV and its data.
    is_deleted: bool,
}

impl PvIndex {
    pub(crate) fn new(node: String) -> Self {
        Self { node, state: Mutex::default(), changed: watch::Sender::default() }
    }

    /// Applies an item of the watch. The index must receive all items in their order, before any other component acts
    /// on them.
    pub(crate) fn update(&self, item: &watcher::Result<Event<PersistentVolume>>) {
        let mut state = self.state();
        match item {
            // The watcher requests the list after this event, also after a failure.
            Ok(Event::Init) => state.list = Some((Instant::now(), ByVolume::default())),
            Ok(Event::InitApply(pv)) => {
                if let Some((_, list)) = &mut state.list {
                    set(list, pv, &self.node);
                }
            }
            Ok(Event::InitDone) => {
                state.is_broken = false;
                if let Some((requested, list)) = state.list.take() {
                    state.pvs = list;
                    state.complete = state.complete.max(Some(requested));
                }
            }
            Ok(Event::Apply(pv)) => {
                state.is_broken = false;
                set(&mut state.pvs, pv, &self.node);
            }
            Ok(Event::Delete(pv)) => {
                state.is_broken = false;
                remove(&mut state.pvs, pv);
            }
            Err(_) => state.is_broken = true,
        }
        state.advance();
        drop(state);
        self.changed.send_replace(());
    }

    /// Records that this node removed the PV's finalizer by a request that it sent after `moment`.
    pub(crate) fn removed(&self, uid: String, id: VolumeId, moment: Instant) {
        let mut state = self.state();
        state.removed.insert(uid, (id, moment));
        state.advance();
        drop(state);
        self.changed.send_replace(());
    }

    /// Whether this node removed the PV's finalizer, and the watch does not show it yet.
    pub(crate) fn has_removed(&self, uid: &str) -> bool {
        self.state().removed.contains_key(uid)
    }

    /// Whether the index has a complete list, and the watch has not failed since.
    pub(crate) fn is_current(&self) -> bool {
        self.state().is_current()
    }

    /// Whether the index is current and has PVs of the volume, all of which this node is deleting.
    pub(crate) fn is_ending(&self, id: &VolumeId) -> bool {
        let state = self.state();
        state.is_current() && state.pvs.get(id).is_some_and(|pvs| pvs.iter().all(|pv| pv.is_deleted))
    }

    /// Name and UID of each PV of the volume that this node is deleting.
    pub(crate) fn deleted(&self, id: &VolumeId) -> Vec<(String, String)> {
        deleted(self.state().pvs.get(id).into_iter().flatten())
    }

    /// As [`PvIndex::deleted`], for all volumes.
    pub(crate) fn all_deleted(&self) -> Vec<(String, String)> {
        deleted(self.state().pvs.values().flatten())
    }

    /// The name of a PV of the volume with another UID.
    pub(crate) fn other(&self, id: &VolumeId, uid: Option<&str>) -> Option<String> {
        let state = self.state();
        let other = state.pvs.get(id)?.iter().find(|pv| Some(pv.uid.as_str()) != uid)?;
        Some(other.name.clone())
    }

    /// Waits until none of the PVs that existed at `moment` has the volume.
    pub(crate) async fn has_none(&self, id: &VolumeId, moment: Instant) {
        self.wait_for(|state| state.complete >= Some(moment) && !state.pvs.contains_key(id)).await;
    }

    pub(crate) async fn listed(&self) {
        self.wait_for(|state| state.complete.is_some()).await;
    }

    async fn wait_for(&self, is_reached: impl Fn(&IndexState) -> bool) {
        let mut changed = self.changed.subscribe();
        while !is_reached(&self.state()) {
            // The sender is in `self`, so it is not dropped.
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, IndexState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IndexState {
    fn is_current(&self) -> bool {
        self.complete.is_some() && !self.is_broken
    }

    /// Moves `complete` to the latest request of this node whose effect has arrived.
    fn advance(&mut self) {
        let Self { pvs, removed, complete, .. } = self;
        removed.retain(|uid, (id, moment)| {
            let is_left = pvs.get(id).is_some_and(|pvs| pvs.iter().any(|pv| pv.uid == *uid));
            // Before the first list, the index has no PV.
            if !is_left && complete.is_some() {
                *complete = (*complete).max(Some(*moment));
            }
            is_left
        });
    }
}

/// Volume whose data the PV keeps on this node. A PV that is being deleted without the driver's finalizer keeps no
/// data. A PV of another node's provisioner keeps none either; otherwise, that node could keep the data here.
pub(crate) fn kept_volume(pv: &PersistentVolume, node: &str) -> Option<VolumeId> {
    object::handle(pv).filter(|_| plan::plan(pv) != PvPlan::Ignore && !object::is_provisioned_elsewhere(pv, node))
}

fn deleted<'a>(pvs: impl Iterator<Item = &'a IndexedPv>) -> Vec<(String, String)> {
    pvs.filter(|pv| pv.is_deleted).map(|pv| (pv.name.clone(), pv.uid.clone())).collect()
}

fn set(pvs: &mut ByVolume, pv: &PersistentVolume, node: &str) {
    remove(pvs, pv);
    if let Some(id) = kept_volume(pv, node) {
        let uid = pv.uid().unwrap_or_default();
        let is_deleted = object::volume_of(pv, node).is_some() && plan::plan(pv) == PvPlan::Delete;
        pvs.entry(id).or_default().push(IndexedPv { name: pv.name_any(), uid, is_deleted });
    }
}

/// Removes the PV from its volume, which is immutable.
fn remove(pvs: &mut ByVolume, pv: &PersistentVolume) {
    let Some(id) = object::handle(pv) else { return };
    let uid = pv.uid().unwrap_or_default();
    if let Some(of_volume) = pvs.get_mut(&id) {
        of_volume.retain(|pv| pv.uid != uid);
        if of_volume.is_empty() {
            pvs.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt as _;
    use k8s_openapi::api::core::v1::PersistentVolumeStatus;
    use tokio::time::advance;
    use volume::FINALIZER;

    use super::*;
    use crate::listing;

    const SECOND: Duration = Duration::from_secs(1);

    fn pv(name: &str, handle: &str, node: &str) -> PersistentVolume {
        let mut pv = listing::tests::pv(name, handle, node);
        pv.metadata.uid = Some(format!("uid-{name}"));
        pv
    }

    fn id() -> VolumeId {
        "pvc-1".parse().expect("an identifier")
    }

    fn list(index: &PvIndex, pvs: &[PersistentVolume]) {
        index.update(&Ok(Event::Init));
        for pv in pvs {
            index.update(&Ok(Event::InitApply(pv.clone())));
        }
        index.update(&Ok(Event::InitDone));
    }

    fn is_complete_since(index: &PvIndex, moment: Instant) -> bool {
        index.has_none(&"pvc-3".parse().expect("an identifier"), moment).now_or_never().is_some()
    }

    fn has(index: &PvIndex) -> bool {
        index.state().pvs.contains_key(&id())
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_complete_before_the_first_list_ends() {
        let index = PvIndex::new("granary".into());
        let start = Instant::now();
        assert!(!index.is_current() && !is_complete_since(&index, start));
        index.update(&Ok(Event::Init));
        index.update(&Ok(Event::InitApply(pv("pvc-1", "pvc-1", "granary"))));
        // Events of an earlier watch do not complete a list.
        index.update(&Ok(Event::Apply(pv("pvc-2", "pvc-2", "granary"))));
        assert!(!index.is_current() && !is_complete_since(&index, start));
        advance(SECOND).await;
        index.update(&Ok(Event::InitDone));
        assert!(index.is_current() && is_complete_since(&index, start));
        // A PV that was created during the list may be missing.
        assert!(!is_complete_since(&index, start + SECOND));
        assert!(has(&index));
    }

    #[tokio::test(start_paused = true)]
    async fn a_removal_that_arrives_completes_the_index_up_to_its_request() {
        let index = PvIndex::new("granary".into());
        let own = pv("pvc-1", "pvc-1", "granary");
        list(&index, std::slice::from_ref(&own));
        advance(SECOND).await;
        let request = Instant::now();
        index.removed("uid-pvc-1".into(), id(), request);
        // Events of other PVs may be from before the request.
        index.update(&Ok(Event::Apply(pv("pvc-2", "pvc-2", "granary"))));
        assert!(!is_complete_since(&index, request) && index.has_removed("uid-pvc-1"));
        index.update(&Ok(Event::Delete(own)));
        assert!(!index.has_removed("uid-pvc-1"));
        assert!(is_complete_since(&index, request) && index.has_none(&id(), request).now_or_never().is_some());
        assert!(!is_complete_since(&index, request + SECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn a_removal_may_arrive_before_its_response() {
        let index = PvIndex::new("granary".into());
        let own = pv("pvc-1", "pvc-1", "granary");
        list(&index, std::slice::from_ref(&own));
        advance(SECOND).await;
        let request = Instant::now();
        index.update(&Ok(Event::Delete(own)));
        assert!(!is_complete_since(&index, request), "another client may have removed the PV earlier");
        index.removed("uid-pvc-1".into(), id(), request);
        assert!(is_complete_since(&index, request));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_watch_is_not_current_until_its_next_change_or_list() {
        let index = PvIndex::new("granary".into());
        list(&index, &[]);
        index.update(&Err(watcher::Error::NoResourceVersion));
        assert!(!index.is_current());
        index.update(&Ok(Event::Apply(pv("pvc-2", "pvc-2", "granary"))));
        assert!(index.is_current());
        index.update(&Err(watcher::Error::NoResourceVersion));
        // The API server may not have answered yet.
        index.update(&Ok(Event::Init));
        assert!(!index.is_current());
        index.update(&Ok(Event::InitDone));
        assert!(index.is_current());
    }

    #[test]
    fn a_second_pv_is_found_on_all_nodes() {
        let index = PvIndex::new("granary".into());
        list(&index, &[pv("pvc-1", "pvc-1", "granary")]);
        assert_eq!(index.other(&id(), Some("uid-pvc-1")), None);
        for (name, node) in [("by-hand", "granary"), ("elsewhere", "other")] {
            let second = pv(name, "pvc-1", node);
            index.update(&Ok(Event::Apply(second.clone())));
            assert_eq!(index.other(&id(), Some("uid-pvc-1")).as_deref(), Some(name));
            index.update(&Ok(Event::Delete(second)));
        }
        // Another node can create a PV of this name.
        index.update(&Ok(Event::Apply(pv("pvc-2", "pvc-2", "other"))));
        assert_eq!(index.other(&"pvc-2".parse().expect("an identifier"), Some("uid-by-hand")), None);
        // The same name again is another PV.
        assert_eq!(index.other(&id(), Some("uid-former")).as_deref(), Some("pvc-1"));
        let mut foreign = pv("foreign", "pvc-1", "granary");
        foreign.spec.as_mut().and_then(|spec| spec.csi.as_mut()).expect("a source").driver = "example.invalid".into();
        index.update(&Ok(Event::Apply(foreign)));
        assert_eq!(index.other(&id(), Some("uid-pvc-1")), None);
    }

    #[test]
    fn a_volume_is_ending_while_this_node_deletes_all_its_pvs() {
        let index = PvIndex::new("granary".into());
        list(&index, &[pv("pvc-1", "pvc-1", "granary")]);
        assert!(!index.is_ending(&id()));
        let mut released = pv("pvc-1", "pvc-1", "granary");
        released.metadata.finalizers = Some(vec![FINALIZER.into()]);
        released.spec.as_mut().expect("a spec").persistent_volume_reclaim_policy = Some("Delete".into());
        released.status = Some(PersistentVolumeStatus { phase: Some("Released".into()), ..Default::default() });
        index.update(&Ok(Event::Apply(released.clone())));
        assert!(index.is_ending(&id()));
        for node in ["granary", "other"] {
            let second = pv("by-hand", "pvc-1", node);
            index.update(&Ok(Event::Apply(second.clone())));
            assert!(!index.is_ending(&id()), "a second PV for {node}");
            index.update(&Ok(Event::Delete(second)));
            assert!(index.is_ending(&id()));
        }
        index.update(&Err(watcher::Error::NoResourceVersion));
        assert!(!index.is_ending(&id()), "the watch failed");
        index.update(&Ok(Event::Delete(released)));
        assert!(!index.is_ending(&id()), "no PV is left");
    }

    #[test]
    fn a_new_list_replaces_the_index() {
        let index = PvIndex::new("granary".into());
        list(&index, &[pv("pvc-1", "pvc-1", "granary")]);
        index.update(&Ok(Event::Init));
        assert!(has(&index));
        index.update(&Ok(Event::InitDone));
        assert!(!has(&index));
    }
}
