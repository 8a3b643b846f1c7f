//! Registers the CSI plugin again when the CSINode object has lost the driver.
//!
//! The kubelet writes a driver into the CSINode object only when the driver registers. Without this entry, the
//! scheduler does not place pods with volumes on the node.

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

/// Time for the kubelet to write the entry before the next registration.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
#[error("the watch of the node's CSINode object ended")]
pub struct WatchEnded;

/// Watches the node's CSINode object until it is cancelled. Calls `register_again` when the driver's entry is lost, and
/// repeats the call until the entry is back. Waits for an API server that is not reachable.
pub async fn run(cx: Context, client: Client, node: &str, register_again: impl Fn()) -> Result<(), WatchEnded> {
    let only = watcher::Config::default().fields(&format!("metadata.name={node}"));
    let mut events = pin!(watcher(Api::<CSINode>::all(client), only).default_backoff());
    let mut entry = Entry::default();
    cx.healthy();
    loop {
        let register = tokio::select! {
            () = cx.cancelled() => return Ok(()),
            () = sleep(PATIENCE), if entry.lost => {
                cx.report(false);
                true
            }
            event = events.next() => match event {
                Some(Ok(event)) => {
                    let register = entry.update(&event);
                    // The watch sends `Init` before the API server has answered.
                    if !matches!(event, Event::Init) {
                        cx.report(!entry.lost);
                    }
                    register
                }
                Some(Err(error)) => {
                    cx.report(false);
                    warn!(error = causes::of(&error), "watch of the CSINode object failed, will continue");
                    false
                }
                None => return Err(WatchEnded),
            },
        };
        if register {
            warn!(driver = DRIVER_NAME, "driver missing in the CSINode object, registering again");
            register_again();
        }
    }
}

#[derive(Debug, Default)]
struct Entry {
    /// The object had the driver's entry before.
    had: bool,
    lost: bool,
    /// The current list of the watch has the entry.
    listed: bool,
}

impl Entry {
    fn update(&mut self, event: &Event<CSINode>) -> bool {
        let exists = match event {
            Event::Init => {
                self.listed = false;
                return false;
            }
            Event::InitApply(node) => {
                self.listed = has_driver(node);
                return false;
            }
            Event::InitDone => self.listed,
            Event::Apply(node) => has_driver(node),
            Event::Delete(_) => false,
        };
        let was = self.lost;
        self.lost = self.had && !exists;
        self.had |= exists;
        self.lost && !was
    }
}

fn has_driver(node: &CSINode) -> bool {
    node.spec.drivers.iter().any(|driver| driver.name == DRIVER_NAME)
}

#[cfg(test)]
mod tests {
    use std::io;

    use http::{Request, Response};
    use k8s_openapi::api::storage::v1::{CSINodeDriver, CSINodeSpec};
    use kube::client::Body;
    use supervisor::{Settings, Supervisor};
    use tower::service_fn;

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

    fn lost_at(events: &[Event<CSINode>]) -> Vec<usize> {
        let mut entry = Entry::default();
        (0..events.len()).filter(|at| entry.update(&events[*at])).collect()
    }

    #[test]
    fn an_entry_that_never_existed_is_not_lost() {
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
    fn a_list_without_the_entry_loses_it() {
        let mut events = vec![Event::Apply(with()), Event::Init, Event::InitApply(without()), Event::InitDone];
        assert_eq!(lost_at(&events), [3]);
        events.remove(2);
        assert_eq!(lost_at(&events), [2]);
    }

    #[test]
    fn a_list_with_the_entry_changes_nothing() {
        let events = [Event::Apply(with()), Event::Init, Event::InitApply(with()), Event::InitDone];
        assert_eq!(lost_at(&events), Vec::<usize>::new());
    }

    /// Regression: the start of each list counted as progress, so that a plugin without the right to list was never
    /// stalled.
    #[tokio::test(start_paused = true)]
    async fn lists_that_always_fail_are_a_stall() {
        let service = service_fn(|_: Request<Body>| async {
            Err::<Response<Body>, _>(io::Error::from(io::ErrorKind::ConnectionRefused))
        });
        let (client, settings) = (Client::new(service, "default"), Settings::default());
        let limit = settings.round_deadline + PATIENCE;
        let tree = Supervisor::start("csinode", settings, move |cx| run(cx, client.clone(), "one", || ()));
        sleep(limit).await;
        assert!(tree.status().stalled.is_some());
        tree.stop(PATIENCE).await.unwrap();
    }
}
