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
use kube::{Api, Client};
use supervisor::Context;

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
    // A missing kind is not reported, because a cluster without groups does not need it.
    if !served(&cx, "VolumeGroupSnapshotContents", find, || ()).await {
        return Ok(());
    }
    let watched = Watched { writer: Writer::default(), what: "contents of groups", parallel, woken: None };
    let keeper = Arc::clone(&provisioner);
    let is_kept =
        move |content: &GroupContent| content.is_of_driver() && content.node().is_none_or(|node| node == keeper.node);
    let events = watcher(provisioner.served_groups(), watcher::Config::default())
        // The CRDs were removed: the service starts again and waits for them.
        .take_while(|item| future::ready(!item.as_ref().is_err_and(ends)))
        .modify(|content: &mut GroupContent| content.metadata.managed_fields = None)
        .try_filter_map(move |event| future::ready(Ok(apiclient::only(event, &is_kept))));
    control(cx, watched, events, provisioner, reconcile_group, failed).await
}

impl Provisioner {
    /// Stores the API version that the cluster serves. Returns an error if the kind is missing.
    async fn find_group_version(&self) -> Result<(), kube::Error> {
        let version = served_version(&self.client).await?;
        *self.group_version.lock().unwrap_or_else(PoisonError::into_inner) = version;
        Ok(())
    }
}

async fn served_version(client: &Client) -> Result<GroupVersion, kube::Error> {
    match find(client, GroupVersion::V1).await {
        Err(error) if is_missing(&error) => find(client, GroupVersion::V1Beta2).await,
        found => found,
    }
}

async fn find(client: &Client, version: GroupVersion) -> Result<GroupVersion, kube::Error> {
    let contents = Api::<GroupContent>::all_with(client.clone(), &version);
    contents.list_metadata(&ListParams::default().limit(1)).await.map(|_| version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    /// Client of a cluster that serves one version, or none.
    fn client(served: Option<&'static str>) -> Client {
        fixture::client(move |request| {
            let path =
                |version: &str| format!("/apis/groupsnapshot.storage.k8s.io/{version}/volumegroupsnapshotcontents");
            let is_served = served.is_some_and(|version| request.uri().path() == path(version));
            Some(if is_served { fixture::page(&[], request) } else { fixture::no_kind() })
        })
    }

    #[tokio::test]
    async fn the_first_version_that_the_cluster_serves_is_used() {
        for (served, version) in [("v1", GroupVersion::V1), ("v1beta2", GroupVersion::V1Beta2)] {
            assert_eq!(served_version(&client(Some(served))).await.expect("a version"), version);
        }
        let none = served_version(&client(None)).await.expect_err("no version");
        assert!(is_missing(&none), "{none}");
    }
}
