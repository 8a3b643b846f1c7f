//! The objects in a real API server.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use envtest::{Cluster, Failure, Identity, PATIENCE, Suite};
use eventually::{Seen, eventually};
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use reconciler::{CLASS, NODES_GROUP, REVISION};
use serde_json::json;
use supervisor::{Settings, Supervisor};

const DRIVER: &str = "local.granary.dev";
const REVISION_ANNOTATION: &str = "local.granary.dev/revision";

/// A reconciler that has seen all objects right, until it is stopped.
struct Reconciler(Supervisor);

impl Reconciler {
    async fn start(cluster: &Cluster) -> Result<Self, Failure> {
        let client = cluster.admin();
        let tree = Supervisor::start("reconciler", Settings::default(), move |cx| reconciler::run(cx, client.clone()));
        tree.handle().healthy().await?;
        Ok(Self(tree))
    }

    async fn stop(self) -> Result<(), Failure> {
        Ok(self.0.stop(Duration::from_secs(10)).await?)
    }
}

fn main() -> ExitCode {
    Suite::new()
        .case("what_is_missing_is_made", what_is_missing_is_made)
        .case("what_was_deleted_is_made_again", what_was_deleted_is_made_again)
        .case("a_field_that_drifted_is_set_again", a_field_that_drifted_is_set_again)
        .case("what_cannot_be_changed_is_made_anew", what_cannot_be_changed_is_made_anew)
        .case("what_others_add_stays", what_others_add_stays)
        .case("the_objects_of_a_newer_release_are_left_alone", the_objects_of_a_newer_release_are_left_alone)
        .case("the_api_server_may_be_away_for_a_while", the_api_server_may_be_away_for_a_while)
        .case("objects_that_are_right_are_not_written", objects_that_are_right_are_not_written)
        .run()
}

async fn what_is_missing_is_made(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Reconciler::start(&cluster).await?.stop().await?;
    let driver = Api::<CSIDriver>::all(cluster.admin()).get(DRIVER).await?;
    assert_eq!(driver.spec.attach_required, Some(false));
    let class = Api::<StorageClass>::all(cluster.admin()).get(CLASS).await?;
    assert_eq!(class.volume_binding_mode.as_deref(), Some("WaitForFirstConsumer"));
    assert_eq!(class.annotations()["storageclass.kubernetes.io/is-default-class"], "true");
    assert_eq!(class.annotations()[REVISION_ANNOTATION], REVISION.to_string());
    // The binding too: the API server lets the storage identity in.
    let storage = Api::<StorageClass>::all(cluster.client(Identity::Storage).await?);
    eventually(PATIENCE, "the storage identity's role", async || {
        storage.list(&ListParams::default()).await.map(|_| Seen::Done(()))
    })
    .await?;
    Ok(())
}

async fn what_was_deleted_is_made_again(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let reconciler = Reconciler::start(&cluster).await?;
    let classes = Api::<StorageClass>::all(cluster.admin());
    let uid = classes.get(CLASS).await?.uid();
    classes.delete(CLASS, &DeleteParams::default()).await?;
    eventually(PATIENCE, "another storage class of the name", async || {
        let found = classes.get_opt(CLASS).await?.and_then(|class| class.uid());
        Ok::<_, kube::Error>(match found {
            Some(found) if Some(&found) != uid.as_ref() => Seen::Done(()),
            other => Seen::NotYet(format!("{other:?}")),
        })
    })
    .await?;
    reconciler.stop().await
}

async fn a_field_that_drifted_is_set_again(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let reconciler = Reconciler::start(&cluster).await?;
    let roles = Api::<ClusterRole>::all(cluster.admin());
    let rules = roles.get(NODES_GROUP).await?.rules;
    let everything = json!({"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]});
    roles.patch(NODES_GROUP, &PatchParams::default(), &Patch::Merge(everything)).await?;
    eventually(PATIENCE, "the role's own rules", async || {
        let found = roles.get(NODES_GROUP).await?.rules;
        Ok::<_, kube::Error>(if found == rules { Seen::Done(()) } else { Seen::NotYet(format!("{found:?}")) })
    })
    .await?;
    reconciler.stop().await
}

async fn what_cannot_be_changed_is_made_anew(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Reconciler::start(&cluster).await?.stop().await?;
    let classes = Api::<StorageClass>::all(cluster.admin());
    let right = classes.get(CLASS).await?;
    classes.delete(CLASS, &DeleteParams::default()).await?;
    let wrong: StorageClass = serde_json::from_value(json!({
        "metadata": {"name": CLASS}, "provisioner": "example.invalid", "volumeBindingMode": "Immediate",
    }))?;
    classes.create(&kube::api::PostParams::default(), &wrong).await?;
    Reconciler::start(&cluster).await?.stop().await?;
    let found = classes.get(CLASS).await?;
    assert_eq!((found.provisioner, found.volume_binding_mode), (right.provisioner, right.volume_binding_mode));
    Ok(())
}

async fn what_others_add_stays(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let classes = Api::<StorageClass>::all(cluster.admin());
    let label = json!({"metadata": {"labels": {"example.invalid/tier": "fast"}}});
    Reconciler::start(&cluster).await?.stop().await?;
    classes.patch(CLASS, &PatchParams::default(), &Patch::Merge(label)).await?;
    let drift = json!({"metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "false"}}});
    classes.patch(CLASS, &PatchParams::default(), &Patch::Merge(drift)).await?;
    Reconciler::start(&cluster).await?.stop().await?;
    let found = classes.get(CLASS).await?;
    assert_eq!(found.annotations()["storageclass.kubernetes.io/is-default-class"], "true");
    assert_eq!(found.labels()["example.invalid/tier"], "fast");
    Ok(())
}

async fn the_objects_of_a_newer_release_are_left_alone(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Reconciler::start(&cluster).await?.stop().await?;
    let drivers = Api::<CSIDriver>::all(cluster.admin());
    let newer = json!({
        "metadata": {"annotations": {REVISION_ANNOTATION: (REVISION + 1).to_string()}},
        "spec": {"fsGroupPolicy": "None"},
    });
    let version = drivers.patch(DRIVER, &PatchParams::default(), &Patch::Merge(newer)).await?.resource_version();
    Reconciler::start(&cluster).await?.stop().await?;
    assert_eq!(drivers.get(DRIVER).await?.resource_version(), version);
    drivers.delete(DRIVER, &DeleteParams::default()).await?;
    Ok(())
}

async fn the_api_server_may_be_away_for_a_while(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let reconciler = Reconciler::start(&cluster).await?;
    cluster.stop_api_server().await?;
    cluster.start_api_server().await?;
    let drivers = Api::<CSIDriver>::all(cluster.admin());
    drivers.delete(DRIVER, &DeleteParams::default()).await?;
    eventually(PATIENCE, "the driver's object", async || {
        Ok::<_, kube::Error>(drivers.get_opt(DRIVER).await?.map_or(Seen::NotYet("none".into()), |_| Seen::Done(())))
    })
    .await?;
    reconciler.stop().await
}

async fn objects_that_are_right_are_not_written(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Reconciler::start(&cluster).await?.stop().await?;
    let versions = async || -> Result<Vec<Option<String>>, kube::Error> {
        Ok(vec![
            Api::<CSIDriver>::all(cluster.admin()).get(DRIVER).await?.resource_version(),
            Api::<StorageClass>::all(cluster.admin()).get(CLASS).await?.resource_version(),
            Api::<ClusterRole>::all(cluster.admin()).get(NODES_GROUP).await?.resource_version(),
        ])
    };
    let before = versions().await?;
    Reconciler::start(&cluster).await?.stop().await?;
    assert_eq!(versions().await?, before);
    Ok(())
}
