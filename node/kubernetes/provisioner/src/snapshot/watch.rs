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

use crate::arrival;
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
    let watched = Watched { writer: Writer::default(), what: "contents", parallel };
    let keeper = Arc::clone(&provisioner);
    let is_kept =
        move |content: &Content| content.is_of_driver() && content.node().is_none_or(|node| node == keeper.node);
    let events = watcher(provisioner.contents.clone(), watcher::Config::default())
        // The CRDs were removed: the service starts again and waits for them.
        .take_while(|item| future::ready(!item.as_ref().is_err_and(ends)))
        .modify(|content: &mut Content| content.metadata.managed_fields = None)
        .try_filter_map(move |event| future::ready(Ok(arrival::only(event, &is_kept))));
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
    use std::sync::atomic::{AtomicU32, Ordering};

    use kube::core::Status;
    use supervisor::{Settings, Supervisor};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_kind_that_is_missing_for_long_is_reported_once() {
        let reports = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&reports);
        let tree = Supervisor::start("snapshots", Settings::default(), move |cx| {
            let reports = Arc::clone(&counted);
            let find = || async { Err::<(), _>(kube::Error::Api(Box::new(Status { code: 404, ..Status::default() }))) };
            async move {
                let report = || {
                    reports.fetch_add(1, Ordering::Relaxed);
                };
                served(&cx, "VolumeSnapshotContents", find, report).await;
                Ok::<_, RunError>(())
            }
        });
        sleep(REPORTED - Duration::from_secs(1)).await;
        assert_eq!(reports.load(Ordering::Relaxed), 0);
        sleep(INTERVAL * 2).await;
        assert_eq!(reports.load(Ordering::Relaxed), 1);
        sleep(REPORTED * 3).await;
        assert_eq!(reports.load(Ordering::Relaxed), 1);
        tree.stop(INTERVAL).await.expect("it ends");
    }
}
