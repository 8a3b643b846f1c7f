//! Names of the API of volume snapshots (external-snapshotter, `pkg/utils`).

pub const GROUP: &str = "snapshot.storage.k8s.io";
pub const VERSION: &str = "v1";
pub const SNAPSHOT: &str = "VolumeSnapshot";
pub const SNAPSHOTS: &str = "volumesnapshots";
pub const CLASS: &str = "VolumeSnapshotClass";
pub const CLASSES: &str = "volumesnapshotclasses";
pub const CONTENT: &str = "VolumeSnapshotContent";
pub const CONTENTS: &str = "volumesnapshotcontents";

/// Label of a content with the node that serves it. The snapshot controller sets it.
pub const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";

/// Annotation of a content whose snapshot is deleted. The snapshot controller sets it.
pub const BEING_DELETED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";

/// Finalizer of a content. The snapshot controller adds it, and the node removes it.
pub const PROTECTION: &str = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";

/// Prefix of the name of a content that the snapshot controller creates for a snapshot; the UID of the snapshot
/// follows.
pub const CONTENT_PREFIX: &str = "snapcontent-";

/// Prefix of the ID of a snapshot that a node takes for a content; the UID of the content follows.
pub const ID_PREFIX: &str = "snapshot-";

/// Names of the API of snapshots of several volumes at one instant.
pub mod group {
    pub const GROUP: &str = "groupsnapshot.storage.k8s.io";
    pub const SNAPSHOT: &str = "VolumeGroupSnapshot";
    pub const SNAPSHOTS: &str = "volumegroupsnapshots";
    pub const CLASS: &str = "VolumeGroupSnapshotClass";
    pub const CLASSES: &str = "volumegroupsnapshotclasses";
    pub const CONTENT: &str = "VolumeGroupSnapshotContent";
    pub const CONTENTS: &str = "volumegroupsnapshotcontents";

    /// Annotation of a content whose group is deleted. The snapshot controller sets it.
    pub const BEING_DELETED: &str = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted";

    /// Finalizer of a content of a group. The snapshot controller adds it, and the node removes it.
    pub const PROTECTION: &str = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection";

    /// Annotation of the VolumeSnapshotContent of a member, with the handle of its group. The snapshot controller sets it.
    pub const HANDLE: &str = "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle";

    /// Prefix of the handle of a group; the UID of its content follows. The ID of a member is this handle, `-`, and the
    /// handle of its volume.
    pub const HANDLE_PREFIX: &str = "group-";
}
