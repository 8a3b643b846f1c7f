//! Waits for the CRDs of groups of snapshots, and runs the controller of their contents.

use std::future;
use std::num::NonZeroU16;
use std::sync::{Arc, PoisonError};

use apiclient::is_missing;
use futures::{StreamExt as _, TryStreamExt as _};
use kube::api::ListParams;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::{self, watcher};
use supervisor::Context;

use crate::arrival;
use crate::context::{Provisioner, RunError};
use crate::controller::{Watched, control};
use crate::group::apply::reconcile_group;
use crate::group::object::{GroupContent, GroupVersion};
use crate::snapshot::apply::failed;
use crate::snapshot::watch::{ends, served};

pub(crate) async fn run(cx: Context, provisioner: Arc<Provisioner>, parallel: NonZeroU16) -> Result<(), RunError> {
    let finder = Arc::clone(&provisioner);
    let find = move || {
        let finder = Arc::clone(&finder);
        async move { finder.find_group_version().await }
    };
    // Other clusters have no groups, and need not have the kind.
    if !served(&cx, "VolumeGroupSnapshotContents", find, || ()).await {
        return Ok(());
    }
    let watched = Watched { writer: Writer::default(), what: "contents of groups", parallel };
    let keeper = Arc::clone(&provisioner);
    let is_kept =
        move |content: &GroupContent| content.is_of_driver() && content.node().is_none_or(|node| node == keeper.node);
    let events = watcher(provisioner.served_groups(), watcher::Config::default())
        // The CRDs were removed: the service starts again and waits for them.
        .take_while(|item| future::ready(!item.as_ref().is_err_and(ends)))
        .modify(|content: &mut GroupContent| content.metadata.managed_fields = None)
        .try_filter_map(move |event| future::ready(Ok(arrival::only(event, &is_kept))));
    control(cx, watched, events, provisioner, reconcile_group, failed).await
}

impl Provisioner {
    /// Notes the version that the cluster serves, or returns that the kind is missing.
    async fn find_group_version(&self) -> Result<(), kube::Error> {
        let one = ListParams::default().limit(1);
        let mut found = Ok(());
        for version in GroupVersion::ALL {
            found = self.groups(version).list_metadata(&one).await.map(drop);
            match &found {
                Ok(()) => *self.group_version.lock().unwrap_or_else(PoisonError::into_inner) = version,
                Err(error) if is_missing(error) => continue,
                Err(_) => {}
            }
            break;
        }
        found
    }
}
