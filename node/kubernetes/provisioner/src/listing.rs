//! The PVs of this node, as the API server has them now. The watch's view may be older than what data is deleted for.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use tokio::sync::Mutex;
use tokio::time::Instant;
use volume::VolumeId;

use crate::api::{ApiError, api};
use crate::delete::{self, Verdict};
use crate::pv;

/// One answer of the API server.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// No PV at all, nobody's.
    pub(crate) is_empty: bool,
    /// By the volumes that they stand for.
    ours: BTreeMap<VolumeId, Vec<Standing>>,
}

/// A PV that stands for a volume of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) name: String,
    /// It goes, and the volume with it.
    pub(crate) is_deleted: bool,
}

/// Shares answers: a burst of deletions asks once, not once for each volume.
#[derive(Debug, Default)]
pub(crate) struct Listings(Mutex<Option<(Instant, Arc<Listing>)>>);

impl Listing {
    /// The listing of these PVs.
    pub(crate) fn of<'pv>(all: impl IntoIterator<Item = &'pv PersistentVolume>, node: &str) -> Self {
        let mut listing = Self { is_empty: true, ours: BTreeMap::new() };
        for pv in all {
            listing.is_empty = false;
            let verdict = delete::judge(pv);
            if let Some(id) = pv::ours(pv, node).filter(|_| verdict != Verdict::Leave) {
                let is_deleted = verdict == Verdict::Delete;
                listing.ours.entry(id).or_default().push(Standing { name: pv.name_any(), is_deleted });
            }
        }
        listing
    }

    /// The PVs that stand for the volume.
    pub(crate) fn of_volume(&self, id: &VolumeId) -> &[Standing] {
        self.ours.get(id).map_or(&[], Vec::as_slice)
    }

    /// A PV of the volume that is not called `name`.
    pub(crate) fn other(&self, id: &VolumeId, name: &str) -> Option<&Standing> {
        self.of_volume(id).iter().find(|standing| standing.name != name)
    }

    /// All volumes that some PV stands for, with these PVs.
    pub(crate) fn volumes(&self) -> impl Iterator<Item = (&VolumeId, &[Standing])> {
        self.ours.iter().map(|(id, standing)| (id, standing.as_slice()))
    }
}

impl Listings {
    /// What the API server says after `moment`, asked by this call or by another one.
    pub(crate) async fn since(
        &self,
        moment: Instant,
        volumes: &Api<PersistentVolume>,
        node: &str,
    ) -> Result<Arc<Listing>, ApiError> {
        let mut latest = self.0.lock().await;
        if let Some((_, listing)) = latest.as_ref().filter(|(asked, _)| *asked > moment) {
            return Ok(Arc::clone(listing));
        }
        let asked = Instant::now();
        // Without a resource version the answer is as new as the request.
        let all = volumes.list(&ListParams::default()).await.map_err(api("list the PVs"))?;
        let listing = Arc::new(Listing::of(&all, node));
        *latest = Some((asked, Arc::clone(&listing)));
        Ok(listing)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NODE: &str = "granary";

    fn pv(name: &str, handle: &str, node: &str) -> PersistentVolume {
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
    fn a_volume_of_the_same_handle_on_another_node_is_another_volume() {
        let listing = Listing::of(&[pv("pvc-1", "pvc-1", "other")], NODE);
        assert_eq!(listing.of_volume(&"pvc-1".parse().unwrap()), []);
        assert!(!listing.is_empty);
        assert!(Listing::of(&[], NODE).is_empty);
    }
}
