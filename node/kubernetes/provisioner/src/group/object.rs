//! Objects of group snapshots, with the fields that the provisioner reads and writes.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use cluster::snapshot::MANAGED_BY;
use cluster::snapshot::group::{CLASS, CLASSES, CONTENT, CONTENTS, GROUP, HANDLE_PREFIX};
use k8s_openapi::ClusterResourceScope;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Serialize};
use volume::{DRIVER_NAME, Record, VolumeId};

use crate::snapshot::object::{Arrival, SnapshotError, resource};

/// API version of groups. Both versions have the same fields, and a cluster may serve only the earlier one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum GroupVersion {
    #[default]
    V1,
    V1Beta2,
}

impl GroupVersion {
    pub(crate) const ALL: [Self; 2] = [Self::V1, Self::V1Beta2];

    const fn name(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V1Beta2 => "v1beta2",
        }
    }
}

/// A VolumeGroupSnapshotContent.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct GroupContent {
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: GroupContentSpec,
    pub(crate) status: Option<GroupContentStatus>,
    #[serde(skip)]
    pub(crate) arrival: Arrival,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct GroupContentSpec {
    pub(crate) driver: String,
    pub(crate) deletion_policy: String,
    pub(crate) source: GroupSource,
    pub(crate) volume_group_snapshot_class_name: Option<String>,
    pub(crate) volume_group_snapshot_ref: ObjectReference,
}

/// Source of a group: either the volumes of snapshots to take, or snapshots that exist.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct GroupSource {
    pub(crate) volume_handles: Vec<String>,
    pub(crate) group_snapshot_handles: Option<GroupHandles>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct GroupHandles {
    pub(crate) volume_group_snapshot_handle: String,
    pub(crate) volume_snapshot_handles: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct GroupContentStatus {
    /// Handle of the group. The snapshot controller creates the members when the status has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) volume_group_snapshot_handle: Option<String>,
    pub(crate) creation_time: Option<String>,
    pub(crate) ready_to_use: Option<bool>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) volume_snapshot_info_list: Vec<MemberInfo>,
    pub(crate) error: Option<SnapshotError>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct MemberInfo {
    pub(crate) volume_handle: String,
    pub(crate) snapshot_handle: String,
    /// Nanoseconds since 1970.
    pub(crate) creation_time: Option<i64>,
    pub(crate) restore_size: Option<i64>,
    pub(crate) ready_to_use: bool,
}

/// A VolumeGroupSnapshotClass.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct GroupClass {
    pub(crate) metadata: ObjectMeta,
    pub(crate) deletion_policy: String,
    pub(crate) parameters: BTreeMap<String, String>,
}

resource!(GroupClass: CLASS, CLASSES, GROUP, GroupVersion, |version| version.name(), ClusterResourceScope);
resource!(GroupContent: CONTENT, CONTENTS, GROUP, GroupVersion, |version| version.name(), ClusterResourceScope);

/// The ID of the snapshot of a volume in a group.
pub(crate) fn member(group: &str, volume: &str) -> Option<VolumeId> {
    format!("{group}-{volume}").parse().ok()
}

/// The group of which the snapshot is a member. Its record has the UID of the group's content.
pub(crate) fn group_of(id: &VolumeId, record: &Record) -> Option<VolumeId> {
    let group = format!("{HANDLE_PREFIX}{}", record.claim.uid);
    let is_member = id.as_str().strip_prefix(group.as_str()).is_some_and(|rest| rest.starts_with('-'));
    group.parse().ok().filter(|_| is_member)
}

impl GroupContent {
    pub(crate) fn is_of_driver(&self) -> bool {
        self.spec.driver == DRIVER_NAME
    }

    pub(crate) fn node(&self) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(MANAGED_BY).map(String::as_str)
    }

    /// Handle of the group. The handle in the status is not used: another node may have written it.
    pub(crate) fn handle(&self) -> Option<String> {
        match &self.spec.source.group_snapshot_handles {
            Some(handles) => Some(handles.volume_group_snapshot_handle.clone()),
            None => Some(format!("{HANDLE_PREFIX}{}", self.metadata.uid.as_deref()?)),
        }
    }

    /// IDs of the group's snapshots. Handles that are not valid IDs are left out.
    pub(crate) fn members(&self) -> BTreeSet<VolumeId> {
        let source = &self.spec.source;
        match (&source.group_snapshot_handles, self.handle()) {
            (Some(handles), _) => handles.volume_snapshot_handles.iter().filter_map(|id| id.parse().ok()).collect(),
            (None, Some(group)) => source.volume_handles.iter().filter_map(|volume| member(&group, volume)).collect(),
            (None, None) => BTreeSet::new(),
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.ready_to_use == Some(true))
    }
}
