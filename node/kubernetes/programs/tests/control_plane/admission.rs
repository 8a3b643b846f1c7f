//! Objects that the API server's admission plugins and validation reject.

use std::fmt::Debug;
use std::sync::Arc;

use envtest::{Cluster, Failure, PATIENCE, Seen, Suite, eventually, remove};
use http::Request;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Pod, Service, ServiceAccount};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use kube::client::Body;
use serde_json::{Value, json};

/// The page with the labels for a tenant's namespace.
const PAGE: &str = include_str!("../../../../../docs/operations/security.md");

/// The objects of the tutorial docs/database.md.
const DATABASE: &str = include_str!("../../../../../docs/database.yaml");

pub fn cases(suite: Suite) -> Suite {
    suite
        .case("a_tenants_namespace_rejects_pods_that_reach_the_node", a_tenants_namespace_rejects_pods)
        .case("the_database_of_the_tutorial_is_restricted", the_database_of_the_tutorial_is_restricted)
        .case("without_a_label_pods_cannot_reach_the_node", without_a_label_pods_cannot_reach_the_node)
        .case("in_a_labelled_namespace_pods_reach_the_node", in_a_labelled_namespace_pods_reach_the_node)
        .case("a_pod_without_a_user_namespace_has_a_masked_proc", a_pod_without_a_user_namespace_has_a_masked_proc)
        .case("a_pod_that_is_not_restricted_gets_a_warning", a_pod_that_is_not_restricted_gets_a_warning)
        .case("a_service_cannot_claim_an_address", a_service_cannot_claim_an_address)
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

/// Waits until pods can be created in the namespace: each pod needs a service account, which a controller creates.
async fn pods_in(cluster: &Cluster, namespace: &str) -> Result<Api<Pod>, Failure> {
    let accounts = Api::<ServiceAccount>::namespaced(cluster.admin(), namespace);
    let pods = Api::<Pod>::namespaced(cluster.admin(), namespace);
    eventually(PATIENCE, &format!("the service account of namespace {namespace}"), async || {
        let found = accounts.get_opt("default").await?;
        Ok::<_, kube::Error>(found.map_or(Seen::NotYet("none".into()), |_| Seen::Done(())))
    })
    .await?;
    // The admission plugin for service accounts reads a cache.
    let good = pod(&[]).map_err(std::io::Error::other)?;
    eventually(PATIENCE, &format!("a pod in namespace {namespace}"), async || {
        pods.create(&dry_run(), &good).await.map(|_| Seen::Done(()))
    })
    .await?;
    Ok(pods)
}

struct Change {
    fields: Vec<(&'static str, Value)>,
    /// Name of the setting in the API server's message, if `baseline` forbids it; `None` if only `restricted` does.
    forbidden: Option<&'static str>,
}

/// A change that `baseline` allows.
fn escalation() -> Vec<(&'static str, Value)> {
    vec![("/spec/containers/0/securityContext/allowPrivilegeEscalation", true.into())]
}

/// A container of a pod in a user namespace may see all of its `/proc`. `baseline` allows this.
fn unmasked() -> Vec<(&'static str, Value)> {
    vec![("/spec/hostUsers", false.into()), ("/spec/containers/0/securityContext/procMount", "Unmasked".into())]
}

/// One change for each setting that `baseline` forbids, and two changes that it allows. All are valid without Pod
/// Security.
fn changes() -> Vec<Change> {
    let change = |fields, forbidden| Change { fields, forbidden: Some(forbidden) };
    let one = |pointer, value, forbidden| change(vec![(pointer, value)], forbidden);
    let capability = |name: &str| {
        let capabilities = json!({"drop": ["ALL"], "add": [name]});
        one("/spec/containers/0/securityContext/capabilities", capabilities, "non-default capabilities")
    };
    let privileged = json!({"privileged": true});
    let first = json!([{"name": "first", "image": "granary.invalid/none", "securityContext": privileged}]);
    let probe = |handler: &str| json!({handler: {"host": "127.0.0.1", "port": 2381}});
    vec![
        one("/spec/volumes", json!([{"name": "root", "hostPath": {"path": "/"}}]), "hostPath volumes"),
        one("/spec/hostPID", true.into(), "host namespaces"),
        one("/spec/hostIPC", true.into(), "host namespaces"),
        one("/spec/hostNetwork", true.into(), "host namespaces"),
        one("/spec/containers/0/ports", json!([{"containerPort": 80, "hostPort": 80}]), "hostPort"),
        // The kubelet connects from the node's network.
        one("/spec/containers/0/livenessProbe", probe("httpGet"), "probe or lifecycle host"),
        one("/spec/containers/0/readinessProbe", probe("tcpSocket"), "probe or lifecycle host"),
        one("/spec/containers/0/securityContext", privileged, "privileged"),
        one("/spec/initContainers", first, "privileged"),
        capability("SYS_ADMIN"),
        // With this capability, a container opens files of all volumes by their handles.
        capability("DAC_READ_SEARCH"),
        capability("BPF"),
        capability("NET_ADMIN"),
        one("/spec/securityContext/seccompProfile", json!({"type": "Unconfined"}), "seccompProfile"),
        one("/spec/containers/0/securityContext/seccompProfile", json!({"type": "Unconfined"}), "seccompProfile"),
        one("/spec/securityContext/appArmorProfile", json!({"type": "Unconfined"}), "forbidden AppArmor profile"),
        one("/spec/securityContext/seLinuxOptions", json!({"type": "spc_t"}), "seLinuxOptions"),
        one("/spec/securityContext/sysctls", json!([{"name": "kernel.msgmax", "value": "8192"}]), "forbidden sysctls"),
        // This setting is valid only in the host's network.
        change(
            vec![
                ("/spec/hostNetwork", true.into()),
                ("/spec/securityContext/windowsOptions", json!({"hostProcess": true})),
            ],
            "hostProcess",
        ),
        Change { fields: escalation(), forbidden: None },
        Change { fields: unmasked(), forbidden: None },
    ]
}

/// Asserts that Pod Security rejects the pod at this level, and names `setting` if there is one.
fn violates(answer: Result<Pod, kube::Error>, level: &str, setting: Option<&str>, what: &dyn Debug) {
    match answer {
        Err(kube::Error::Api(status)) => {
            let violates = status.message.contains(&format!("violates PodSecurity \"{level}"));
            let names = setting.is_none_or(|setting| status.message.contains(&format!("{setting} (")));
            assert!(status.code == 403 && violates && names, "{what:?}: {status:?}");
        }
        other => panic!("{what:?}: {other:?}"),
    }
}

/// Creates the namespace of the manifest in docs/operations/security.md, "Rights of a tenant".
async fn a_tenants_namespace_rejects_pods(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (_, rest) = PAGE.split_once("Pod Security admission").ok_or("the page does not mention Pod Security")?;
    let (_, rest) = rest.split_once("\n```yaml\n").ok_or("the page has no manifest")?;
    let (manifest, _) = rest.split_once("\n```\n").ok_or("the manifest has no end")?;
    let namespace: Namespace = serde_saphyr::from_str(manifest)?;
    let name = namespace.metadata.name.clone().ok_or("the namespace has no name")?;
    let namespaces = Api::<Namespace>::all(cluster.admin());
    namespaces.create(&PostParams::default(), &namespace).await?;
    let tenants = pods_in(&cluster, &name).await?;
    for Change { fields, .. } in changes() {
        // `restricted` uses other names for some settings.
        violates(tenants.create(&dry_run(), &pod(&fields)?).await, "restricted", None, &fields);
    }
    remove(&namespaces, &name).await
}

async fn the_database_of_the_tutorial_is_restricted(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let namespaces = Api::<Namespace>::all(cluster.admin());
    let restricted = serde_json::from_value(json!({
        "metadata": {"name": "tutorial", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
    }))?;
    namespaces.create(&PostParams::default(), &restricted).await?;
    let pods = pods_in(&cluster, "tutorial").await?;
    let objects: Vec<Value> = serde_saphyr::from_multiple(DATABASE)?;
    let set = objects.iter().find(|object| object["kind"] == "StatefulSet").ok_or("the tutorial has no StatefulSet")?;
    let mut pod = set["spec"]["template"].clone();
    pod["metadata"]["name"] = "database-0".into();
    let claim = json!({"name": "data", "persistentVolumeClaim": {"claimName": "data-database-0"}});
    pod["spec"]["volumes"] = json!([claim]);
    pods.create(&dry_run(), &serde_json::from_value(pod)?).await?;
    remove(&namespaces, "tutorial").await
}

/// Tests the default level. Regression: a pod that mounted `/` of the node had access to all volumes, the CA's key and
/// etcd.
async fn without_a_label_pods_cannot_reach_the_node(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let unlabelled = pods_in(&cluster, "default").await?;
    for Change { fields, forbidden } in changes() {
        let answer = unlabelled.create(&dry_run(), &pod(&fields)?).await;
        if forbidden.is_some() {
            violates(answer, "baseline", forbidden, &fields);
        } else {
            answer?;
        }
    }
    Ok(())
}

/// The API server rejects the pod even in a namespace that Pod Security does not limit.
async fn a_pod_without_a_user_namespace_has_a_masked_proc(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let pods = pods_in(&cluster, "kube-system").await?;
    let mut fields = unmasked();
    pods.create(&dry_run(), &pod(&fields)?).await?;
    fields.retain(|(pointer, _)| *pointer != "/spec/hostUsers");
    match pods.create(&dry_run(), &pod(&fields)?).await {
        Err(kube::Error::Api(status)) => {
            assert!(status.code == 422 && status.message.contains("must be false to use `Unmasked`"), "{status:?}");
        }
        other => panic!("{other:?}"),
    }
    Ok(())
}

/// Creates the same pods in a namespace that an administrator labeled, and in the exempt namespace.
async fn in_a_labelled_namespace_pods_reach_the_node(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let namespaces = Api::<Namespace>::all(cluster.admin());
    let labelled = serde_json::from_value(json!({
        "metadata": {"name": "storage-driver", "labels": {"pod-security.kubernetes.io/enforce": "privileged"}},
    }))?;
    namespaces.create(&PostParams::default(), &labelled).await?;
    for namespace in ["storage-driver", "kube-system"] {
        let pods = pods_in(&cluster, namespace).await?;
        for Change { fields, .. } in changes() {
            pods.create(&PostParams::default(), &pod(&fields)?).await?;
            pods.delete("tenant", &DeleteParams::default().grace_period(0)).await?;
        }
    }
    remove(&namespaces, "storage-driver").await
}

/// Clients show the warning to the user who creates the pod.
async fn a_pod_that_is_not_restricted_gets_a_warning(cluster: Arc<Cluster>) -> Result<(), Failure> {
    pods_in(&cluster, "default").await?;
    for (fields, warned) in [(Vec::new(), false), (escalation(), true)] {
        let body = serde_json::to_vec(&pod(&fields)?)?;
        let request =
            Request::post("/api/v1/namespaces/default/pods?dryRun=All").header("content-type", "application/json");
        let answer = cluster.admin().send(request.body(Body::from(body))?).await?;
        let warning = answer.headers().get("warning").map(|text| String::from_utf8_lossy(text.as_bytes()).into_owned());
        assert_eq!(answer.status(), 201, "{fields:?}: {warning:?}");
        let found = warning.is_some_and(|text| text.contains("would violate PodSecurity"));
        assert_eq!(found, warned, "{fields:?}");
    }
    Ok(())
}

/// Regression: kube-proxy redirected connections for the address to the Service's pods, even those of the node itself.
async fn a_service_cannot_claim_an_address(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let services = Api::<Service>::default_namespaced(cluster.admin());
    let service = |addresses: Value| {
        serde_json::from_value::<Service>(json!({
            "metadata": {"name": "thief"}, "spec": {"ports": [{"port": 443}], "externalIPs": addresses},
        }))
    };
    match services.create(&dry_run(), &service(json!(["192.0.2.1"]))?).await {
        Err(kube::Error::Api(status)) => {
            let denied = status.message.contains("Use of external IPs is denied by admission control");
            assert!(status.code == 403 && denied, "{status:?}");
        }
        other => panic!("{other:?}"),
    }
    services.create(&dry_run(), &service(json!([]))?).await?;
    Ok(())
}

/// The API server rejects the claim, so the provisioner never receives it.
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
