//! Events that wait for their requests. The work that an event reports does not wait for it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::Event;
use supervisor::Context;
use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::warn;

use crate::Metrics;
use crate::context::{Provisioner, RunError};

/// More than a burst of claims has.
const CAPACITY: usize = 1024;

/// Requests at once, so that a slow one does not delay the others.
const PARALLEL: usize = 4;

/// For the events of the last passes, when the provisioner ends.
const LAST: Duration = Duration::from_secs(2);

pub(crate) struct QueuedEvent {
    pub(crate) event: Event,
    pub(crate) regarding: ObjectReference,
}

#[derive(Default)]
pub(crate) struct EventQueue {
    waiting: Mutex<VecDeque<QueuedEvent>>,
    added: Notify,
    metrics: Metrics,
}

impl EventQueue {
    pub(crate) fn new(metrics: Metrics) -> Self {
        Self { metrics, ..Self::default() }
    }

    /// If the queue is full, drops an older event of the same series, or else the oldest one.
    pub(crate) fn add(&self, event: QueuedEvent) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let dropped = if waiting.len() < CAPACITY {
            None
        } else {
            let same = waiting.iter().position(|older| older.is_of_series(&event));
            waiting.remove(same.unwrap_or_default())
        };
        waiting.push_back(event);
        drop(waiting);
        if let Some(QueuedEvent { event, regarding }) = dropped {
            self.metrics.event_dropped();
            warn!(reason = event.reason, name = regarding.name, "queue of events full, event dropped");
        }
        self.added.notify_one();
    }

    pub(crate) fn next(&self) -> Option<QueuedEvent> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

impl QueuedEvent {
    fn is_of_series(&self, other: &Self) -> bool {
        self.regarding == other.regarding
            && self.event.reason == other.event.reason
            && self.event.action == other.event.action
    }
}

/// Sends events until it is cancelled, and then the rest.
pub(crate) async fn run(cx: Context, provisioner: Arc<Provisioner>) -> Result<(), RunError> {
    let events = &provisioner.events;
    let mut sending = FuturesUnordered::new();
    cx.healthy();
    while !cx.is_cancelled() {
        while sending.len() < PARALLEL
            && let Some(event) = events.queue.next()
        {
            sending.push(events.send(event));
        }
        tokio::select! {
            () = cx.cancelled() => {}
            Some(()) = sending.next() => {}
            () = events.queue.added.notified() => {}
        }
    }
    let rest = async {
        loop {
            while sending.len() < PARALLEL
                && let Some(event) = events.queue.next()
            {
                sending.push(events.send(event));
            }
            if sending.next().await.is_none() {
                return;
            }
        }
    };
    if timeout(LAST, rest).await.is_err() {
        warn!("not all events were sent before the end");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use kube::runtime::events::EventType;

    use super::*;

    fn event(name: &str, note: usize) -> QueuedEvent {
        let event = Event {
            type_: EventType::Normal,
            reason: "Provisioning".to_owned(),
            note: Some(note.to_string()),
            action: "Provision".to_owned(),
            secondary: None,
        };
        QueuedEvent { event, regarding: ObjectReference { name: Some(name.to_owned()), ..ObjectReference::default() } }
    }

    fn all(queue: &EventQueue) -> Vec<(String, String)> {
        let text =
            |event: QueuedEvent| (event.regarding.name.unwrap_or_default(), event.event.note.unwrap_or_default());
        std::iter::from_fn(|| queue.next()).map(text).collect()
    }

    #[test]
    fn events_are_sent_in_their_order() {
        let queue = EventQueue::default();
        for note in 0..3 {
            queue.add(event("same", note));
        }
        assert_eq!(all(&queue).into_iter().map(|(_, note)| note).collect::<Vec<_>>(), ["0", "1", "2"]);
    }

    #[test]
    fn a_full_queue_drops_an_event_of_the_series_or_the_oldest() {
        let metrics = Metrics::default();
        let queue = EventQueue::new(metrics.clone());
        for number in 0..CAPACITY {
            queue.add(event(&number.to_string(), 0));
        }
        assert_eq!(metrics.events_dropped(), 0);
        queue.add(event("7", 1));
        queue.add(event("new", 2));
        assert_eq!(metrics.events_dropped(), 2);
        let all = all(&queue);
        assert_eq!(all.len(), CAPACITY);
        assert_eq!(all[0].0, "1", "the oldest was dropped");
        let of_seven: Vec<_> = all.iter().filter(|(name, _)| name == "7").map(|(_, note)| note.as_str()).collect();
        assert_eq!(of_seven, ["1"]);
        assert_eq!(all[CAPACITY - 1].0, "new");
    }
}
