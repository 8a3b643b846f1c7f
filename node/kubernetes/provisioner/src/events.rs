//! What owners of claims and volumes are told.

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource as _};
use tracing::warn;
use units::Bytes;
use volume::{DRIVER_NAME, Record, VolumeId};

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
        self.publish(EventType::Normal, "Provisioning", "Provision", note, claim.object_ref(&())).await;
    }

    pub(crate) async fn provisioned(
        &self,
        claim: &PersistentVolumeClaim,
        id: &VolumeId,
        record: &Record,
        free: Option<Bytes>,
    ) {
        let left = free.map_or_else(String::new, |free| format!("; {free} of the disk can still be promised"));
        let note = format!("volume {id} is limited to {} and {}{left}", record.size, record.inodes);
        self.publish(EventType::Normal, "ProvisioningSucceeded", "Provision", note, claim.object_ref(&())).await;
    }

    /// `kind` tells failures of one claim apart: those alike are counted, with the text of the first.
    pub(crate) async fn provisioning_failed(
        &self,
        claim: &PersistentVolumeClaim,
        kind: &str,
        error: &(dyn std::error::Error + Sync),
    ) {
        let action = format!("Provision{kind}");
        self.publish(EventType::Warning, "ProvisioningFailed", &action, chain(error), claim.object_ref(&())).await;
    }

    pub(crate) async fn resize_refused(&self, claim: &PersistentVolumeClaim, has: Bytes, wants: Bytes) {
        let note = format!("volumes cannot be expanded yet: the volume keeps {has}, {wants} was asked for");
        self.publish(EventType::Warning, "VolumeResizeFailed", "Resize", note, claim.object_ref(&())).await;
    }

    pub(crate) async fn delete_failed(
        &self,
        pv: &PersistentVolume,
        kind: &str,
        error: &(dyn std::error::Error + Sync),
    ) {
        let action = format!("Delete{kind}");
        self.publish(EventType::Warning, "VolumeFailedDelete", &action, chain(error), pv.object_ref(&())).await;
    }

    async fn publish(&self, type_: EventType, reason: &str, action: &str, note: String, about: ObjectReference) {
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(shortened(note)),
            action: action.to_owned(),
            secondary: None,
        };
        if let Err(error) = self.0.publish(&event, &about).await {
            let error: &dyn std::error::Error = &error;
            warn!(reason, name = about.name, error, "event not published");
        }
    }
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
    use proptest::prelude::*;

    use super::*;

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
