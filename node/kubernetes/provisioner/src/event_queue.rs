//! Queue of events that are sent in the background. The work that an event reports does not wait for the event. Events
//! of success wait for the work of other passes: in a burst of claims, the API server limits the speed, and each
//! request delays the PVs behind it.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cluster::{EVENT_RATE, RateLimiter};
use futures::StreamExt as _;
use futures::future::OptionFuture;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::Event;
use supervisor::Context;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, warn};

use crate::Metrics;

/// Maximum number of queued events: more than a burst of claims has.
const CAPACITY: usize = 1024;

/// Number of waiting events above which the oldest ones are sent during writes, so that a longer burst does not fill
/// the queue.
const POSTPONED: usize = CAPACITY / 2;

/// Longest wait of an event for writes. The PVs of 500 claims take a few seconds on two cores. A user who looks at a
/// claim during a longer burst gets its event after this time.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Requests at once, so that a slow one does not delay the others.
const PARALLEL: usize = 4;

/// Time to send the events of the last passes when the provisioner ends.
const LAST: Duration = Duration::from_secs(2);

pub(crate) struct QueuedEvent {
    pub(crate) event: Event,
    pub(crate) regarding: ObjectReference,
    /// End of the event's wait for writes.
    pub(crate) due: Instant,
    pub(crate) limit: EventLimit,
}

/// Limit of the number of events of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventLimit {
    /// The reported work limits the number: the queue does not count the event.
    Work,
    /// [`EVENT_RATE`] of the namespace.
    Namespace,
}

pub(crate) struct EventQueue {
    waiting: Mutex<Waiting>,
    /// [`EventLimit::Namespace`], like the limit of the API server's `EventRateLimit` for other components. That plugin
    /// does not limit events of the group `events.k8s.io`, and the recorder keeps each series for minutes.
    namespaces: Mutex<RateLimiter>,
    /// Start of the time of `namespaces`.
    start: Instant,
    changed: Notify,
    metrics: Metrics,
}

#[derive(Default)]
struct Waiting {
    /// Events in the order of their arrival, the oldest first.
    events: VecDeque<QueuedEvent>,
    /// Number of [`PendingWrite`]s.
    writes: usize,
}

/// Guard of work that a user waits for and that writes to the API server.
#[must_use = "events go when this is dropped"]
pub(crate) struct PendingWrite<'a>(&'a EventQueue);

impl EventQueue {
    pub(crate) fn new(metrics: Metrics) -> Self {
        Self {
            waiting: Mutex::default(),
            namespaces: Mutex::new(RateLimiter::new(EVENT_RATE)),
            start: Instant::now(),
            changed: Notify::new(),
            metrics,
        }
    }

    /// Drops the event if its namespace has too many. If the queue is full, drops an older event of the same series, or
    /// else the oldest one.
    pub(crate) fn add(&self, event: QueuedEvent) {
        if let Some(namespace) = &event.regarding.namespace
            && event.limit == EventLimit::Namespace
            && !self.namespaces.lock().unwrap_or_else(PoisonError::into_inner).take(namespace, self.start.elapsed())
        {
            self.metrics.event_dropped();
            debug!(reason = event.event.reason, namespace, "too many events of the namespace, event dropped");
            return;
        }
        let mut waiting = self.waiting();
        let events = &mut waiting.events;
        let dropped = if events.len() < CAPACITY {
            None
        } else {
            let same = events.iter().position(|older| older.is_of_series(&event));
            events.remove(same.unwrap_or_default())
        };
        events.push_back(event);
        drop(waiting);
        if let Some(QueuedEvent { event, regarding, .. }) = dropped {
            self.metrics.event_dropped();
            warn!(reason = event.reason, name = regarding.name, "queue of events full, event dropped");
        }
        self.changed.notify_one();
    }

    pub(crate) fn begin_write(&self) -> PendingWrite<'_> {
        self.waiting().writes += 1;
        PendingWrite(self)
    }

    /// Removes the next event, unless all events wait for writes.
    pub(crate) fn next(&self) -> Option<QueuedEvent> {
        let mut waiting = self.waiting();
        let position = waiting.ready(Instant::now())?;
        waiting.events.remove(position)
    }

    /// Sends events until the service is cancelled, and then the remaining ones.
    pub(crate) async fn run<F: Future<Output = ()>>(&self, cx: Context, send: impl Fn(QueuedEvent) -> F) {
        let mut sending = FuturesUnordered::new();
        cx.healthy();
        while !cx.is_cancelled() {
            while sending.len() < PARALLEL
                && let Some(event) = self.next()
            {
                sending.push(send(event));
            }
            tokio::select! {
                () = cx.cancelled() => {}
                Some(()) = sending.next() => {}
                () = self.wait(), if sending.len() < PARALLEL => {}
            }
        }
        let rest = async {
            loop {
                while sending.len() < PARALLEL
                    && let Some(event) = self.pop()
                {
                    sending.push(send(event));
                }
                if sending.next().await.is_none() {
                    return;
                }
            }
        };
        if timeout(LAST, rest).await.is_err() {
            warn!("events not sent before the stop were dropped");
        }
    }

    /// Removes the oldest event, even if it waits for writes.
    fn pop(&self) -> Option<QueuedEvent> {
        self.waiting().events.pop_front()
    }

    /// Waits until [`next`](Self::next) may return an event. Cancel-safe.
    async fn wait(&self) {
        // All events that wait have the same longest wait, so that the oldest one is due first.
        let due = self.waiting().events.front().map(|event| event.due);
        tokio::select! {
            () = self.changed.notified() => {}
            Some(()) = OptionFuture::from(due.map(sleep_until)) => {}
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// Position of the next event.
    fn ready(&self, now: Instant) -> Option<usize> {
        let due = self.events.iter().find(|event| event.due <= now);
        let oldest = self.events.front().filter(|_| self.writes == 0 || self.events.len() > POSTPONED);
        let next = due.or(oldest)?;
        // The events of an object stay in their order.
        self.events.iter().position(|event| event.regarding == next.regarding)
    }
}

impl Drop for PendingWrite<'_> {
    fn drop(&mut self) {
        self.0.waiting().writes -= 1;
        self.0.changed.notify_one();
    }
}

impl QueuedEvent {
    fn is_of_series(&self, other: &Self) -> bool {
        self.regarding == other.regarding
            && self.event.reason == other.event.reason
            && self.event.action == other.event.action
            && self.event.secondary == other.event.secondary
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::events::EventType;
    use tokio::time::{advance, sleep};

    use super::*;

    fn event(name: &str, note: usize) -> QueuedEvent {
        let event = Event {
            type_: EventType::Normal,
            reason: "Provisioning".to_owned(),
            note: Some(note.to_string()),
            action: "Provision".to_owned(),
            secondary: None,
        };
        let regarding = ObjectReference { name: Some(name.to_owned()), ..ObjectReference::default() };
        QueuedEvent { event, regarding, due: Instant::now(), limit: EventLimit::Namespace }
    }

    fn success(name: &str, note: usize) -> QueuedEvent {
        QueuedEvent { due: Instant::now() + LONGEST_WAIT, limit: EventLimit::Work, ..event(name, note) }
    }

    fn text(event: QueuedEvent) -> (String, String) {
        (event.regarding.name.unwrap_or_default(), event.event.note.unwrap_or_default())
    }

    fn all(queue: &EventQueue) -> Vec<(String, String)> {
        std::iter::from_fn(|| queue.next()).map(text).collect()
    }

    /// Waits for the next event as the service does.
    async fn sent(queue: &EventQueue) -> QueuedEvent {
        loop {
            if let Some(event) = queue.next() {
                return event;
            }
            queue.wait().await;
        }
    }

    #[test]
    fn events_are_sent_in_their_order() {
        let queue = EventQueue::new(Metrics::default());
        for note in 0..3 {
            queue.add(event("same", note));
        }
        assert_eq!(all(&queue).into_iter().map(|(_, note)| note).collect::<Vec<_>>(), ["0", "1", "2"]);
    }

    #[test]
    fn without_a_write_an_event_goes_at_once() {
        let queue = EventQueue::new(Metrics::default());
        drop(queue.begin_write());
        queue.add(success("claim", 0));
        assert!(queue.next().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_of_success_goes_when_the_last_write_ends() {
        let (queue, start) = (EventQueue::new(Metrics::default()), Instant::now());
        let writes = [1, 2].map(|seconds| (queue.begin_write(), Duration::from_secs(seconds)));
        queue.add(success("claim", 0));
        let work = async {
            for (write, end) in writes {
                sleep(end.saturating_sub(start.elapsed())).await;
                drop(write);
            }
        };
        let sent = async {
            sent(&queue).await;
            start.elapsed()
        };
        let (end, ()) = tokio::join!(sent, work);
        assert!((Duration::from_secs(2)..Duration::from_secs(3)).contains(&end), "{end:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_of_success_waits_at_most_for_the_bound() {
        let (queue, start) = (EventQueue::new(Metrics::default()), Instant::now());
        let _write = queue.begin_write();
        queue.add(success("claim", 0));
        advance(LONGEST_WAIT / 2).await;
        queue.add(success("later", 0));
        assert_eq!(text(sent(&queue).await).0, "claim");
        let end = start.elapsed();
        assert!((LONGEST_WAIT..LONGEST_WAIT + Duration::from_secs(1)).contains(&end), "{end:?}");
        assert!(queue.next().is_none(), "the later event waits");
    }

    #[tokio::test(start_paused = true)]
    async fn other_events_pass_and_stay_behind_the_events_of_their_object() {
        let queue = EventQueue::new(Metrics::default());
        let _write = queue.begin_write();
        queue.add(success("first", 0));
        queue.add(success("second", 0));
        let failure = async {
            sleep(Duration::from_secs(1)).await;
            queue.add(event("second", 1));
        };
        let (sent, ()) = tokio::join!(sent(&queue), failure);
        let second = |note: &str| ("second".to_owned(), note.to_owned());
        assert_eq!((text(sent), all(&queue)), (second("0"), vec![second("1")]));
        assert_eq!(queue.pop().map(text), Some(("first".to_owned(), "0".to_owned())), "the end waits for no write");
    }

    #[tokio::test(start_paused = true)]
    async fn in_a_long_burst_the_oldest_events_go_before_the_queue_is_full() {
        let queue = EventQueue::new(Metrics::default());
        let _write = queue.begin_write();
        for number in 0..POSTPONED + 2 {
            queue.add(success(&number.to_string(), 0));
        }
        assert_eq!(all(&queue).into_iter().map(|(name, _)| name).collect::<Vec<_>>(), ["0", "1"]);
    }

    /// Regression: each value that a user wrote into an annotation caused an event of a new series.
    #[test]
    fn events_beyond_the_rate_of_a_namespace_are_dropped_and_counted() {
        let metrics = Metrics::default();
        let queue = EventQueue::new(metrics.clone());
        let is_sent = |note: usize, namespace: Option<&str>| {
            let mut event = event("data", note);
            event.regarding.namespace = namespace.map(str::to_owned);
            queue.add(event);
            queue.next().is_some()
        };
        let all = 2 * usize::try_from(EVENT_RATE.burst).unwrap();
        let sent = (0..all).filter(|note| is_sent(*note, Some("shop"))).count();
        assert!(sent >= all / 2 && sent < all, "{sent}");
        assert_eq!(usize::try_from(metrics.events_dropped()).unwrap(), all - sent);
        // Events of the Node and of another namespace are not limited by this namespace.
        assert!(is_sent(all, None) && is_sent(all, Some("other")));
    }

    #[test]
    fn the_limit_of_events_does_not_depend_on_their_wait() {
        let queue = EventQueue::new(Metrics::default());
        let all = 2 * usize::try_from(EVENT_RATE.burst).unwrap();
        let sent = |limit: EventLimit, wait: Duration| {
            let is_sent = |note: &usize| {
                let mut event = QueuedEvent { due: Instant::now() + wait, limit, ..event("data", *note) };
                event.regarding.namespace = Some("shop".to_owned());
                queue.add(event);
                queue.next().is_some()
            };
            (0..all).filter(is_sent).count()
        };
        assert_eq!(sent(EventLimit::Work, Duration::ZERO), all);
        assert!(sent(EventLimit::Namespace, LONGEST_WAIT) < all);
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

    /// Regression: the queue dropped an event about another volume. All of these events are on the Node.
    #[test]
    fn a_full_queue_drops_no_event_about_another_volume() {
        let queue = EventQueue::new(Metrics::default());
        let about = |volume: &str, note: usize| {
            let mut event = event("node", note);
            event.event.secondary =
                Some(ObjectReference { name: Some(volume.to_owned()), ..ObjectReference::default() });
            event
        };
        for number in 0..CAPACITY {
            queue.add(about(&number.to_string(), 0));
        }
        queue.add(about("7", 1));
        queue.add(about("new", 2));
        let volumes: Vec<_> = std::iter::from_fn(|| queue.next())
            .map(|queued| (queued.event.secondary.and_then(|volume| volume.name), queued.event.note))
            .collect();
        let has = |volume: &str, note: &str| volumes.contains(&(Some(volume.to_owned()), Some(note.to_owned())));
        assert!(has("7", "1") && !has("7", "0") && has("new", "2") && has("1", "0") && !has("0", "0"));
    }
}
