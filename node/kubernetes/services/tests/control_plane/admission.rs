//! What the API server's admission plugins and validation reject.

use std::sync::Arc;

use envtest::{Cluster, Failure, PATIENCE, Suite};
use eventually::{Seen, eventually};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Pod, ServiceAccount};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

/// The page that tells operators to label tenants' namespaces.
const PAGE: &str = include_str!("../../../../../docs/operations/security.md");

pub fn cases(suite: Suite) -> Suite {
    suite
        .case("a_tenants_namespace_rejects_pods_that_reach_the_node", a_tenants_namespace_rejects_pods)
        .case("a_privileged_container_is_rejected_in_every_namespace", a_privileged_container_is_rejected)
        .case("a_claim_of_size_zero_is_invalid", a_claim_of_size_zero_is_invalid)
}

fn dry_run() -> PostParams {
    PostParams { dry_run: true, ..PostParams::default() }
}

/// A pod that the profile `restricted` allows, with these fields changed.
fn pod(changes: &[(&str, Value)]) -> Result<Pod, Failure> {
    let mut pod = json!({
        "metadata": {"name": "tenant"},
        "spec": {
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "c", "image": "granary.invalid/none",
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    });
    for (pointer, value) in changes {
        let (parent, key) = pointer.rsplit_once('/').ok_or("no key")?;
        pod.pointer_mut(parent).ok_or("no such field")?[key] = value.clone();
    }
    Ok(serde_json::from_value(pod)?)
}

/// Waits until pods can be created in the namespace: each needs a service account, which a controller creates.
async fn pods_in(cluster: &Cluster, namespace: &str) -> Result<Api<Pod>, Failure> {
    let accounts = Api::<ServiceAccount>::namespaced(cluster.admin(), namespace);
    let pods = Api::<Pod>::namespaced(cluster.admin(), namespace);
    eventually(PATIENCE, &format!("the service account of namespace {namespace}"), async || {
        let found = accounts.get_opt("default").await?;
        Ok::<_, kube::Error>(found.map_or(Seen::NotYet("none".into()), |_| Seen::Done(())))
    })
    .await?;
    // The plugin that adds it reads a cache.
    let good = pod(&[]).map_err(std::io::Error::other)?;
    eventually(PATIENCE, &format!("a pod in namespace {namespace}"), async || {
        pods.create(&dry_run(), &good).await.map(|_| Seen::Done(()))
    })
    .await?;
    Ok(pods)
}

/// docs/operations/security.md, "What a tenant can do": its manifest, and what happens without the label.
async fn a_tenants_namespace_rejects_pods(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (_, rest) = PAGE.split_once("Pod Security admission").ok_or("the page does not mention Pod Security")?;
    let (_, rest) = rest.split_once("\n```yaml\n").ok_or("the page has no manifest")?;
    let (manifest, _) = rest.split_once("\n```\n").ok_or("the manifest has no end")?;
    let namespace: Namespace = serde_saphyr::from_str(manifest)?;
    let name = namespace.metadata.name.clone().ok_or("the namespace has no name")?;
    let namespaces = Api::<Namespace>::all(cluster.admin());
    namespaces.create(&PostParams::default(), &namespace).await?;
    let (tenants, unlabelled) = (pods_in(&cluster, &name).await?, pods_in(&cluster, "default").await?);
    let host_path = json!([{"name": "root", "hostPath": {"path": "/"}}]);
    for changes in [
        [("/spec/volumes", host_path)],
        [("/spec/hostPID", true.into())],
        [("/spec/hostNetwork", true.into())],
        [("/spec/containers/0/securityContext/capabilities", json!({"drop": ["ALL"], "add": ["SYS_ADMIN"]}))],
        [("/spec/containers/0/securityContext/allowPrivilegeEscalation", true.into())],
    ] {
        let pod = pod(&changes)?;
        match tenants.create(&dry_run(), &pod).await {
            Err(kube::Error::Api(status)) => {
                let violates = status.message.contains("violates PodSecurity \"restricted");
                assert!(status.code == 403 && violates, "{changes:?}: {status:?}");
            }
            other => panic!("{changes:?}: {other:?}"),
        }
        unlabelled.create(&dry_run(), &pod).await?;
    }
    namespaces.delete(&name, &DeleteParams::default()).await?;
    Ok(())
}

/// `--allow-privileged` is off.
async fn a_privileged_container_is_rejected(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let privileged = pod(&[("/spec/containers/0/securityContext", json!({"privileged": true}))])?;
    for namespace in ["default", "kube-system"] {
        match pods_in(&cluster, namespace).await?.create(&dry_run(), &privileged).await {
            Err(kube::Error::Api(status)) => {
                let field = status.message.contains("privileged: Forbidden: disallowed by cluster policy");
                assert!(status.code == 422 && field, "{namespace}: {status:?}");
            }
            other => panic!("{namespace}: {other:?}"),
        }
    }
    Ok(())
}

/// The provisioner never receives such a claim.
async fn a_claim_of_size_zero_is_invalid(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let claims = Api::<PersistentVolumeClaim>::default_namespaced(cluster.admin());
    let sized = |size: &str| {
        serde_json::from_value::<PersistentVolumeClaim>(json!({
            "metadata": {"name": "sized"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}},
        }))
    };
    for size in ["0", "-1"] {
        match claims.create(&dry_run(), &sized(size)?).await {
            Err(kube::Error::Api(status)) => {
                let reason = status.message.contains("must be greater than zero");
                assert!(status.code == 422 && reason, "{size}: {status:?}");
            }
            other => panic!("{size}: {other:?}"),
        }
    }
    claims.create(&dry_run(), &sized("1")?).await?;
    Ok(())
}
