//! The objects, as text and in the cluster.

use std::env;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use envtest::{Cluster, Failure, PATIENCE, Seen, eventually};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
    ValidationDirective,
};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

/// Where the plain manifests put the pods.
pub const NAMESPACE: &str = "kube-system";

/// The container of the DaemonSet's pods, as the API server names it.
const CONTAINER: &str = "spec.template.spec.containers[0]";

/// What Helm makes of the chart, or what it says against the values.
fn render(namespace: &str, values: &Value) -> Result<Result<String, String>, Failure> {
    let render = env::var_os("HELM_RENDER").ok_or("HELM_RENDER is not set; run the test by its Bazel target")?;
    let chart = env::var_os("CHART").map_or_else(|| "chart".into(), PathBuf::from);
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(values.to_string().as_bytes())?;
    let done = Command::new(std::path::absolute(render)?).arg(chart).arg(namespace).arg(file.path()).output()?;
    Ok(if done.status.success() {
        Ok(String::from_utf8(done.stdout)?)
    } else {
        Err(String::from_utf8_lossy(&done.stderr).into_owned())
    })
}

/// The objects of the chart with these values.
pub fn rendered(namespace: &str, values: &Value) -> Result<Vec<Value>, Failure> {
    let text = render(namespace, values)??;
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text)?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

fn api(client: &Client, object: &Value) -> Api<DynamicObject> {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, text("kind")));
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().expect("a name")
}

/// As `kubectl apply --server-side --validate=strict`.
async fn apply(client: &Client, object: &Value, params: &PatchParams) -> Result<(), kube::Error> {
    let params = PatchParams { field_validation: Some(ValidationDirective::Strict), ..params.clone() };
    api(client, object).patch(name(object), &params, &Patch::Apply(object)).await.map(drop)
}

/// Asserts that the API server rejects a DaemonSet for one field only, for this reason. It reports all errors of an
/// object at once.
fn is_forbidden(answer: Result<(), kube::Error>, field: &str, reason: &str) {
    let Err(kube::Error::Api(status)) = answer else { panic!("{answer:?}, not an error for {field}") };
    let causes: Vec<_> = status.details.iter().flat_map(|details| &details.causes).collect();
    let [cause] = &*causes else { panic!("not only {field}: {status:?}") };
    assert_eq!(cause.field, field, "{status:?}");
    assert!(cause.message.contains(reason), "{status:?}");
}

/// Makes what the chart has with its default values; once is enough.
pub async fn install(cluster: &Cluster) -> Result<(), Failure> {
    let params = PatchParams::apply("test").force();
    for object in rendered(NAMESPACE, &json!({}))? {
        apply(&cluster.admin(), &object, &params).await?;
    }
    Ok(())
}

pub async fn the_manifests_are_what_helm_makes_of_the_chart(_: Arc<Cluster>) -> Result<(), Failure> {
    let manifests = include_str!("../../manifests.yaml");
    let text = render(NAMESPACE, &json!({}))??;
    assert!(
        manifests.ends_with(&text),
        "manifests.yaml is old; write it anew: bazel run //node/kubernetes/standalone:chart"
    );
    Ok(())
}

pub async fn the_class_is_the_one_that_nodes_of_ours_have(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let admin = cluster.admin();
    let reconciler = supervisor::Supervisor::start("reconciler", supervisor::Settings::default(), move |cx| {
        reconciler::run(cx, admin.clone())
    });
    reconciler.handle().healthy().await?;
    reconciler.stop(PATIENCE).await?;
    let class = rendered(NAMESPACE, &json!({}))?.into_iter().find(|object| object["kind"] == "StorageClass");
    let class = class.expect("the chart has a class");
    let kept = serde_json::to_value(api(&cluster.admin(), &class).get(reconciler::CLASS).await?)?;
    for field in ["provisioner", "volumeBindingMode", "allowVolumeExpansion", "reclaimPolicy"] {
        assert_eq!(class[field], kept[field], "{field}");
    }
    assert_eq!(name(&class), reconciler::CLASS);
    Ok(())
}

pub async fn wrong_values_are_refused_by_name(_: Arc<Cluster>) -> Result<(), Failure> {
    for (values, named) in [
        (json!({"nodes": {}}), "nodes"),
        (json!({"node": {"directry": "/data"}}), "directry"),
        (json!({"node": {"directory": "data"}}), "directory"),
        (json!({"node": {"directory": "/data/../etc"}}), "directory"),
        (json!({"node": {"directory": "/data:1"}}), "directory"),
        (json!({"node": {"fileSystem": "mine"}}), "fileSystem"),
        (json!({"node": {"reserve": "much"}}), "reserve"),
        (json!({"node": {"overcommit": 2}}), "overcommit"),
        (json!({"node": {"limits": {"enforce": "no"}}}), "enforce"),
        (json!({"node": {"limits": {"podsCgroup": "/kubepods"}}}), "podsCgroup"),
        (json!({"node": {"limits": {"podsCgroup": "kubepods/../x"}}}), "podsCgroup"),
        (json!({"storageClass": {"reclaimPolicy": "Recycle"}}), "reclaimPolicy"),
        (json!({"storageClass": {"parameters": {"bytesPerInode": 1024}}}), "bytesPerInode"),
        (json!({"image": {"reference": ""}}), "reference"),
    ] {
        let error = render(NAMESPACE, &values)?.expect_err("values that are wrong");
        assert!(error.contains(named), "{values}: {error}");
    }
    Ok(())
}

/// All that may be chosen, chosen otherwise.
fn others() -> Value {
    json!({
        "image": {
            "reference": "registry.example.invalid:5000/granary@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "pullPolicy": "Always",
            "pullSecrets": [{"name": "registry"}],
        },
        "node": {
            "directory": "/srv/a b/\"volumes\" #1",
            "fileSystem": "shared",
            "reserve": "15%",
            "overcommit": "1.5",
            "kubelet": "/var/snap/kubelet",
            "limits": {"enforce": false, "podsCgroup": "kubelet.slice/kubelet-kubepods.slice"},
            "selector": {"kubernetes.io/os": "linux", "example.invalid/disk": "true"},
            "tolerations": [
                {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"},
                {"key": "disk", "operator": "Equal", "value": "yes", "effect": "NoExecute", "tolerationSeconds": 60},
            ],
            "resources": {},
        },
        "release": {"tolerations": [{"operator": "Exists"}], "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}},
        "storageClass": {
            "name": "fast.local", "isDefault": true, "reclaimPolicy": "Retain",
            "parameters": {"bytesPerInode": "1024", "blockAllocation": "thin"},
        },
    })
}

pub async fn every_object_is_valid_whatever_is_chosen(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let admin = cluster.admin();
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": "storage"}}))?;
    Api::all(admin.clone()).create(&PostParams::default(), &namespace).await?;
    let dry = PatchParams { dry_run: true, ..PatchParams::apply("test").force() };
    let kinds = |objects: &[Value]| objects.iter().map(|object| object["kind"].to_string()).collect::<Vec<_>>();
    let [default, other] = [rendered(NAMESPACE, &json!({}))?, rendered("storage", &others())?];
    assert_eq!(kinds(&default), kinds(&other));
    for object in default.iter().chain(&other) {
        let answer = apply(&admin, object, &dry).await;
        answer.unwrap_or_else(|error| panic!("{} {}: {error}", object["kind"], name(object)));
        if object["kind"] == "DaemonSet" {
            // Why it is privileged.
            let mut refused = object.clone();
            refused["spec"]["template"]["spec"]["containers"][0]["securityContext"]["privileged"] = false.into();
            let answer = apply(&admin, &refused, &dry).await;
            is_forbidden(answer, &format!("{CONTAINER}.volumeMounts.mountPropagation"), "Bidirectional");
        }
    }
    let by_default = default.iter().find(|object| object["kind"] == "DaemonSet").expect("a daemon set");
    let arguments = by_default["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
    assert!(arguments.contains("--limits=enforced") && !arguments.contains("--pods-cgroup"), "{arguments}");
    let node = other.iter().find(|object| object["kind"] == "DaemonSet").expect("a daemon set");
    let arguments = &node["spec"]["template"]["spec"]["containers"][0]["args"];
    assert_eq!(
        *arguments,
        json!([
            "node",
            "--node=$(NODE_NAME)",
            "--directory=/srv/a b/\"volumes\" #1",
            "--file-system=shared",
            "--reserve=15%",
            "--overcommit=1.5",
            "--kubelet=/var/snap/kubelet",
            "--limits=advisory",
            "--pods-cgroup=kubelet.slice/kubelet-kubepods.slice",
            "--sys=/host/sys",
        ])
    );
    let without = rendered(NAMESPACE, &json!({"storageClass": {"create": false}}))?;
    assert!(!kinds(&without).contains(&"\"StorageClass\"".to_owned()));
    Ok(())
}

pub async fn the_api_server_understands_every_expression(cluster: Arc<Cluster>) -> Result<(), Failure> {
    install(&cluster).await?;
    let policies = Api::<ValidatingAdmissionPolicy>::all(cluster.admin());
    let warnings = eventually(PATIENCE, "the check of all policies", async || {
        let found = policies.list(&ListParams::default()).await?.items;
        let of = |policy: &ValidatingAdmissionPolicy| policy.status.clone().unwrap_or_default().type_checking;
        let waiting = found.iter().filter(|policy| of(policy).is_none()).count();
        Ok::<_, kube::Error>(if waiting > 0 {
            Seen::NotYet(format!("{waiting} of {} wait", found.len()))
        } else {
            let checked = found.iter().filter_map(of);
            Seen::Done(checked.flat_map(|check| check.expression_warnings.unwrap_or_default()).collect::<Vec<_>>())
        })
    })
    .await?;
    assert_eq!(warnings, []);
    Ok(())
}

pub async fn nothing_is_left_when_the_objects_are_deleted(cluster: Arc<Cluster>) -> Result<(), Failure> {
    install(&cluster).await?;
    let admin = cluster.admin();
    let objects = rendered(NAMESPACE, &json!({}))?;
    for object in objects.iter().rev() {
        api(&admin, object).delete(name(object), &DeleteParams::background()).await?;
    }
    for object in &objects {
        let what = format!("the end of {} {}", object["kind"], name(object));
        eventually(PATIENCE, &what, async || {
            let found = api(&admin, object).get_opt(name(object)).await?;
            Ok::<_, kube::Error>(found.map_or(Seen::Done(()), |found| Seen::NotYet(found.name_any())))
        })
        .await?;
    }
    Ok(())
}
