//! Queue of notices: findings of other parts of the node that the provisioner publishes as events.

use std::fmt;
use std::sync::Arc;

use tokio::sync::{Mutex, mpsc};
use tracing::warn;

const CAPACITY: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pod {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

impl fmt::Display for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    Denied {
        pod: Pod,
        container: String,
        operation: &'static str,
        call: &'static str,
    },
    /// Pods can leave the limits of volumes on this node.
    LimitsAdvisory {
        reason: String,
    },
}

#[derive(Clone, Debug)]
pub struct Notices(mpsc::Sender<Notice>);

/// Receiver of notices. A provisioner that is started again continues with the same queue.
#[derive(Clone, Debug)]
pub struct NoticeQueue(Arc<Mutex<mpsc::Receiver<Notice>>>);

pub fn notices() -> (Notices, NoticeQueue) {
    let (sender, receiver) = mpsc::channel(CAPACITY);
    (Notices(sender), NoticeQueue(Arc::new(Mutex::new(receiver))))
}

impl Notices {
    /// Adds a notice without waiting. If the queue is full, the notice is logged and dropped. A closed queue drops it
    /// silently.
    pub fn send(&self, notice: Notice) {
        if let Err(mpsc::error::TrySendError::Full(notice)) = self.0.try_send(notice) {
            warn!(?notice, "queue of events full, notice dropped");
        }
    }
}

impl NoticeQueue {
    /// Waits for the next notice. Returns `None` when all senders are gone, or the queue is closed. Cancel-safe.
    pub async fn next(&self) -> Option<Notice> {
        self.0.lock().await.recv().await
    }

    /// Drops all notices, also later ones. For a program that does not run this provisioner, which publishes the
    /// events.
    pub async fn close(&self) {
        let mut queue = self.0.lock().await;
        queue.close();
        while queue.try_recv().is_ok() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: with external-provisioner, the queue was full after 64 notices, and each later notice logged a
    /// warning.
    #[tokio::test]
    async fn a_closed_queue_takes_no_notices() {
        let (notices, queue) = notices();
        let notice = |reason: &str| Notice::LimitsAdvisory { reason: reason.to_owned() };
        notices.send(notice("before"));
        queue.close().await;
        notices.send(notice("after"));
        assert_eq!(queue.next().await, None);
        let sent = notices.0.try_send(notice("full"));
        assert!(matches!(sent, Err(mpsc::error::TrySendError::Closed(_))), "{sent:?}");
    }
}
