//! The kinds of snapshots.

use std::sync::Arc;

use cluster::SNAPSHOT_CONTROLLER_USER;
use envtest::{Cluster, Failure, merge};
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, ResourceExt as _};
use serde_json::json;

const KINDS: [&str; 6] = [
    "volumesnapshotclasses.snapshot.storage.k8s.io",
    "volumesnapshotcontents.snapshot.storage.k8s.io",
    "volumesnapshots.snapshot.storage.k8s.io",
    "volumegroupsnapshotclasses.groupsnapshot.storage.k8s.io",
    "volumegroupsnapshotcontents.groupsnapshot.storage.k8s.io",
    "volumegroupsnapshots.groupsnapshot.storage.k8s.io",
];
const REVISION_ANNOTATION: &str = "local.granary.dev/revision";

pub(crate) async fn the_kinds_are_created_and_correct_ones_are_not_written(
    cluster: Arc<Cluster>,
) -> Result<(), Failure> {
    let definitions = Api::<CustomResourceDefinition>::all(cluster.admin());
    let versions = async || -> Result<Vec<Option<String>>, kube::Error> {
        let mut versions = Vec::new();
        for kind in KINDS {
            versions.push(definitions.get(kind).await?.resource_version());
        }
        versions.push(Api::<ClusterRole>::all(cluster.admin()).get(SNAPSHOT_CONTROLLER_USER).await?.resource_version());
        Ok(versions)
    };
    cluster.reconcile_snapshots().await?;
    let before = versions().await?;
    cluster.reconcile_snapshots().await?;
    assert_eq!(versions().await?, before);
    Ok(())
}

pub(crate) async fn a_changed_kind_is_repaired_and_that_of_another_client_stays(
    cluster: Arc<Cluster>,
) -> Result<(), Failure> {
    cluster.reconcile_snapshots().await?;
    let definitions = Api::<CustomResourceDefinition>::all(cluster.admin());
    let short_names = async || -> Result<Option<Vec<String>>, kube::Error> {
        Ok(definitions.get(KINDS[0]).await?.spec.names.short_names)
    };
    let ours = short_names().await?;
    merge(&definitions, KINDS[0], json!({"spec": {"names": {"shortNames": ["other"]}}})).await?;
    cluster.reconcile_snapshots().await?;
    assert_eq!(short_names().await?, ours);

    let foreign = json!({
        "metadata": {"annotations": {REVISION_ANNOTATION: null}},
        "spec": {"names": {"shortNames": ["other"]}},
    });
    merge(&definitions, KINDS[0], foreign).await?;
    cluster.reconcile_snapshots().await?;
    assert_eq!(short_names().await?, Some(vec!["other".to_owned()]));

    merge(&definitions, KINDS[0], json!({"metadata": {"annotations": {REVISION_ANNOTATION: "0"}}})).await?;
    cluster.reconcile_snapshots().await?;
    assert_eq!(short_names().await?, ours);
    Ok(())
}
