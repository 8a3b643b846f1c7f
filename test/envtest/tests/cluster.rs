//! The cluster itself.

use std::process::ExitCode;

use envtest::{Identity, PATIENCE, Suite};
use eventually::{Seen, eventually};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt as _};

fn main() -> ExitCode {
    Suite::new()
        .case("the_controllers_bind_a_claim_to_a_volume", async |cluster| {
            let (volumes, claims) = (Api::all(cluster.admin()), Api::default_namespaced(cluster.admin()));
            let volume: PersistentVolume = serde_json::from_value(serde_json::json!({
                "metadata": {"name": "by-hand"},
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "by-hand",
                    "hostPath": {"path": "/nowhere"},
                },
            }))?;
            let claim: PersistentVolumeClaim = serde_json::from_value(serde_json::json!({
                "metadata": {"name": "by-hand"},
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
                    "storageClassName": "by-hand",
                },
            }))?;
            volumes.create(&PostParams::default(), &volume).await?;
            claims.create(&PostParams::default(), &claim).await?;
            eventually(PATIENCE, "the claim's phase Bound", async || {
                let phase = claims.get("by-hand").await?.status.and_then(|status| status.phase).unwrap_or_default();
                Ok::<_, kube::Error>(if phase == "Bound" { Seen::Done(()) } else { Seen::NotYet(phase) })
            })
            .await?;
            claims.delete("by-hand", &DeleteParams::default()).await?;
            volumes.delete("by-hand", &DeleteParams::default()).await?;
            Ok(())
        })
        .case("what_was_written_outlives_the_api_server", async |cluster| {
            let maps = Api::<ConfigMap>::default_namespaced(cluster.admin());
            let map: ConfigMap = serde_json::from_value(serde_json::json!({"metadata": {"name": "kept"}}))?;
            let uid = maps.create(&PostParams::default(), &map).await?.uid();
            cluster.stop_api_server().await?;
            assert!(maps.get("kept").await.is_err(), "nobody answers while the API server is away");
            cluster.start_api_server().await?;
            assert_eq!(maps.get("kept").await?.uid(), uid);
            Ok(())
        })
        .case("an_identity_without_a_role_may_do_nothing", async |cluster| {
            let maps = Api::<ConfigMap>::default_namespaced(cluster.client(Identity::Storage).await?);
            let refused = maps.list(&kube::api::ListParams::default()).await;
            assert!(matches!(refused, Err(kube::Error::Api(status)) if status.is_forbidden()));
            Ok(())
        })
        .run()
}
