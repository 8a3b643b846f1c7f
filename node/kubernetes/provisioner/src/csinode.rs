//! Sees when kubelet's record of the CSI driver gets lost, and has the plugin register again.
//!
//! kubelet writes a driver into the node's CSINode object when the driver registers, and not again: without the entry no
//! pod with a volume is put on the node any more.

use std::pin::pin;
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::storage::v1::CSINode;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use supervisor::Context;
use tokio::time::sleep;
use tracing::warn;
use volume::DRIVER_NAME;

/// How long kubelet may take to write the entry, before it is asked again.
const PATIENCE: Duration = Duration::from_secs(60);

/// The watch ended, which it never does by itself.
#[derive(Debug, thiserror::Error)]
#[error("the watch of the node's CSINode object ended")]
pub struct WatchEnded;

/// Watches the node's object until it is cancelled, and calls `register_again` when the driver's entry, which was
/// there, is there no more; and again while it does not come back.
///
/// # Errors
/// [`WatchEnded`]; an API server that is away is waited for and is none.
pub async fn run(cx: Context, client: Client, node: &str, register_again: impl Fn()) -> Result<(), WatchEnded> {
    let only = watcher::Config::default().fields(&format!("metadata.name={node}"));
    let mut events = pin!(watcher(Api::<CSINode>::all(client), only).default_backoff());
    let mut entry = Entry::default();
    cx.healthy();
    loop {
        let register = tokio::select! {
            () = cx.cancelled() => return Ok(()),
            () = sleep(PATIENCE), if entry.lost => true,
            event = events.next() => match event {
                Some(Ok(event)) => entry.see(&event),
                Some(Err(error)) => {
                    let error: &dyn std::error::Error = &error;
                    warn!(error, "watch of the CSINode object failed, it goes on");
                    false
                }
                None => return Err(WatchEnded),
            },
        };
        if register {
            warn!(driver = DRIVER_NAME, "the CSINode object has lost the driver, which registers again");
            register_again();
        }
    }
}

/// The driver's entry, as far as the watch has told.
#[derive(Debug, Default)]
struct Entry {
    /// It was there once: kubelet has taken the driver.
    had: bool,
    /// It was there, and is not.
    lost: bool,
    /// The list that is being sent has it.
    listed: bool,
}

impl Entry {
    /// Whether this is the event with which it was lost.
    fn see(&mut self, event: &Event<CSINode>) -> bool {
        let there = match event {
            Event::Init => {
                self.listed = false;
                return false;
            }
            Event::InitApply(node) => {
                self.listed = names_the_driver(node);
                return false;
            }
            Event::InitDone => self.listed,
            Event::Apply(node) => names_the_driver(node),
            Event::Delete(_) => false,
        };
        let was = self.lost;
        self.lost = self.had && !there;
        self.had |= there;
        self.lost && !was
    }
}

fn names_the_driver(node: &CSINode) -> bool {
    node.spec.drivers.iter().any(|driver| driver.name == DRIVER_NAME)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::storage::v1::{CSINodeDriver, CSINodeSpec};

    use super::*;

    fn node(drivers: &[&str]) -> CSINode {
        let driver = |name: &&str| CSINodeDriver { name: (*name).to_owned(), ..CSINodeDriver::default() };
        let spec = CSINodeSpec { drivers: drivers.iter().map(driver).collect() };
        CSINode { spec, ..CSINode::default() }
    }

    fn with() -> CSINode {
        node(&["example.invalid", DRIVER_NAME])
    }

    fn without() -> CSINode {
        node(&["example.invalid"])
    }

    /// With which of the events the entry is lost.
    fn lost_at(events: &[Event<CSINode>]) -> Vec<usize> {
        let mut entry = Entry::default();
        (0..events.len()).filter(|at| entry.see(&events[*at])).collect()
    }

    #[test]
    fn an_entry_that_was_never_there_is_not_lost() {
        let starts = [Event::Init, Event::InitDone, Event::Apply(without()), Event::Apply(with())];
        assert_eq!(lost_at(&starts), Vec::<usize>::new());
    }

    #[test]
    fn an_entry_is_lost_once_until_it_is_back() {
        let events = [
            Event::Init,
            Event::InitApply(with()),
            Event::InitDone,
            Event::Apply(without()),
            Event::Apply(without()),
            Event::Apply(with()),
            Event::Delete(with()),
            Event::Apply(without()),
        ];
        assert_eq!(lost_at(&events), [3, 6]);
    }

    #[test]
    fn what_was_lost_while_nobody_watched_is_seen_in_the_next_list() {
        let mut events = vec![Event::Apply(with()), Event::Init, Event::InitApply(without()), Event::InitDone];
        assert_eq!(lost_at(&events), [3]);
        events.remove(2);
        assert_eq!(lost_at(&events), [2]);
    }

    #[test]
    fn a_new_list_that_has_the_entry_changes_nothing() {
        let events = [Event::Apply(with()), Event::Init, Event::InitApply(with()), Event::InitDone];
        assert_eq!(lost_at(&events), Vec::<usize>::new());
    }
}
