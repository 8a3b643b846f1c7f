//! What owners of claims and volumes are told.

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource as _};
use tracing::warn;
use units::Bytes;
use volume::{DRIVER_NAME, Drifted, Mode, Record, VolumeId};

use crate::notice::Pod;
use crate::quantity;

/// The one list of reasons: none can be written that the test below does not look for in the page.
macro_rules! reasons {
    ($($variant:ident: $type:ident $name:literal,)*) => {
        /// Why an event is written. docs/operations/events.md tells what each means, and what to do.
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

            /// A warning if somebody may have to act.
            const fn type_(self) -> EventType {
                match self {
                    $(Self::$variant => EventType::$type,)*
                }
            }
        }
    };
}

// The names are those of the external provisioner and resizer, for what these do too.
reasons! {
    Provisioning: Normal "Provisioning",
    Provisioned: Normal "ProvisioningSucceeded",
    ProvisioningFailed: Warning "ProvisioningFailed",
    Resizing: Normal "Resizing",
    NodeResizes: Normal "FileSystemResizeRequired",
    Resized: Normal "VolumeResizeSuccessful",
    ResizeFailed: Warning "VolumeResizeFailed",
    DeleteFailed: Warning "VolumeFailedDelete",
    DetachRevoked: Warning "VolumeDetachRevoked",
    Lost: Warning "VolumeLost",
    Orphaned: Warning "OrphanedVolume",
    Drifted: Warning "VolumeProjectChanged",
    Denied: Warning "VolumeCallDenied",
    LimitsAdvisory: Warning "VolumeLimitsAdvisory",
}

/// The API takes notes of up to 1 kB.
const NOTE_LEN: usize = 1000;

/// Publishes events. One that cannot be published is logged: the work itself does not wait for it.
pub(crate) struct Events(Recorder);

impl Events {
    pub(crate) fn new(client: Client, node: &str) -> Self {
        Self(Recorder::new(client, Reporter { controller: DRIVER_NAME.to_owned(), instance: Some(node.to_owned()) }))
    }

    pub(crate) async fn provisioning(&self, claim: &PersistentVolumeClaim, node: &str) {
        let note = format!("node {node} makes the volume");
        self.publish(Reason::Provisioning, "Provision", note, claim.object_ref(&())).await;
    }

    pub(crate) async fn provisioned(
        &self,
        claim: &PersistentVolumeClaim,
        id: &VolumeId,
        record: &Record,
        free: Option<Bytes>,
    ) {
        let limits = match record.mode {
            Mode::Filesystem { inodes } => format!("is limited to {} and {inodes}", record.size),
            Mode::Block { allocation } => format!("is a disk of {} ({allocation})", record.size),
        };
        let note = format!("volume {id} {limits}{}", left(free));
        self.publish(Reason::Provisioned, "Provision", note, claim.object_ref(&())).await;
    }

    /// `kind` tells failures of one claim apart: those alike are counted, with the text of the first.
    pub(crate) async fn provisioning_failed(
        &self,
        claim: &PersistentVolumeClaim,
        kind: &str,
        error: &(dyn std::error::Error + Sync),
    ) {
        let action = format!("Provision{kind}");
        self.publish(Reason::ProvisioningFailed, &action, chain(error), claim.object_ref(&())).await;
    }

    pub(crate) async fn resizing(&self, claim: &PersistentVolumeClaim, has: Bytes, to: Bytes) {
        let note = format!("the volume grows from {has} to {to}");
        self.of_size(Reason::Resizing, "Expand", to, note, claim).await;
    }

    /// Once the volume has its size and pods do not see it yet.
    pub(crate) async fn node_resizes(&self, claim: &PersistentVolumeClaim, size: Bytes) {
        let note = format!("the volume has {size}; kubelet shows that to the pods that have its block device");
        self.of_size(Reason::NodeResizes, "Expand", size, note, claim).await;
    }

    pub(crate) async fn resized(&self, claim: &PersistentVolumeClaim, size: Bytes, free: Option<Bytes>) {
        let note = format!("the volume has {size}{}", left(free));
        self.of_size(Reason::Resized, "Expand", size, note, claim).await;
    }

    pub(crate) async fn resize_failed(
        &self,
        claim: &PersistentVolumeClaim,
        wanted: Bytes,
        kind: &str,
        error: &(dyn std::error::Error + Sync),
    ) {
        self.of_size(Reason::ResizeFailed, kind, wanted, chain(error), claim).await;
    }

    /// Events of one expansion are told apart from those of another, and counted among themselves.
    async fn of_size(&self, reason: Reason, action: &str, size: Bytes, note: String, claim: &PersistentVolumeClaim) {
        let action = format!("{action}To{}", quantity::text(size));
        self.publish(reason, &action, note, claim.object_ref(&())).await;
    }

    /// A volume that nothing in the cluster stands for. Its claim is gone: the node's owner is told.
    pub(crate) async fn orphaned(&self, node: &str, id: &VolumeId, record: &Record) {
        let Record { claim, size, mode, class, .. } = record;
        let note = format!(
            "{mode} volume {id} of {size} (class {class}, of claim {claim} with uid {}) has no PV; it is kept: make a PV \
             by hand to use it or to delete it",
            claim.uid
        );
        self.of_volume(Reason::Orphaned, "Compare", note, node, id).await;
    }

    /// Inodes of a volume do not count to its limit. The claim's owner may have done it, or may suffer from it: the
    /// node's owner is told.
    pub(crate) async fn drifted(&self, node: &str, id: &VolumeId, found: &Drifted) {
        let first = found.first.as_ref().map_or_else(String::new, |(path, drift)| {
            // A tenant chose the name.
            let path = if path.as_os_str().is_empty() { "the root".to_owned() } else { format!("{path:?}") };
            format!(", among them {path}, which {drift}")
        });
        let note = format!(
            "{} of volume {id} do not count to its limit{first}: the project of these files was changed from inside a pod \
             or by hand",
            found.inodes
        );
        self.of_volume(Reason::Drifted, "CheckProject", note, node, id).await;
    }

    /// The container goes on without what it tried.
    pub(crate) async fn denied(&self, pod: &Pod, container: &str, operation: &str, call: &str) {
        let note = format!(
            "container {container} was denied {call}, which could remove the limits of volumes; remove the call from the \
             program, or find out what the container runs"
        );
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(pod.namespace.clone()),
            name: Some(pod.name.clone()),
            uid: Some(pod.uid.clone()),
            ..ObjectReference::default()
        };
        // Of each container and operation a series of its own.
        self.publish(Reason::Denied, &format!("Deny-{operation}-{container}"), note, about).await;
    }

    /// Pods can leave the limits of volumes: the node's owner decides whether that is acceptable.
    pub(crate) async fn limits_advisory(&self, node: &str, reason: &str) {
        let note = format!("the limits of volumes are advisory on this node: {reason}");
        self.publish(Reason::LimitsAdvisory, "Restrict", note, reference(node)).await;
    }

    /// About the node, and one of its volumes.
    async fn of_volume(&self, reason: Reason, action: &str, note: String, node: &str, id: &VolumeId) {
        let about = reference(node);
        let volume = PersistentVolume {
            metadata: ObjectMeta { name: Some(id.to_string()), ..ObjectMeta::default() },
            ..PersistentVolume::default()
        };
        let event = Event {
            type_: reason.type_(),
            reason: reason.name().to_owned(),
            note: Some(shortened(note)),
            action: action.to_owned(),
            secondary: Some(volume.object_ref(&())),
        };
        self.send(&event, &about).await;
    }

    /// A PV that promises a volume which is not there.
    pub(crate) async fn lost(&self, pv: &PersistentVolume, reason: &(dyn std::error::Error + Sync)) {
        let note = format!(
            "{}; pods with this volume cannot start: bring the disk back, or delete claim and PV",
            chain(reason)
        );
        self.publish(Reason::Lost, "Compare", note, pv.object_ref(&())).await;
    }

    pub(crate) async fn delete_failed(
        &self,
        pv: &PersistentVolume,
        kind: &str,
        error: &(dyn std::error::Error + Sync),
    ) {
        let action = format!("Delete{kind}");
        self.publish(Reason::DeleteFailed, &action, chain(error), pv.object_ref(&())).await;
    }

    /// The volume's pods go on.
    pub(crate) async fn detach_revoked(&self, pv: &PersistentVolume) {
        let note = "a process tried to detach the volume's block device (LOOP_CLR_FD), and the node revoked it; look at \
                    the pods that use the claim";
        self.publish(Reason::DetachRevoked, "Detach", note.to_owned(), pv.object_ref(&())).await;
    }

    async fn publish(&self, reason: Reason, action: &str, note: String, about: ObjectReference) {
        let event = Event {
            type_: reason.type_(),
            reason: reason.name().to_owned(),
            note: Some(shortened(note)),
            action: action.to_owned(),
            secondary: None,
        };
        self.send(&event, &about).await;
    }

    async fn send(&self, event: &Event, about: &ObjectReference) {
        if let Err(error) = self.0.publish(event, about).await {
            let error: &dyn std::error::Error = &error;
            warn!(reason = event.reason, name = about.name, error, "event not published");
        }
    }
}

fn reference(node: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(node.to_owned()),
        // As kubelet does: `kubectl describe node` asks for the events with this uid.
        uid: Some(node.to_owned()),
        ..ObjectReference::default()
    }
}

fn left(free: Option<Bytes>) -> String {
    free.map_or_else(String::new, |free| format!("; {free} of the disk can still be promised"))
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        // Transparent errors say the same as their cause.
        if !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}

fn shortened(mut text: String) -> String {
    if text.len() > NOTE_LEN {
        let end = (0..=NOTE_LEN).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::page::{code, rows};

    const PAGE: &str = include_str!("../../../../docs/operations/events.md");

    #[test]
    fn the_page_has_every_event_and_no_other() {
        let rows = rows(PAGE, "The node's events");
        let described: BTreeSet<&str> = rows.iter().flat_map(|row| code(row[0])).collect();
        assert_eq!(described, Reason::ALL.iter().map(|reason| reason.name()).collect());
    }

    #[test]
    fn of_every_warning_the_page_says_what_to_do() {
        let is_warning = |name: &str| {
            Reason::ALL.iter().any(|reason| reason.name() == name && matches!(reason.type_(), EventType::Warning))
        };
        for row in rows(PAGE, "The node's events").iter().filter(|row| code(row[0]).any(is_warning)) {
            assert!(!row[3].is_empty(), "{row:?}");
        }
    }

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] Inner);

    #[derive(Debug, thiserror::Error)]
    #[error(transparent)]
    struct Inner(#[from] std::num::ParseIntError);

    #[test]
    fn an_error_is_told_with_its_causes() {
        let inner = "x".parse::<u8>().unwrap_err();
        assert_eq!(chain(&Outer(Inner(inner.clone()))), format!("outer: {inner}"));
    }

    proptest! {
        #[test]
        fn a_note_fits_and_stays_text(text in "(ä|b|€){0,2000}") {
            let short = shortened(text.clone());
            prop_assert!(short.len() <= NOTE_LEN && text.starts_with(&short));
            prop_assert!(text.len() - short.len() == 0 || short.len() > NOTE_LEN - 4);
        }
    }
}
