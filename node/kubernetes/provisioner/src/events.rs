//! Events on claims, PVs, snapshots, pods and the Node.

use std::collections::BTreeMap;
use std::time::Duration;

use cluster::claim::RESTORE_FROM;
use cluster::snapshot::MANAGED_BY;
use fsquota::{Limits, Usage};
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource as _};
use supervisor::Context;
use tokio::time::Instant;
use tracing::warn;
use units::Bytes;
use volume::{Claim, DRIVER_NAME, DiskFault, Drifted, IoLimits, Mode, Record, VolumeId};

use crate::Metrics;
use crate::error::Error;
use crate::event_queue::{EventLimit, EventQueue, LONGEST_WAIT, QueuedEvent};
use crate::group::object::{GroupContent, GroupVersion};
use crate::notice::Pod;
use crate::quantity;
use crate::snapshot::object::Content;

/// The only list of reasons: a test compares it with docs/operations/events.md.
macro_rules! reasons {
    ($($variant:ident: $type:ident $name:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Reason {
            $($variant,)*
        }

        impl Reason {
            #[cfg(test)]
            const ALL: &[Self] = &[$(Self::$variant),*];

            const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// A warning if a user or administrator may have to act.
            const fn type_(self) -> EventType {
                match self {
                    $(Self::$variant => EventType::$type,)*
                }
            }
        }
    };
}

// The reasons are those of external-provisioner and external-resizer, as far as these have such events.
reasons! {
    Provisioning: Normal "Provisioning",
    Provisioned: Normal "ProvisioningSucceeded",
    ProvisioningFailed: Warning "ProvisioningFailed",
    Resizing: Normal "Resizing",
    NodeResizes: Normal "FileSystemResizeRequired",
    Resized: Normal "VolumeResizeSuccessful",
    ResizeFailed: Warning "VolumeResizeFailed",
    Modifying: Normal "VolumeModify",
    Modified: Normal "VolumeModifySuccessful",
    ModifyCanceled: Normal "VolumeModifyCanceled",
    ModifyFailed: Warning "VolumeModifyFailed",
    RollbackStarted: Normal "RollbackStarted",
    RollbackWaits: Warning "RollbackWaiting",
    RolledBack: Normal "RolledBack",
    RollbackFailed: Warning "RollbackFailed",
    DeleteFailed: Warning "VolumeFailedDelete",
    DetachRevoked: Warning "VolumeDetachRevoked",
    SnapshotTaken: Normal "SnapshotTaken",
    SnapshotFailed: Warning "SnapshotCreationFailed",
    SnapshotDeleteFailed: Warning "SnapshotDeleteError",
    SnapshotCopyFailed: Warning "SnapshotCopyFailed",
    GroupTaken: Normal "GroupSnapshotTaken",
    GroupFailed: Warning "GroupSnapshotCreationFailed",
    GroupDeleteFailed: Warning "GroupSnapshotDeleteError",
    SnapshotsUnavailable: Normal "SnapshotsUnavailable",
    SnapshotsNotDistributed: Warning "SnapshotsNotDistributed",
    Lost: Warning "VolumeLost",
    Orphaned: Warning "OrphanedVolume",
    Drifted: Warning "VolumeProjectChanged",
    Denied: Warning "VolumeCallDenied",
    LimitsAdvisory: Warning "VolumeLimitsAdvisory",
    AlmostFull: Warning "VolumeAlmostFull",
    LimitsChanged: Warning "VolumeLimitsChanged",
    DiskFault: Warning "DataDiskFault",
}

impl Reason {
    /// Longest wait for the writes of other passes, and limit of the number. Only events of success wait: the other
    /// ones announce work, or report a failure that may need a user.
    const fn wait_and_limit(self) -> (Duration, EventLimit) {
        match self {
            Self::Provisioned
            | Self::Resized
            | Self::Modified
            | Self::RolledBack
            | Self::SnapshotTaken
            | Self::GroupTaken => (LONGEST_WAIT, EventLimit::Work),
            _ => (Duration::ZERO, EventLimit::Namespace),
        }
    }
}

/// Users of a volume that delay its rollback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RollbackWait {
    Pods,
    Clones,
}

/// Maximum length of a note. The API server rejects notes above 1 KiB.
const NOTE_LEN: usize = 1000;

pub(crate) struct Events {
    recorder: Recorder,
    pub(crate) queue: EventQueue,
}

impl Events {
    pub(crate) fn new(client: Client, node: &str, metrics: Metrics) -> Self {
        let reporter = Reporter { controller: DRIVER_NAME.to_owned(), instance: Some(node.to_owned()) };
        Self { recorder: Recorder::new(client, reporter), queue: EventQueue::new(metrics) }
    }

    pub(crate) fn provisioning(&self, claim: &PersistentVolumeClaim, node: &str) {
        let note = format!("node {node} creates the volume");
        self.publish(Reason::Provisioning, "Provision", note, claim.object_ref(&()));
    }

    pub(crate) fn provisioned(
        &self,
        claim: &PersistentVolumeClaim,
        id: &VolumeId,
        record: &Record,
        free: Option<Bytes>,
    ) {
        let limits = match record.mode {
            Mode::Filesystem { inodes } => format!("is limited to {} and {inodes}", record.size),
            Mode::Block { allocation } => format!("is a block device of {} ({allocation})", record.size),
            Mode::Snapshot { .. } | Mode::SnapshotTree { .. } => format!("is a snapshot of {}", record.size),
        };
        let io = if record.io.is_none() { String::new() } else { format!(", with {}", record.io) };
        let note = format!("volume {id} {limits}{io}{}", free_space(free));
        self.publish(Reason::Provisioned, "Provision", note, claim.object_ref(&()));
    }

    /// Failures of the same kind of one claim are one series, with the text of the first failure.
    pub(crate) fn provisioning_failed(&self, claim: &PersistentVolumeClaim, error: &Error) {
        self.publish_failure(Reason::ProvisioningFailed, "Provision", error, &[claim.object_ref(&())]);
    }

    /// The event is also on the claim that a populator fills, because its user may not see the temporary claim.
    pub(crate) fn population_failed(&self, claim: &PersistentVolumeClaim, temporary: &Claim, error: &Error) {
        let note = format!("temporary claim {temporary} of the volume populator: {}", causes::line(error));
        self.publish(Reason::ProvisioningFailed, &format!("Populate{}", error.kind()), note, claim.object_ref(&()));
    }

    pub(crate) fn resizing(&self, claim: &PersistentVolumeClaim, has: Bytes, to: Bytes) {
        let note = format!("expanding the volume from {has} to {to}");
        self.publish_size(Reason::Resizing, "Expand", to, note, claim);
    }

    /// The volume is expanded, but not the block device of pods.
    pub(crate) fn node_resizes(&self, claim: &PersistentVolumeClaim, size: Bytes) {
        let note = format!("the volume has {size}; the kubelet refreshes the block device of its pods");
        self.publish_size(Reason::NodeResizes, "Expand", size, note, claim);
    }

    pub(crate) fn resized(&self, claim: &PersistentVolumeClaim, size: Bytes, free: Option<Bytes>) {
        let note = format!("the volume has {size}{}", free_space(free));
        self.publish_size(Reason::Resized, "Expand", size, note, claim);
    }

    pub(crate) fn resize_failed(&self, claim: &PersistentVolumeClaim, wanted: Bytes, error: &Error) {
        self.publish_size(Reason::ResizeFailed, error.kind(), wanted, causes::line(error), claim);
    }

    pub(crate) fn modifying(&self, claim: &PersistentVolumeClaim, class: &str) {
        let note = format!("applying class {class} to the volume");
        self.publish_class(Reason::Modifying, "Modify", class, note, claim);
    }

    pub(crate) fn modified(&self, claim: &PersistentVolumeClaim, class: &str, io: IoLimits) {
        let note = format!("the volume has class {class}: {io}");
        self.publish_class(Reason::Modified, "Modify", class, note, claim);
    }

    pub(crate) fn modify_canceled(&self, claim: &PersistentVolumeClaim) {
        let note = "the claim no longer requests a class; the volume is unchanged".to_owned();
        self.publish(Reason::ModifyCanceled, "Modify", note, claim.object_ref(&()));
    }

    pub(crate) fn modify_failed(&self, claim: &PersistentVolumeClaim, class: &str, error: &Error) {
        self.publish_class(Reason::ModifyFailed, error.kind(), class, causes::line(error), claim);
    }

    pub(crate) fn rollback_started(&self, claim: &PersistentVolumeClaim, node: &str, snapshot: &str) {
        let note = format!(
            "node {node} copies the content of snapshot {snapshot}, and rolls the volume back when no pod uses it. To \
             cancel, remove the annotation {RESTORE_FROM}"
        );
        self.publish_named(Reason::RollbackStarted, "RollBack", snapshot, note, claim);
    }

    pub(crate) fn rollback_waits(
        &self,
        claim: &PersistentVolumeClaim,
        snapshot: &str,
        wait: RollbackWait,
        error: &volume::Error,
    ) {
        let (action, until) = match wait {
            RollbackWait::Pods => ("RollBackWait", "no pod uses the volume"),
            RollbackWait::Clones => ("RollBackWaitClones", "no clone or snapshot of the volume is being created"),
        };
        let note = format!("the rollback waits until {until}: {}", causes::line(error));
        self.publish_named(Reason::RollbackWaits, action, snapshot, note, claim);
    }

    pub(crate) fn rolled_back(&self, claim: &PersistentVolumeClaim, snapshot: Option<&str>, kept: &str) {
        let snapshot = snapshot.map_or_else(|| "the requested snapshot".to_owned(), |name| format!("snapshot {name}"));
        let note = format!(
            "the volume has the content of {snapshot}; snapshot {kept} has the former content. Delete it to confirm, or set the \
             annotation {RESTORE_FROM} to it to undo the rollback"
        );
        self.publish_named(Reason::RolledBack, "RolledBack", kept, note, claim);
    }

    pub(crate) fn rollback_failed(&self, claim: &PersistentVolumeClaim, snapshot: &str, error: &Error) {
        let action = format!("RollBack{}", error.kind());
        self.publish_named(Reason::RollbackFailed, &action, snapshot, causes::line(error), claim);
    }

    fn publish_class(&self, reason: Reason, action: &str, class: &str, note: String, claim: &PersistentVolumeClaim) {
        self.publish_named(reason, &format!("{action}To"), class, note, claim);
    }

    /// Publishes an event whose action includes the name, so that each name has its own series. An action has at most
    /// 128 bytes.
    fn publish_named(&self, reason: Reason, action: &str, name: &str, note: String, claim: &PersistentVolumeClaim) {
        let name = &name[..name.floor_char_boundary(80)];
        self.publish(reason, &format!("{action}-{name}"), note, claim.object_ref(&()));
    }

    /// Publishes an event whose action includes the size, so that each size has its own series.
    fn publish_size(&self, reason: Reason, action: &str, size: Bytes, note: String, claim: &PersistentVolumeClaim) {
        let action = format!("{action}To{}", quantity::text(size));
        self.publish(reason, &action, note, claim.object_ref(&()));
    }

    /// The event is on the Node, because the claim does not exist.
    pub(crate) fn orphaned(&self, node: &str, id: &VolumeId, record: &Record) {
        let Record { claim, size, mode, class, .. } = record;
        let note = if mode.is_snapshot() {
            format!(
                "snapshot {id} of {size} (sourceVolumeMode {}, of VolumeSnapshot {claim}, content with uid {}) has no \
                 VolumeSnapshotContent; it is kept: create a content with this snapshotHandle to use it or to delete it",
                source_mode(*mode),
                claim.uid
            )
        } else {
            format!(
                "{mode} volume {id} of {size} (class {class}, of claim {claim} with uid {}) has no PV; it is kept: create a \
                 PV to use it or to delete it",
                claim.uid
            )
        };
        self.publish_on_node(Reason::Orphaned, "Compare", note, node, id);
    }

    /// The event is on the Node, because the user of the claim may have changed the project.
    pub(crate) fn drifted(&self, node: &str, id: &VolumeId, found: &Drifted) {
        let first = found.first.as_ref().map_or_else(String::new, |(path, drift)| {
            // `Debug` escapes the name, which a tenant chose.
            let path = if path.as_os_str().is_empty() { "the root".to_owned() } else { format!("{path:?}") };
            format!(", among them {path}, which {drift}")
        });
        let note = format!(
            "{} of volume {id} do not count to its limit{first}: the project of these files was changed from inside a pod \
             or by hand",
            found.inodes
        );
        self.publish_on_node(Reason::Drifted, "CheckProject", note, node, id);
    }

    /// A call of a container was denied. The call failed, and the container continues.
    pub(crate) fn denied(&self, pod: &Pod, container: &str, operation: &str, call: &str) {
        let note = format!(
            "container {container} was denied {call}, which could remove the limits of volumes; remove the call from the \
             program, or find the program that makes the call"
        );
        let pod = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(pod.namespace.clone()),
            name: Some(pod.name.clone()),
            uid: Some(pod.uid.clone()),
            ..ObjectReference::default()
        };
        // Each container and operation has a series of its own.
        self.publish(Reason::Denied, &format!("Deny-{operation}-{container}"), note, pod);
    }

    pub(crate) fn limits_advisory(&self, node: &str, reason: &str) {
        let note = format!("the limits of volumes are advisory on this node: {reason}");
        self.publish(Reason::LimitsAdvisory, "Restrict", note, node_reference(node));
    }

    pub(crate) fn almost_full(&self, claim: ObjectReference, percent: u64, record: &Record, used: Usage) {
        let files = match record.mode {
            Mode::Filesystem { inodes } => format!(", and {} of its {inodes}", used.inodes.get()),
            Mode::Block { .. } | Mode::Snapshot { .. } | Mode::SnapshotTree { .. } => String::new(),
        };
        let note = format!(
            "the volume is {percent} % full: {} of its {} are used{files}; delete files, or expand the claim",
            used.bytes, record.size
        );
        self.publish(Reason::AlmostFull, "CheckUsage", note, claim);
    }

    /// The event is on the Node, because only a program with `CAP_SYS_ADMIN` can change the limits.
    pub(crate) fn limits_changed(&self, node: &str, id: &VolumeId, found: Limits, record: &Record) {
        let or_none = |limit: Option<String>| limit.unwrap_or_else(|| "none".to_owned());
        let note = format!(
            "the limits of volume {id} (claim {}) were changed: its size is {}, its limit of space {}, of files {}; \
             restart the node, which sets them again, and find the program that changed them",
            record.claim,
            record.size,
            or_none(found.bytes.map(|bytes| bytes.to_string())),
            or_none(found.inodes.map(|inodes| inodes.to_string())),
        );
        self.publish_on_node(Reason::LimitsChanged, "CheckLimits", note, node, id);
    }

    pub(crate) fn disk_fault(&self, node: &str, fault: &DiskFault) {
        let note = format!("{fault}; back up the data disk, then repair or replace it");
        // Each kind of fault has a series of its own.
        self.publish(Reason::DiskFault, &format!("CheckDisk-{}", fault.kind()), note, node_reference(node));
    }

    pub(crate) fn lost(&self, pv: &PersistentVolume, reason: &(dyn std::error::Error + Sync)) {
        let note = format!(
            "{}; pods with this volume cannot start: attach the disk with the volume, or delete the claim and the PV",
            causes::line(reason)
        );
        self.publish(Reason::Lost, "Compare", note, pv.object_ref(&()));
    }

    pub(crate) fn delete_failed(&self, pv: &PersistentVolume, error: &Error) {
        self.publish_failure(Reason::DeleteFailed, "Delete", error, &[pv.object_ref(&())]);
    }

    pub(crate) fn snapshot_taken(&self, content: &Content, node: &str, record: &Record, free: Option<Bytes>) {
        let reserved = record.mode.reserved(record.size);
        // The headroom of the source, and the space that a tree reserves beside its size while it shares blocks.
        let more = record.reserved().saturating_sub(reserved);
        let more =
            if more == Bytes::ZERO { String::new() } else { format!(", and {more} more until its blocks are copied") };
        let (size, free) = (record.size, free_space(free));
        let note = if record.mode.is_thin() {
            format!(
                "node {node} has taken the thin snapshot of {size}; it reserves nothing and shares its blocks with the volume: \
                 as long as it exists, overwriting the volume takes space of the disk that nothing reserves{free}"
            )
        } else {
            format!("node {node} has taken the snapshot of {size}; it reserves {reserved}{more}{free}")
        };
        self.publish_to_each(Reason::SnapshotTaken, "TakeSnapshot", &note, &of_snapshot(content));
    }

    /// The event is on the Node: without the kinds, there are no snapshots.
    pub(crate) fn snapshots_unavailable(&self, node: &str) {
        let note = "the cluster does not have the CRDs of snapshot.storage.k8s.io/v1; to use snapshots, install them and the \
                    snapshot controller";
        self.publish(Reason::SnapshotsUnavailable, "FindSnapshots", note.to_owned(), node_reference(node));
    }

    /// The event is on the Node, because the snapshot itself is taken.
    pub(crate) fn snapshots_not_distributed(&self, content: &Content, node: &str) {
        let note = format!(
            "the snapshot controller created content {} without the label {MANAGED_BY}, which node {node} sets now; start the \
             controller with --enable-distributed-snapshotting and the right to get, list and watch Nodes",
            content.metadata.name.as_deref().unwrap_or_default()
        );
        self.publish(Reason::SnapshotsNotDistributed, "FindSnapshots", note, node_reference(node));
    }

    pub(crate) fn snapshot_failed(&self, content: &Content, error: &Error) {
        self.publish_failure(Reason::SnapshotFailed, "TakeSnapshot", error, &of_snapshot(content));
    }

    pub(crate) fn snapshot_delete_failed(&self, content: &Content, error: &Error) {
        self.publish_failure(Reason::SnapshotDeleteFailed, "DeleteSnapshot", error, &of_snapshot(content));
    }

    /// The event is on the Node, because the content may be gone.
    pub(crate) fn snapshot_copy_failed(&self, node: &str, id: &VolumeId, record: &Record, error: &Error) {
        let note = format!(
            "the blocks of snapshot {id} (VolumeSnapshot {}) cannot be copied: {}; the snapshot stays, and the node tries \
             again",
            record.claim,
            causes::line(error)
        );
        self.publish_on_node(Reason::SnapshotCopyFailed, &format!("CopySnapshot{}", error.kind()), note, node, id);
    }

    /// The note states how much space the snapshots reserve.
    pub(crate) fn group_taken(
        &self,
        content: &GroupContent,
        node: &str,
        records: &BTreeMap<VolumeId, Record>,
        free: Option<Bytes>,
    ) {
        let reserved: Bytes = records.values().map(Record::reserved).sum();
        let (count, free) = (records.len(), free_space(free));
        let cost = if records.values().all(|record| record.mode.is_thin()) {
            "they are thin: they reserve nothing, and overwriting the volumes takes space of the disk that nothing reserves"
                .to_owned()
        } else {
            format!("until their blocks are copied, they reserve {reserved}")
        };
        let note = format!("node {node} has taken {count} snapshots at one instant; {cost}{free}");
        self.publish_to_each(Reason::GroupTaken, "TakeGroup", &note, &of_group(content));
    }

    pub(crate) fn group_failed(&self, content: &GroupContent, error: &Error) {
        self.publish_failure(Reason::GroupFailed, "TakeGroup", error, &of_group(content));
    }

    pub(crate) fn group_delete_failed(&self, content: &GroupContent, error: &Error) {
        self.publish_failure(Reason::GroupDeleteFailed, "DeleteGroup", error, &of_group(content));
    }

    /// The node revoked the detach, and I/O of the volume's pods continues.
    pub(crate) fn detach_revoked(&self, pv: &PersistentVolume) {
        let note = "a process tried to detach the volume's block device (LOOP_CLR_FD), and the node revoked it; look at \
                    the pods that use the claim";
        self.publish(Reason::DetachRevoked, "Detach", note.to_owned(), pv.object_ref(&()));
    }

    /// Publishes an event whose action includes the kind of the error, so that each kind has its own series.
    fn publish_failure(&self, reason: Reason, action: &str, error: &Error, regarding: &[ObjectReference]) {
        self.publish_to_each(reason, &format!("{action}{}", error.kind()), &causes::line(error), regarding);
    }

    /// Publishes the event on each object, because the owner of a snapshot or a group does not see its content.
    fn publish_to_each(&self, reason: Reason, action: &str, note: &str, regarding: &[ObjectReference]) {
        for object in regarding {
            self.publish(reason, action, note.to_owned(), object.clone());
        }
    }

    fn publish(&self, reason: Reason, action: &str, note: String, regarding: ObjectReference) {
        self.add(reason, action, note, regarding, None);
    }

    /// Publishes an event about a volume on the Node, so that the administrator of the node gets it.
    fn publish_on_node(&self, reason: Reason, action: &str, note: String, node: &str, id: &VolumeId) {
        let volume = PersistentVolume {
            metadata: ObjectMeta { name: Some(id.to_string()), ..ObjectMeta::default() },
            ..PersistentVolume::default()
        };
        self.add(reason, action, note, node_reference(node), Some(volume.object_ref(&())));
    }

    fn add(
        &self,
        reason: Reason,
        action: &str,
        note: String,
        regarding: ObjectReference,
        secondary: Option<ObjectReference>,
    ) {
        let event = Event {
            type_: reason.type_(),
            reason: reason.name().to_owned(),
            note: Some(shortened(note)),
            action: action.to_owned(),
            secondary,
        };
        let (wait, limit) = reason.wait_and_limit();
        self.queue.add(QueuedEvent { event, regarding, due: Instant::now() + wait, limit });
    }

    /// Sends queued events until the service is cancelled.
    pub(crate) async fn run(&self, cx: Context) {
        self.queue.run(cx, |event| self.send(event)).await;
    }

    /// Sends an event. A failure is only logged: the operation does not depend on its event.
    async fn send(&self, QueuedEvent { event, regarding, .. }: QueuedEvent) {
        if let Err(error) = self.recorder.publish(&event, &regarding).await {
            warn!(reason = event.reason, name = regarding.name, error = causes::of(&error), "event not published");
        }
    }
}

/// `spec.sourceVolumeMode` of the content of a snapshot.
pub(crate) fn source_mode(snapshot: Mode) -> &'static str {
    if snapshot.is_block() { "Block" } else { "Filesystem" }
}

fn of_snapshot(content: &Content) -> [ObjectReference; 2] {
    [content.object_ref(&()), content.spec.volume_snapshot_ref.clone()]
}

fn of_group(content: &GroupContent) -> [ObjectReference; 2] {
    [content.object_ref(&GroupVersion::default()), content.spec.volume_group_snapshot_ref.clone()]
}

fn node_reference(node: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(node.to_owned()),
        // The kubelet uses the same UID: `kubectl describe node` selects events by it.
        uid: Some(node.to_owned()),
        ..ObjectReference::default()
    }
}

fn free_space(free: Option<Bytes>) -> String {
    free.map_or_else(String::new, |free| format!("; {free} of the disk are unreserved"))
}

/// Shortens a text for a note. Texts contain names of files, which tenants choose: a path can have 32 KiB, more with
/// its escapes.
pub(crate) fn shortened(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(NOTE_LEN));
    text
}

#[cfg(test)]
mod tests;
