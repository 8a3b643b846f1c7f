//! Objects of snapshots, with the fields that the provisioner reads.

use std::borrow::Cow;
use std::collections::BTreeMap;

use cluster::snapshot::group::HANDLE;
use cluster::snapshot::{
    CLASS, CLASSES, CONTENT, CONTENTS, GROUP, ID_PREFIX, MANAGED_BY, SNAPSHOT, SNAPSHOTS, VERSION,
};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::Resource;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use units::Bytes;
use volume::{DRIVER_NAME, VolumeId};

use crate::group::object::member;

/// The VolumeSnapshotContent of a snapshot.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Content {
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: ContentSpec,
    pub(crate) status: Option<ContentStatus>,
    #[serde(skip)]
    pub(crate) arrival: Arrival,
}

/// Time at which this version of an object arrived: the default of a field that is not in the JSON.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival(pub(crate) Instant);

impl Default for Arrival {
    fn default() -> Self {
        Self(Instant::now())
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ContentSpec {
    pub(crate) driver: String,
    pub(crate) deletion_policy: String,
    pub(crate) source: ContentSource,
    pub(crate) source_volume_mode: Option<String>,
    pub(crate) volume_snapshot_class_name: Option<String>,
    pub(crate) volume_snapshot_ref: ObjectReference,
}

/// Source of a snapshot: either the volume of a snapshot to take, or a snapshot that exists.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ContentSource {
    pub(crate) volume_handle: Option<String>,
    pub(crate) snapshot_handle: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ContentStatus {
    pub(crate) snapshot_handle: Option<String>,
    /// Nanoseconds since 1970.
    pub(crate) creation_time: Option<i64>,
    pub(crate) restore_size: Option<i64>,
    pub(crate) ready_to_use: Option<bool>,
    pub(crate) error: Option<SnapshotError>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct SnapshotError {
    pub(crate) message: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Snapshot {
    pub(crate) metadata: ObjectMeta,
    pub(crate) status: Option<SnapshotStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct SnapshotStatus {
    pub(crate) bound_volume_snapshot_content_name: Option<String>,
    pub(crate) ready_to_use: Option<bool>,
}

/// A VolumeSnapshotClass.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SnapshotClass {
    pub(crate) metadata: ObjectMeta,
    pub(crate) parameters: BTreeMap<String, String>,
}

/// Implements `Resource` for a kind: its name, its plural, its group, its dynamic type, its version as a function of
/// that type, and its scope.
macro_rules! resource {
    ($type:ident: $kind:ident, $plural:ident, $group:ident, $dynamic:ty, $version:expr, $scope:ident) => {
        impl Resource for $type {
            type DynamicType = $dynamic;
            type Scope = $scope;

            fn kind(_: &$dynamic) -> Cow<'_, str> {
                $kind.into()
            }

            fn group(_: &$dynamic) -> Cow<'_, str> {
                $group.into()
            }

            fn version(dynamic: &$dynamic) -> Cow<'_, str> {
                let version: fn(&$dynamic) -> &'static str = $version;
                version(dynamic).into()
            }

            fn plural(_: &$dynamic) -> Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}
pub(crate) use resource;

resource!(SnapshotClass: CLASS, CLASSES, GROUP, (), |_| VERSION, ClusterResourceScope);
resource!(Content: CONTENT, CONTENTS, GROUP, (), |_| VERSION, ClusterResourceScope);
resource!(Snapshot: SNAPSHOT, SNAPSHOTS, GROUP, (), |_| VERSION, NamespaceResourceScope);

impl Snapshot {
    pub(crate) fn content(&self) -> Option<&str> {
        self.status.as_ref()?.bound_volume_snapshot_content_name.as_deref()
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.ready_to_use == Some(true))
    }
}

impl Content {
    /// Whether both objects name each other. Any user can create a content that names a snapshot of another user.
    pub(crate) fn is_of(&self, snapshot: &Snapshot) -> bool {
        let of = &self.spec.volume_snapshot_ref;
        of.uid.is_some() && of.uid == snapshot.metadata.uid && self.metadata.name.as_deref() == snapshot.content()
    }

    pub(crate) fn is_of_driver(&self) -> bool {
        self.spec.driver == DRIVER_NAME
    }

    pub(crate) fn node(&self) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(MANAGED_BY).map(String::as_str)
    }

    /// The ID of the snapshot. The handle in the status is not used: another node may have written it.
    pub(crate) fn id(&self) -> Option<VolumeId> {
        match &self.spec.source.snapshot_handle {
            Some(handle) => handle.parse().ok(),
            None => match self.group() {
                Some(group) => member(group, self.spec.source.volume_handle.as_deref()?),
                None => format!("{ID_PREFIX}{}", self.metadata.uid.as_deref()?).parse().ok(),
            },
        }
    }

    /// Whether this node serves or will serve the content with this snapshot. Another node can create contents with its
    /// own label and any ID: such contents do not prevent this node from removing its snapshot.
    pub(crate) fn may_show(&self, id: &VolumeId, node: &str) -> bool {
        self.is_of_driver() && self.node().is_none_or(|served| served == node) && self.id().as_ref() == Some(id)
    }

    /// Handle of the group that the snapshot belongs to.
    pub(crate) fn group(&self) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(HANDLE).map(String::as_str)
    }

    /// The volume or snapshot that is on the disk of the content's node.
    pub(crate) fn origin(&self) -> Option<VolumeId> {
        let source = &self.spec.source;
        source.volume_handle.as_ref().or(source.snapshot_handle.as_ref())?.parse().ok()
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.ready_to_use == Some(true))
    }

    /// Size of the snapshot: the minimum size of a volume with its content.
    pub(crate) fn size(&self) -> Option<Bytes> {
        u64::try_from(self.status.as_ref()?.restore_size?).ok().map(Bytes::new)
    }
}
