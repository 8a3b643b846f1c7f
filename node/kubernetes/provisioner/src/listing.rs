//! Lists in pages, lists that removals share, and the list of the PVs. The sweep compares the PVs with the disk, and
//! other parts use them where the watch does not suffice.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use volume::VolumeId;

use crate::error::{ApiError, api};
use crate::index;
use crate::pv::object;
use crate::pv::plan::{self, PvPlan};

const PAGE: u32 = 500;

/// Maximum age of a list that shows that no object has a volume or a snapshot. An object that was created longer ago
/// keeps the data, and removals within this time share a list.
pub(crate) const FRESH: Duration = Duration::from_secs(5);

/// The pause after a list is this many times as long as the list, at most [`FRESH`].
const SHARE: u32 = 10;

/// Reads all pages of a list. Without a resource version, the first one is a consistent read, and the others continue
/// it.
pub(crate) async fn list_each<K>(objects: &Api<K>, mut add: impl FnMut(K)) -> kube::Result<()>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = objects.list(&params).await?;
        page.items.into_iter().for_each(&mut add);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}

pub(crate) async fn list_all<K>(objects: &Api<K>) -> kube::Result<Vec<K>>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut all = Vec::new();
    list_each(objects, |object| all.push(object)).await?;
    Ok(all)
}

#[derive(Debug)]
pub(crate) struct Listing {
    /// The API server has no PV at all, also of other nodes and drivers.
    pub(crate) is_empty: bool,
    by_volume: BTreeMap<VolumeId, Vec<ListedPv>>,
    /// Names of the driver's PVs that are not on this node alone.
    elsewhere: BTreeMap<VolumeId, String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedPv {
    pub(crate) name: String,
    pub(crate) is_deleted: bool,
}

/// The last list of a kind, shared by removals at the same time.
#[derive(Debug)]
pub(crate) struct Listings<L> {
    last: Mutex<Option<LastListing<L>>>,
    /// Has no permit while [`Listings::in_turn`] reads a list.
    turn: Semaphore,
}

#[derive(Debug)]
struct LastListing<L> {
    requested: Instant,
    complete: Instant,
    listing: Arc<L>,
}

impl Listing {
    fn new() -> Self {
        Self { is_empty: true, by_volume: BTreeMap::new(), elsewhere: BTreeMap::new() }
    }

    #[cfg(test)]
    pub(crate) fn of<'pv>(pvs: impl IntoIterator<Item = &'pv PersistentVolume>, node: &str) -> Self {
        let mut listing = Self::new();
        for pv in pvs {
            listing.add(pv, node);
        }
        listing
    }

    pub(crate) async fn read(pvs: &Api<PersistentVolume>, node: &str) -> Result<Self, ApiError> {
        let mut listing = Self::new();
        list_each(pvs, |pv| listing.add(&pv, node)).await.map_err(api("list the PVs"))?;
        Ok(listing)
    }

    fn add(&mut self, pv: &PersistentVolume, node: &str) {
        self.is_empty = false;
        let Some(id) = index::kept_volume(pv, node) else { return };
        if object::volume_of(pv, node).is_some() {
            let is_deleted = plan::plan(pv) == PvPlan::Delete;
            self.by_volume.entry(id).or_default().push(ListedPv { name: pv.name_any(), is_deleted });
        } else {
            self.elsewhere.insert(id, pv.name_any());
        }
    }

    pub(crate) fn of_volume(&self, id: &VolumeId) -> &[ListedPv] {
        self.by_volume.get(id).map_or(&[], Vec::as_slice)
    }

    /// The name of another PV of the volume, on any node.
    pub(crate) fn other(&self, id: &VolumeId, name: &str) -> Option<&str> {
        let here = self.of_volume(id).iter().map(|pv| pv.name.as_str());
        here.chain(self.elsewhere(id)).find(|other| *other != name)
    }

    /// Whether a PV has the volume, on any node.
    pub(crate) fn has(&self, id: &VolumeId) -> bool {
        self.by_volume.contains_key(id) || self.elsewhere.contains_key(id)
    }

    /// The name of a PV of the volume that is not on this node alone.
    pub(crate) fn elsewhere(&self, id: &VolumeId) -> Option<&str> {
        self.elsewhere.get(id).map(String::as_str)
    }

    /// Volumes with at least one PV.
    pub(crate) fn volumes(&self) -> impl Iterator<Item = (&VolumeId, &[ListedPv])> {
        self.by_volume.iter().map(|(id, pvs)| (id, pvs.as_slice()))
    }
}

impl<L> Default for Listings<L> {
    fn default() -> Self {
        Self { last: Mutex::default(), turn: Semaphore::new(1) }
    }
}

impl<L> Listings<L> {
    /// Returns the last list if it was requested after `moment`, otherwise the one that `read` requests.
    pub(crate) async fn since<E>(
        &self,
        moment: Instant,
        read: impl Future<Output = Result<L, E>>,
    ) -> Result<Arc<L>, E> {
        if let Some(listing) = self.cached(moment) {
            return Ok(listing);
        }
        let requested = Instant::now();
        let listing = Arc::new(read.await?);
        *self.latest() = Some(LastListing { requested, complete: Instant::now(), listing: Arc::clone(&listing) });
        Ok(listing)
    }

    /// As [`Listings::since`], for objects of which users can delete thousands: one list at a time, and a pause after
    /// it. Meanwhile, the result is `None`, and the caller has to try again: a caller that waited would take the place
    /// of passes over other objects. The age of a list counts from its end, because a longer list would otherwise serve
    /// only one removal.
    pub(crate) async fn in_turn<E>(
        &self,
        moment: Instant,
        read: impl Future<Output = Result<L, E>>,
    ) -> Result<Option<Arc<L>>, E> {
        let turn = self.turn.try_acquire();
        let now = Instant::now();
        if let Some(LastListing { requested, complete, listing }) = &*self.latest() {
            // A request of the same instant came after the object.
            if *requested >= moment && now < *complete + FRESH {
                return Ok(Some(Arc::clone(listing)));
            }
            let pause = complete.saturating_duration_since(*requested).saturating_mul(SHARE).min(FRESH);
            if now < *complete + pause {
                return Ok(None);
            }
        }
        match turn {
            Ok(_turn) => self.since(now, read).await.map(Some),
            Err(_) => Ok(None),
        }
    }

    pub(crate) fn cached(&self, moment: Instant) -> Option<Arc<L>> {
        self.latest().as_ref().filter(|last| last.requested > moment).map(|last| Arc::clone(&last.listing))
    }

    fn latest(&self) -> MutexGuard<'_, Option<LastListing<L>>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;
    use tokio::time::{advance, sleep};

    use super::*;

    const NODE: &str = "granary";
    const SECOND: Duration = Duration::from_secs(1);

    pub(crate) fn pv(name: &str, handle: &str, node: &str) -> PersistentVolume {
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "csi": {"driver": "local.granary.dev", "volumeHandle": handle},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]},
                ]}]}},
            },
        }))
        .expect("a PV")
    }

    #[tokio::test(start_paused = true)]
    async fn one_list_at_a_time_serves_the_removals_before_it() {
        let listings = Listings::default();
        let list = async |number: u8| {
            sleep(SECOND).await;
            if number > 0 { Ok(number) } else { Err(()) }
        };
        let shared = |number: u8| Ok(Some(Arc::new(number)));
        let start = Instant::now();
        let both = tokio::join!(listings.in_turn(start, list(1)), listings.in_turn(start, list(2)));
        assert_eq!(both, (shared(1), Ok(None)), "another pass reads a list");
        assert_eq!(listings.in_turn(start, list(2)).await, shared(1));
        assert_eq!(listings.in_turn(start + SECOND, list(2)).await, Ok(None), "a pause after a list that is too early");
        advance(FRESH).await;
        assert_eq!(listings.in_turn(start, list(2)).await, shared(2));
        advance(FRESH).await;
        let both = tokio::join!(listings.in_turn(start, list(0)), listings.in_turn(start, list(3)));
        assert_eq!(both, (Err(()), Ok(None)));
        assert_eq!(listings.in_turn(start, list(3)).await, shared(3));
    }

    #[test]
    fn a_second_pv_of_a_volume_is_found_by_its_handle() {
        let all = [pv("pvc-1", "pvc-1", NODE), pv("by-hand", "pvc-1", NODE), pv("pvc-2", "pvc-2", NODE)];
        let listing = Listing::of(&all, NODE);
        let (one, two) = ("pvc-1".parse().unwrap(), "pvc-2".parse().unwrap());
        assert_eq!(listing.other(&one, "pvc-1"), Some("by-hand"));
        assert_eq!(listing.other(&two, "pvc-2"), None);
        assert_eq!(listing.of_volume(&"pvc-3".parse().unwrap()), []);
        assert_eq!(listing.volumes().count(), 2);
    }

    #[test]
    fn an_administrators_pv_on_another_node_prevents_a_removal() {
        let id = "pvc-1".parse().unwrap();
        let listing = Listing::of(&[pv("by-hand", "pvc-1", "other")], NODE);
        assert_eq!(listing.of_volume(&id), []);
        assert_eq!(listing.other(&id, "pvc-1"), Some("by-hand"));
        assert!(listing.has(&id) && !listing.has(&"pvc-2".parse().unwrap()));
        assert!(!listing.is_empty);
        assert!(Listing::of(&[], NODE).is_empty);
    }

    #[test]
    fn a_pv_that_another_node_can_create_prevents_no_removal() {
        let id = "pvc-1".parse().unwrap();
        let foreign = pv("pvc-1", "pvc-1", "other");
        let listing = Listing::of([&foreign], NODE);
        assert!(!listing.has(&id) && listing.other(&id, "by-hand").is_none() && !listing.is_empty);
        let mut on_both = foreign;
        let affinity = on_both.spec.as_mut().and_then(|spec| spec.node_affinity.as_mut()).unwrap();
        let terms = &mut affinity.required.as_mut().unwrap().node_selector_terms;
        terms[0].match_expressions.as_mut().unwrap()[0].values.as_mut().unwrap().push(NODE.into());
        assert!(Listing::of([&on_both], NODE).has(&id));
    }
}
