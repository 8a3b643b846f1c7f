//! Waits for the CRDs of snapshots, which not every cluster has, and runs the controller of contents.

use std::future::{self, Future};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use apiclient::is_missing;
use futures::{StreamExt as _, TryStreamExt as _};
use kube::api::ListParams;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::{self, watcher};
use supervisor::Context;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::backoff::{jittered, random};
use crate::context::{Provisioner, RunError};
use crate::controller::{Watched, control};
use crate::snapshot::apply::{failed, reconcile_content};
use crate::snapshot::object::Content;

/// Interval of the search for the CRDs in a new cluster. The control plane creates the CRDs when
/// kube-controller-manager is healthy.
const FIRST_INTERVAL: Duration = Duration::from_secs(10);

/// Interval of the search when the CRDs have been missing for [`NEW_CLUSTER`].
const INTERVAL: Duration = Duration::from_mins(1);

/// Age up to which a cluster is new. The control plane waits for kube-controller-manager for at most 5 minutes.
const NEW_CLUSTER: Duration = Duration::from_mins(6);

/// Time after which missing CRDs are reported.
const REPORTED: Duration = Duration::from_mins(10);

/// Waits until the cluster has the kind. The service is healthy without the kind, because volumes do not need it. Calls
/// `report` once if the kind stays missing. Returns `false` if it is cancelled.
pub(crate) async fn served<F>(cx: &Context, kind: &'static str, find: impl Fn() -> F, report: impl Fn()) -> bool
where
    F: Future<Output = Result<(), kube::Error>>,
{
    let (mut missing, mut is_reported) = (None::<Instant>, false);
    loop {
        let found = tokio::select! {
            () = cx.cancelled() => return false,
            found = find() => found,
        };
        let Err(error) = found else { return true };
        if !is_missing(&error) {
            warn!(kind, error = causes::of(&error), "objects of snapshots cannot be read, will retry");
        } else if let Some(since) = missing {
            if !is_reported && since.elapsed() >= REPORTED {
                is_reported = true;
                report();
            }
        } else {
            missing = Some(Instant::now());
            info!(kind, "the cluster does not have the kind; its snapshots are available when the CRDs are installed");
        }
        cx.healthy();
        let is_new = missing.is_some_and(|since| since.elapsed() < NEW_CLUSTER);
        let interval = if is_new { FIRST_INTERVAL } else { INTERVAL };
        tokio::select! {
            () = cx.cancelled() => return false,
            () = sleep(jittered(interval, random())) => {}
        }
    }
}

pub(crate) async fn run(cx: Context, provisioner: Arc<Provisioner>, parallel: NonZeroU16) -> Result<(), RunError> {
    let contents = provisioner.contents.clone();
    let find = move || {
        let contents = contents.clone();
        async move { contents.list_metadata(&ListParams::default().limit(1)).await.map(drop) }
    };
    let support = provisioner.metrics.snapshot_support();
    let report = || {
        support.set_crds_missing(true);
        provisioner.events.snapshots_unavailable(&provisioner.node);
    };
    if !served(&cx, "VolumeSnapshotContents", find, report).await {
        return Ok(());
    }
    support.set_crds_missing(false);
    let watched = Watched { writer: Writer::default(), what: "contents", parallel, woken: None };
    let keeper = Arc::clone(&provisioner);
    let is_kept =
        move |content: &Content| content.is_of_driver() && content.node().is_none_or(|node| node == keeper.node);
    let events = watcher(provisioner.contents.clone(), watcher::Config::default())
        // The CRDs were removed: the service starts again and waits for them.
        .take_while(|item| future::ready(!item.as_ref().is_err_and(ends)))
        .modify(|content: &mut Content| content.metadata.managed_fields = None)
        .try_filter_map(move |event| future::ready(Ok(apiclient::only(event, &is_kept))));
    control(cx, watched, events, provisioner, reconcile_content, failed).await
}

pub(crate) fn ends(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error) => is_missing(error),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use envtest::FakeVolumes;
    use kube::Client;
    use prometheus::{Registry, TextEncoder};
    use supervisor::Supervisor;
    use units::Bytes;

    use super::*;
    use crate::{Metrics, Settings, fixture};

    /// Client of an API server that serves contents, of which there are none, when they are `installed`.
    fn client(installed: &Arc<AtomicBool>) -> Client {
        let installed = Arc::clone(installed);
        fixture::client(move |request| {
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch="));
            match (installed.load(Ordering::Relaxed), is_watch) {
                (true, true) => None,
                (true, false) => Some(fixture::page(&[], request)),
                (false, _) => Some(fixture::no_kind()),
            }
        })
    }

    #[tokio::test(start_paused = true)]
    async fn crds_that_are_missing_for_long_are_reported_once_and_shown_until_they_are_installed() {
        let (installed, registry) = (Arc::<AtomicBool>::default(), Registry::new());
        let disk = Arc::new(FakeVolumes::with_size(Bytes::GIB));
        let metrics = Metrics::register(&registry, disk.clone()).expect("metrics");
        let provisioner = Arc::new(Provisioner::new(client(&installed), "granary".to_owned(), disk, metrics));
        let shared = Arc::clone(&provisioner);
        let tree = Supervisor::start("snapshots", supervisor::Settings::default(), move |cx| {
            run(cx, Arc::clone(&shared), Settings::PARALLEL)
        });
        let shows = |missing: u8| {
            let text = TextEncoder::new().encode_to_string(&registry.gather()).expect("metrics");
            let line = format!(r#"granary_snapshot_requirements_missing{{requirement="crds"}} {missing}"#);
            assert!(text.lines().any(|found| found == line), "{line} in:\n{text}");
        };
        let reported = || provisioner.events.queue.next().map(|queued| queued.event.reason);
        sleep(REPORTED - Duration::from_secs(1)).await;
        shows(0);
        assert_eq!(reported(), None);
        sleep(INTERVAL * 2).await;
        shows(1);
        assert_eq!(reported().as_deref(), Some("SnapshotsUnavailable"));
        sleep(REPORTED * 3).await;
        shows(1);
        assert_eq!(reported(), None);
        installed.store(true, Ordering::Relaxed);
        sleep(INTERVAL * 2).await;
        shows(0);
        tree.stop(INTERVAL).await.expect("it ends");
    }
}
