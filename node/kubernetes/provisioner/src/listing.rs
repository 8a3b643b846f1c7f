//! The PVs of this node, read from the API server: the watch may be behind, and its data decides about deletions.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use tokio::sync::Mutex;
use tokio::time::Instant;
use volume::VolumeId;

use crate::error::{ApiError, api};
use crate::pv::object;
use crate::pv::plan::{self, PvPlan};

#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// The API server has no PV at all, also of other nodes and drivers.
    pub(crate) is_empty: bool,
    by_volume: BTreeMap<VolumeId, Vec<ListedPv>>,
}

/// A PV of a volume of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedPv {
    pub(crate) name: String,
    /// Its volume is to be deleted with it.
    pub(crate) is_deleted: bool,
}

/// The last list, shared by the deletions of a burst.
#[derive(Debug, Default)]
pub(crate) struct Listings(Mutex<Option<(Instant, Arc<Listing>)>>);

impl Listing {
    pub(crate) fn of<'pv>(pvs: impl IntoIterator<Item = &'pv PersistentVolume>, node: &str) -> Self {
        let mut listing = Self { is_empty: true, by_volume: BTreeMap::new() };
        for pv in pvs {
            listing.is_empty = false;
            let plan = plan::plan(pv);
            if let Some(id) = object::volume_of(pv, node).filter(|_| plan != PvPlan::Ignore) {
                let is_deleted = plan == PvPlan::Delete;
                listing.by_volume.entry(id).or_default().push(ListedPv { name: pv.name_any(), is_deleted });
            }
        }
        listing
    }

    pub(crate) fn of_volume(&self, id: &VolumeId) -> &[ListedPv] {
        self.by_volume.get(id).map_or(&[], Vec::as_slice)
    }

    /// A PV of the volume with another name.
    pub(crate) fn other(&self, id: &VolumeId, name: &str) -> Option<&ListedPv> {
        self.of_volume(id).iter().find(|pv| pv.name != name)
    }

    /// Volumes with at least one PV.
    pub(crate) fn volumes(&self) -> impl Iterator<Item = (&VolumeId, &[ListedPv])> {
        self.by_volume.iter().map(|(id, pvs)| (id, pvs.as_slice()))
    }
}

impl Listings {
    /// A list that was requested after `moment`.
    pub(crate) async fn since(
        &self,
        moment: Instant,
        pvs: &Api<PersistentVolume>,
        node: &str,
    ) -> Result<Arc<Listing>, ApiError> {
        let mut latest = self.0.lock().await;
        if let Some((_, listing)) = latest.as_ref().filter(|(requested, _)| *requested > moment) {
            return Ok(Arc::clone(listing));
        }
        let requested = Instant::now();
        // Without a resource version, the read is consistent.
        let all = pvs.list(&ListParams::default()).await.map_err(api("list the PVs"))?;
        let listing = Arc::new(Listing::of(&all, node));
        *latest = Some((requested, Arc::clone(&listing)));
        Ok(listing)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    const NODE: &str = "granary";

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

    #[test]
    fn a_second_pv_of_a_volume_is_found_by_its_handle() {
        let all = [pv("pvc-1", "pvc-1", NODE), pv("by-hand", "pvc-1", NODE), pv("pvc-2", "pvc-2", NODE)];
        let listing = Listing::of(&all, NODE);
        let (one, two) = ("pvc-1".parse().unwrap(), "pvc-2".parse().unwrap());
        assert_eq!(listing.other(&one, "pvc-1").map(|other| other.name.as_str()), Some("by-hand"));
        assert_eq!(listing.other(&two, "pvc-2"), None);
        assert_eq!(listing.of_volume(&"pvc-3".parse().unwrap()), []);
        assert_eq!(listing.volumes().count(), 2);
    }

    #[test]
    fn the_same_handle_on_another_node_is_another_volume() {
        let listing = Listing::of(&[pv("pvc-1", "pvc-1", "other")], NODE);
        assert_eq!(listing.of_volume(&"pvc-1".parse().unwrap()), []);
        assert!(!listing.is_empty);
        assert!(Listing::of(&[], NODE).is_empty);
    }
}
