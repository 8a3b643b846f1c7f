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

/// The ID of the snapshot that a node takes for a content starts with it; the UID of the content follows.
pub const ID_PREFIX: &str = "snapshot-";
