//! Notices: what other parts of the node found, and the provisioner publishes as events.

use std::fmt;
use std::sync::Arc;

use supervisor::Context;
use tokio::sync::{Mutex, mpsc};
use tracing::warn;

use crate::controller::{Provisioner, RunError};

/// Notices that wait for the API server at most; further ones are dropped.
const WAITING: usize = 64;

/// A pod, as an event refers to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

impl fmt::Display for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A call of a container was denied.
    Denied {
        /// The container's pod.
        pod: Pod,
        /// The container's name.
        container: String,
        /// The kind of call, one word.
        operation: &'static str,
        /// What the call would change.
        call: &'static str,
    },
    /// Pods can leave the limits of volumes on this node.
    LimitsAdvisory {
        /// Why.
        reason: String,
    },
}

/// Takes notices.
#[derive(Clone, Debug)]
pub struct Notices(mpsc::Sender<Notice>);

/// The notices that were taken. A provisioner that is started again goes on with them.
#[derive(Clone, Debug)]
pub struct NoticeQueue(Arc<Mutex<mpsc::Receiver<Notice>>>);

/// The two ends of a queue.
pub fn notices() -> (Notices, NoticeQueue) {
    let (sender, receiver) = mpsc::channel(WAITING);
    (Notices(sender), NoticeQueue(Arc::new(Mutex::new(receiver))))
}

impl Notices {
    /// Does not wait: a notice for which there is no space is dropped, and logged.
    pub fn send(&self, notice: Notice) {
        if let Err(mpsc::error::TrySendError::Full(notice)) = self.0.try_send(notice) {
            warn!(?notice, "event not published: too many of them wait for the API server");
        }
    }
}

impl NoticeQueue {
    /// The next notice; `None` if there will be none. Cancel-safe.
    pub async fn next(&self) -> Option<Notice> {
        self.0.lock().await.recv().await
    }
}

/// Publishes an event for each notice, until it is cancelled.
pub(crate) async fn run(cx: Context, p: Arc<Provisioner>, queue: NoticeQueue) -> Result<(), RunError> {
    cx.healthy();
    loop {
        let notice = tokio::select! {
            () = cx.cancelled() => return Ok(()),
            notice = queue.next() => notice,
        };
        match notice {
            Some(Notice::Denied { pod, container, operation, call }) => {
                p.events.denied(&pod, &container, operation, call).await;
            }
            Some(Notice::LimitsAdvisory { reason }) => p.events.limits_advisory(&p.node, &reason).await,
            // No part of the node sends any.
            None => {
                cx.cancelled().await;
                return Ok(());
            }
        }
    }
}
