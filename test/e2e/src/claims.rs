//! Operations of a case on claims, volumes and classes.

use crate::watch::watch;
use crate::{Case, Claim, Class, DRIVER, Failure, PATIENCE, Seen, eventually};
use cluster::quantity;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimStatus};
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use units::Bytes;
use workload::{Entry, Loop, Mount, Project, Volumes};

const SYSTEM_NAMESPACE: &str = "kube-system";

impl Case {
    pub async fn make_class(&self, class: &Class) -> Result<String, Failure> {
        let name = self.unique(class.name);
        let object = class.object(&name, &self.labels())?;
        let classes: Api<StorageClass> = self.cluster();
        classes.create(&PostParams::default(), &object).await.map_err(Failure::api(format!("create class {name}")))?;
        Ok(name)
    }

    pub async fn claim(&self, claim: &Claim) -> Result<(), Failure> {
        let doing = format!("create claim {}", claim.name);
        self.claims().create(&PostParams::default(), &claim.object()?).await.map_err(Failure::api(doing))?;
        Ok(())
    }

    pub async fn read_claim(&self, name: &str) -> Result<PersistentVolumeClaim, Failure> {
        self.claims().get(name).await.map_err(Failure::api(format!("read claim {name}")))
    }

    pub async fn delete_claim(&self, name: &str) -> Result<(), Failure> {
        let deleted = self.claims().delete(name, &DeleteParams::default()).await;
        deleted.map(drop).map_err(Failure::api(format!("delete claim {name}")))
    }

    pub async fn resize(&self, claim: &str, size: u64) -> Result<(), Failure> {
        let patch = json!({"spec": {"resources": {"requests": {"storage": size.to_string()}}}});
        let patched = self.claims().patch(claim, &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.map(drop).map_err(Failure::api(format!("resize claim {claim}")))
    }

    /// Waits until a claim has this size and its expansion is complete.
    pub async fn expanded(&self, claim: &str, size: u64) -> Result<(), Failure> {
        let what = format!("expanded to {size}");
        let settled = |status: &PersistentVolumeClaimStatus| {
            let capacity = status.capacity.as_ref().and_then(|sizes| sizes.get("storage"));
            let settled = status.allocated_resource_statuses.as_ref().is_none_or(|all| !all.contains_key("storage"));
            let resizing = |kind: &str| matches!(kind, "Resizing" | "FileSystemResizePending");
            let waits = status.conditions.iter().flatten().any(|one| resizing(&one.type_) && one.status == "True");
            capacity.and_then(|size| bytes(&size.0)) == Some(size) && settled && !waits
        };
        eventually(PATIENCE, &format!("claim {claim} to be {what}"), async || {
            let status = self.read_claim(claim).await?.status.unwrap_or_default();
            let seen = serde_json::to_string(&status)?;
            Ok(if settled(&status) { Seen::Done(()) } else { Seen::NotYet(seen) })
        })
        .await
    }

    /// Waits until the PV of a claim has this capacity. The expansion on the node may be pending.
    pub async fn has_capacity(&self, claim: &str, size: u64) -> Result<(), Failure> {
        eventually(PATIENCE, &format!("the volume of claim {claim} to have {size} bytes"), async || {
            let now = capacity_of(&self.volume_of(claim).await?);
            Ok(if now == Some(size) { Seen::Done(()) } else { Seen::NotYet(format!("{now:?}")) })
        })
        .await
    }

    pub async fn volume_of(&self, claim: &str) -> Result<PersistentVolume, Failure> {
        let what = format!("the volume of claim {claim}");
        let bound = eventually(PATIENCE, &what, async || {
            let found = self.read_claim(claim).await?;
            if let Some(volume) = bound_volume(&found) {
                return Ok(Seen::Done(volume.to_owned()));
            }
            watch(self.claims(), claim, |found| found.and_then(bound_volume).is_some()).await;
            Ok(Seen::NotYet(found.status.and_then(|status| status.phase).unwrap_or_default()))
        });
        let bound = bound.await;
        let name = self.with_events(claim, bound).await?;
        self.volumes().get(&name).await.map_err(Failure::api(format!("read volume {name}")))
    }

    pub async fn volume_name(&self, claim: &str) -> Result<String, Failure> {
        Ok(self.volume_of(claim).await?.metadata.name.unwrap_or_default())
    }

    /// Waits until the PV of a volume and all of its data on the node are removed.
    pub async fn volume_is_gone(&self, volume: &str, project: Option<u32>) -> Result<(), Failure> {
        eventually(PATIENCE, &format!("the removal of all of volume {volume}"), async || {
            watch(self.volumes(), volume, |found| found.is_none()).await;
            let found = self.volumes().get_opt(volume).await;
            if let Some(found) = found.map_err(Failure::api(format!("look for volume {volume}")))? {
                let phase = found.status.and_then(|status| status.phase);
                return Ok(Seen::NotYet(format!("its object is {phase:?}")));
            }
            let left = OnNode::of(&self.look_at_the_node().await?, volume, project);
            Ok(if left == OnNode::default() { Seen::Done(()) } else { Seen::NotYet(format!("{left:?}")) })
        })
        .await
    }

    pub async fn on_the_node(&self, volume: &str) -> Result<OnNode, Failure> {
        Ok(OnNode::of(&self.look_at_the_node().await?, volume, None))
    }

    /// Published capacity of a class; `None` without a complete CSIStorageCapacity.
    pub async fn capacity(&self, class: &str) -> Result<Option<Offer>, Failure> {
        let objects: Api<CSIStorageCapacity> = self.api_of(SYSTEM_NAMESPACE);
        let all = objects.list(&ListParams::default()).await.map_err(Failure::api("list storage capacities"))?;
        let found = all.items.into_iter().find(|one| one.storage_class_name == class);
        let offer = |object: CSIStorageCapacity| {
            let size = |size: Option<Quantity>| bytes(&size?.0);
            Some(Offer { free: size(object.capacity)?, largest: size(object.maximum_volume_size)? })
        };
        Ok(found.and_then(offer))
    }

    pub(crate) fn claims(&self) -> Api<PersistentVolumeClaim> {
        self.api()
    }

    pub(crate) fn volumes(&self) -> Api<PersistentVolume> {
        self.cluster()
    }
}

/// Capacity that the node publishes for a class, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    pub free: u64,
    /// Size of the largest possible claim of one of the modes.
    pub largest: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnNode {
    pub entries: Vec<Entry>,
    pub project: Option<Project>,
    pub loops: Vec<Loop>,
    pub mounts: Vec<Mount>,
}

impl OnNode {
    /// Selects a volume's part of the node's state. `project` is a project ID that the volume had earlier.
    pub fn of(node: &Volumes, volume: &str, project: Option<u32>) -> Self {
        let entries: Vec<Entry> = node.entries.iter().filter(|entry| entry.path.contains(volume)).cloned().collect();
        let project = entries.iter().find_map(|entry| entry.project).or(project);
        let loops: Vec<Loop> = node.loops.iter().filter(|device| device.file.contains(volume)).cloned().collect();
        let mounts = node.mounts.iter().filter(|mount| {
            let device = mount.root.trim_start_matches('/');
            mount.point.contains(volume) || mount.root.contains(volume) || loops.iter().any(|one| one.name == device)
        });
        Self {
            mounts: mounts.cloned().collect(),
            project: node.projects.iter().find(|known| Some(known.id) == project).copied(),
            entries,
            loops,
        }
    }
}

pub fn capacity_of(volume: &PersistentVolume) -> Option<u64> {
    let capacity = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref());
    capacity.and_then(|sizes| sizes.get("storage")).and_then(|size| bytes(&size.0))
}

pub fn is_ours(volume: &PersistentVolume) -> bool {
    volume.spec.as_ref().and_then(|spec| spec.csi.as_ref()).is_some_and(|csi| csi.driver == DRIVER)
}

fn bound_volume(claim: &PersistentVolumeClaim) -> Option<&str> {
    let is_bound = claim.status.as_ref()?.phase.as_deref() == Some("Bound");
    claim.spec.as_ref()?.volume_name.as_deref().filter(|_| is_bound)
}

fn bytes(quantity: &str) -> Option<u64> {
    quantity::bytes(quantity).ok().map(Bytes::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_has_its_volume_when_it_is_bound() {
        let claim = |phase: &str| -> PersistentVolumeClaim {
            let object = json!({"metadata": {}, "spec": {"volumeName": "pvc-1"}, "status": {"phase": phase}});
            serde_json::from_value(object).unwrap()
        };
        assert_eq!(bound_volume(&claim("Bound")), Some("pvc-1"));
        assert_eq!(bound_volume(&claim("Pending")), None);
    }

    #[test]
    fn a_neighbours_things_are_not_the_volumes() {
        let entry = |path: &str, project| Entry { path: path.into(), project, image: None };
        let device = |name: &str, file: &str| Loop { name: name.into(), file: file.into() };
        let node = Volumes {
            entries: vec![entry("live/pvc-1", Some(7)), entry("records/pvc-1", None), entry("live/pvc-2", Some(8))],
            projects: vec![
                Project { id: 7, bytes: Some(1), inodes: None },
                Project { id: 8, bytes: None, inodes: None },
            ],
            loops: vec![device("loop0", "/data/volumes/live/pvc-1/image"), device("loop1", "/live/pvc-2/image")],
            mounts: vec![Mount { root: "/loop0".into(), point: "/pods/1".into(), flags: vec![] }],
        };
        let found = OnNode::of(&node, "pvc-1", None);
        assert_eq!((found.entries.len(), found.loops.len(), found.mounts.len()), (2, 1, 1));
        assert_eq!(found.project.map(|project| project.id), Some(7));
    }
}
