//! Objects of the chart, as text and in the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::{env, fs};

use cluster::Overcommit;
use envtest::{Cluster, Failure, PATIENCE, Seen, create, eventually, gone, start};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, ValidationDirective,
};
use kube::{Api, Client};
use serde_json::{Value, json};
use standalone::arguments::Reserve;
use volume::{MAX_PAUSE, SnapshotParameters};

pub const NAMESPACE: &str = "kube-system";

const IS_DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";
const IS_DEFAULT_OF_SNAPSHOTS: &str = "snapshot.storage.kubernetes.io/is-default-class";

/// Path of the DaemonSet's container in errors.
const CONTAINER: &str = "spec.template.spec.containers[0]";

fn chart() -> PathBuf {
    env::var_os("CHART").map_or_else(|| "chart".into(), PathBuf::from)
}

/// The rendered chart, or the error about its values.
fn render(namespace: &str, values: &Value) -> Result<Result<String, String>, Failure> {
    let render = env::var_os("HELM_RENDER").ok_or("HELM_RENDER is not set; run the test by its Bazel target")?;
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(values.to_string().as_bytes())?;
    let output = Command::new(std::path::absolute(render)?).arg(chart()).arg(namespace).arg(file.path()).output()?;
    Ok(if output.status.success() {
        Ok(String::from_utf8(output.stdout)?)
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    })
}

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

/// Applies an object like `kubectl apply --server-side --validate=strict`.
async fn apply(client: &Client, object: &Value, params: &PatchParams) -> Result<(), kube::Error> {
    let params = PatchParams { field_validation: Some(ValidationDirective::Strict), ..params.clone() };
    api(client, object).patch(name(object), &params, &Patch::Apply(object)).await.map(drop)
}

/// Asserts that the API server rejects a DaemonSet only for this field and reason. The API server reports all errors of
/// an object at once.
fn is_forbidden(answer: Result<(), kube::Error>, field: &str, reason: &str) {
    let Err(kube::Error::Api(status)) = answer else { panic!("{answer:?}, not an error for {field}") };
    let causes: Vec<_> = status.details.iter().flat_map(|details| &details.causes).collect();
    let [cause] = &*causes else { panic!("not only {field}: {status:?}") };
    assert_eq!(cause.field, field, "{status:?}");
    assert!(cause.message.contains(reason), "{status:?}");
}

/// Applies the chart with its default values. Repeated calls have no effect.
pub async fn install(cluster: &Cluster) -> Result<(), Failure> {
    let params = PatchParams::apply("test").force();
    for object in rendered(NAMESPACE, &json!({}))? {
        apply(&cluster.admin(), &object, &params).await?;
    }
    Ok(())
}

pub async fn the_class_is_the_one_of_granary_nodes(cluster: Arc<Cluster>) -> Result<(), Failure> {
    start("reconciler", cluster.admin(), reconciler::run).await?.stop(PATIENCE).await?;
    let class = rendered(NAMESPACE, &json!({}))?.into_iter().find(|object| object["kind"] == "StorageClass");
    let class = class.expect("the chart has a class");
    let of_nodes = serde_json::to_value(api(&cluster.admin(), &class).get(reconciler::CLASS).await?)?;
    for field in ["provisioner", "volumeBindingMode", "allowVolumeExpansion", "reclaimPolicy", "parameters"] {
        assert_eq!(class[field], of_nodes[field], "{field}");
    }
    assert_eq!(name(&class), reconciler::CLASS);
    Ok(())
}

pub async fn invalid_values_are_rejected_by_name(_: Arc<Cluster>) -> Result<(), Failure> {
    for (values, named) in [
        (json!({"nodes": {}}), "nodes"),
        (json!({"node": {"directry": "/data"}}), "directry"),
        (json!({"node": {"directory": "data"}}), "directory"),
        (json!({"node": {"directory": "/data/../etc"}}), "directory"),
        (json!({"node": {"directory": "/data:1"}}), "directory"),
        // Mounts in the kubelet's directory would propagate to the node.
        (json!({"node": {"directory": "/var/lib/kubelet/granary"}}), "is in node.kubelet"),
        (json!({"node": {"directory": "/srv//k/", "kubelet": "/srv/k"}}), "is in node.kubelet"),
        (json!({"node": {"fileSystem": "mine"}}), "fileSystem"),
        (json!({"node": {"provisioner": "none"}}), "provisioner"),
        (json!({"node": {"reserve": "much"}}), "reserve"),
        (json!({"node": {"reserve": "10GB"}}), "reserve"),
        (json!({"node": {"reserve": "10iB"}}), "reserve"),
        (json!({"node": {"reserve": "99999E"}}), "reserve"),
        (json!({"node": {"overcommit": 2}}), "overcommit"),
        (json!({"node": {"overcommit": "0.5"}}), "overcommit"),
        (json!({"node": {"overcommit": "100.5"}}), "overcommit"),
        (json!({"node": {"limits": {"enforce": "no"}}}), "enforce"),
        (json!({"node": {"limits": {"podsCgroup": "/kubepods"}}}), "podsCgroup"),
        (json!({"node": {"limits": {"podsCgroup": "kubepods/../x"}}}), "podsCgroup"),
        (json!({"node": {"extraArgs": ["check"]}}), "extraArgs"),
        (json!({"node": {"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}}}), "maxSurge"),
        (json!({"node": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": 0}}}}), "maxUnavailable"),
        (json!({"node": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": "half"}}}}), "maxUnavailable"),
        (json!({"node": {"podLabels": {"a": 1}}}), "podLabels"),
        (json!({"reclaimer": {"replicas": 0}}), "replicas"),
        (json!({"reclaimer": {"updateStrategy": {"type": "Recreate", "rollingUpdate": {}}}}), "updateStrategy"),
        (
            json!({"reclaimer": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": "0%"}}}}),
            "updateStrategy",
        ),
        (json!({"logLevel": "loud"}), "logLevel"),
        (json!({"storageClasses": [{"nam": "local"}]}), "nam"),
        (json!({"storageClasses": [{"name": "Local_1"}]}), "name"),
        (json!({"storageClasses": [{"name": "local"}, {"name": "local", "reclaimPolicy": "Retain"}]}), "local twice"),
        (json!({"storageClasses": [{"name": "local", "annotations": {IS_DEFAULT: "true"}}]}), "set isDefault"),
        (json!({"storageClasses": [{"name": "local", "reclaimPolicy": "Recycle"}]}), "reclaimPolicy"),
        (json!({"storageClasses": [{"name": "local", "parameters": {"bytesPerInode": "511"}}]}), "bytesPerInode"),
        (json!({"storageClasses": [{"name": "local", "parameters": {"blockAllocation": "slim"}}]}), "blockAllocation"),
        (json!({"storageClasses": [{"name": "local", "parameters": {"thin": "true"}}]}), "thin"),
        (json!({"storageClasses": [{"name": "local", "parameters": {"bytesPerInode": 1024}}]}), "bytesPerInode"),
        (json!({"snapshotClasses": [{"nam": "local"}]}), "nam"),
        (json!({"snapshotClasses": [{"name": "Local_1"}]}), "name"),
        (json!({"snapshotClasses": [{"name": "local"}, {"name": "local", "isDefault": true}]}), "local twice"),
        (
            json!({"snapshotClasses": [{"name": "a", "isDefault": true}, {"name": "b", "isDefault": true}]}),
            "a and b have isDefault",
        ),
        (
            json!({"snapshotClasses": [{"name": "local", "annotations": {IS_DEFAULT_OF_SNAPSHOTS: "true"}}]}),
            "set isDefault",
        ),
        (json!({"snapshotClasses": [{"name": "local", "deletionPolicy": "Recycle"}]}), "deletionPolicy"),
        (json!({"snapshotClasses": [{"name": "local", "parameters": {"maxPause": "0s"}}]}), "maxPause"),
        (json!({"snapshotClasses": [{"name": "local", "parameters": {"maxPause": "61s"}}]}), "maxPause"),
        (json!({"snapshotClasses": [{"name": "local", "parameters": {"maxPause": 2}}]}), "maxPause"),
        (json!({"snapshotClasses": [{"name": "local", "parameters": {"thin": true}}]}), "thin"),
        (json!({"snapshotClasses": [{"name": "local", "parameters": {"bytesPerInode": "1024"}}]}), "bytesPerInode"),
        (json!({"image": {"repository": ""}}), "repository"),
        (json!({"image": {"repository": "registry.example.invalid/storage:1"}}), "repository"),
        (json!({"image": {"tag": "a:b"}}), "tag"),
        (json!({"image": {"digest": "sha256:0"}}), "digest"),
        (json!({"podMonitor": {"interval": "often"}}), "interval"),
        (json!({"networkPolicy": {"metricsFrom": [{}]}}), "metricsFrom"),
        // Values of former versions.
        (json!({"image": {"reference": "granary.invalid/storage:0.1.0"}}), "image.repository"),
        (json!({"node": {"selector": {"kubernetes.io/os": "linux"}}}), "node.nodeSelector"),
        (json!({"release": {"tolerations": []}}), "set reclaimer"),
        (json!({"storageClass": {"create": false}}), "storageClasses"),
    ] {
        let error = render(NAMESPACE, &values)?.expect_err("invalid values");
        assert!(error.contains(named), "{values}: {error}");
    }
    for directory in ["/var/lib/kubelet-volumes", "/var/lib"] {
        render(NAMESPACE, &json!({"node": {"directory": directory}}))??;
    }
    // The program accepts all values that the schema accepts.
    for reserve in ["0%", "99%", "20Gi", "20 GiB", "4096 B", "9999999999999999999", "9E"] {
        reserve.parse::<Reserve>()?;
        render(NAMESPACE, &json!({"node": {"reserve": reserve}}))??;
    }
    for overcommit in ["1", "1.0", "99.999", "100.0"] {
        overcommit.parse::<Overcommit>()?;
        render(NAMESPACE, &json!({"node": {"overcommit": overcommit}}))??;
    }
    for pause in ["1ms", "9999ms", "60000ms", "1s", "59.999s", "60s", "1m"] {
        SnapshotParameters::parse(&BTreeMap::from([(MAX_PAUSE.to_owned(), pause.to_owned())]))?;
        render(NAMESPACE, &json!({"snapshotClasses": [{"name": "local", "parameters": {MAX_PAUSE: pause}}]}))??;
    }
    for strategy in [json!({"maxUnavailable": 0, "maxSurge": 1}), json!({"maxSurge": 0}), json!({"maxUnavailable": 0})]
    {
        render(NAMESPACE, &json!({"reclaimer": {"updateStrategy": {"rollingUpdate": strategy}}}))??;
    }
    // external-provisioner removes some parameters. The own provisioner would reject all claims of this class.
    let class = json!({"name": "local", "parameters": {"csi.storage.k8s.io/fstype": "xfs", "bytesPerInode": "512"}});
    render(NAMESPACE, &json!({"node": {"provisioner": "external"}, "storageClasses": [class]}))??;
    let error = render(NAMESPACE, &json!({"storageClasses": [class]}))?.expect_err("a parameter for another program");
    assert!(error.contains("csi.storage.k8s.io/fstype") && error.contains("node.provisioner"), "{error}");
    let secret = "csi.storage.k8s.io/snapshotter-secret-name";
    let class = json!({"name": "local", "parameters": {secret: "secret", "thin": "true"}});
    render(NAMESPACE, &json!({"node": {"provisioner": "external"}, "snapshotClasses": [class]}))??;
    let error = render(NAMESPACE, &json!({"snapshotClasses": [class]}))?.expect_err("a parameter for another program");
    assert!(error.contains(secret) && error.contains("node.provisioner"), "{error}");
    Ok(())
}

const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// The values that the schema requires, and that are missing in `other` or equal in `one` and `other`.
fn unchanged(schema: &Value, one: &Value, other: &Value) -> Vec<String> {
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let each = required.flat_map(|name| {
        let (schema, one, other) = (&schema["properties"][name], &one[name], &other[name]);
        if schema["required"].is_array() {
            unchanged(schema, one, other).into_iter().map(|below| format!("{name}.{below}")).collect::<Vec<_>>()
        } else if other.is_null() || one == other {
            vec![name.to_owned()]
        } else {
            vec![]
        }
    });
    each.collect()
}

/// Values that differ from all defaults.
fn others() -> Value {
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "disk", "operator": "Exists"}]},
    ]}}});
    json!({
        "image": {
            "repository": "registry.example.invalid:5000/granary", "tag": "v1", "digest": DIGEST,
            "pullPolicy": "Always", "pullSecrets": [{"name": "registry"}],
        },
        "logLevel": "debug",
        "node": {
            "directory": "/srv/a b/\"volumes\" #1",
            "fileSystem": "shared",
            "reserve": "15%",
            "overcommit": "1.5",
            "provisioner": "external",
            "kubelet": "/var/snap/kubelet",
            "limits": {"enforce": false, "podsCgroup": "kubelet.slice/kubelet-kubepods.slice"},
            "nodeSelector": {"kubernetes.io/os": "windows", "example.invalid/disk": "true"},
            "affinity": affinity,
            "tolerations": [
                {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"},
                {"key": "disk", "operator": "Equal", "value": "yes", "effect": "NoExecute", "tolerationSeconds": 60},
            ],
            "resources": {},
            "podLabels": {"team": "storage", "app.kubernetes.io/name": "other"},
            "podAnnotations": {"example.invalid/a": "b"},
            "extraArgs": ["--container-logs=/logs"],
            "updateStrategy": {"type": "OnDelete"},
            "priorityClassName": "high",
        },
        "reclaimer": {
            "replicas": 3, "nodeSelector": {"zone": "a"}, "affinity": affinity, "tolerations": [{"operator": "Exists"}],
            "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}, "podLabels": {"team": "storage"},
            "podAnnotations": {"example.invalid/a": "b"}, "extraArgs": ["--listen=0.0.0.0:7839"],
            "updateStrategy": {"type": "Recreate"}, "priorityClassName": "low",
        },
        "storageClasses": [
            {
                "name": "fast.local", "isDefault": true, "reclaimPolicy": "Retain",
                "parameters": {"bytesPerInode": "1024", "blockAllocation": "thin"},
                "labels": {"tier": "fast"}, "annotations": {"example.invalid/a": "b"},
            },
            {"name": "second"},
        ],
        "snapshotClasses": [
            {
                "name": "kept.local", "isDefault": true, "deletionPolicy": "Retain",
                "parameters": {"maxPause": "500ms", "thin": "false"},
                "labels": {"tier": "fast"}, "annotations": {"example.invalid/a": "b"},
            },
            {"name": "second"},
        ],
        "podMonitor": {"enabled": true, "labels": {"release": "prometheus"}, "interval": "30s"},
        "prometheusRule": {"enabled": true, "labels": {"release": "prometheus"}},
        "networkPolicy": {"enabled": true, "metricsFrom": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]},
    })
}

/// Definition of a prometheus-operator kind with the fields that the chart uses.
fn monitoring(kind: &str, plural: &str) -> Value {
    let texts = json!({"type": "object", "additionalProperties": {"type": "string"}});
    let text = json!({"type": "string"});
    let list = |properties: Value| json!({"type": "array", "items": {"type": "object", "properties": properties}});
    let spec = json!({
        "selector": {"type": "object", "properties": {"matchLabels": texts}},
        "podMetricsEndpoints": list(json!({
            "port": text, "interval": {"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"},
            "honorLabels": {"type": "boolean"},
            "relabelings": list(json!({
                "action": {"type": "string", "enum": ["replace", "keep", "drop"]},
                "sourceLabels": {"type": "array", "items": text}, "targetLabel": text, "replacement": text,
            })),
        })),
        "groups": list(json!({"name": text, "rules": list(json!({
            "alert": text, "expr": text, "for": text, "labels": texts, "annotations": texts,
        }))})),
    });
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": spec}}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.monitoring.coreos.com")},
        "spec": {
            "group": "monitoring.coreos.com", "scope": "Namespaced", "names": {"kind": kind, "plural": plural},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    })
}

fn find<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects.iter().find(|object| object["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"))
}

pub async fn every_object_is_valid_with_any_values(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let admin = cluster.admin();
    create(&Api::<Namespace>::all(admin.clone()), json!({"metadata": {"name": "storage"}})).await?;
    let dry = PatchParams { dry_run: true, ..PatchParams::apply("test").force() };
    let kinds = |objects: &[Value]| objects.iter().map(|object| object["kind"].to_string()).collect::<BTreeSet<_>>();
    let [default, other] = [rendered(NAMESPACE, &json!({}))?, rendered("storage", &others())?];
    let optional =
        ["NetworkPolicy", "PodMonitor", "PrometheusRule", "VolumeSnapshotClass"].map(|kind| format!("\"{kind}\""));
    assert_eq!(kinds(&other).difference(&kinds(&default)).cloned().collect::<Vec<_>>(), optional);
    cluster.reconcile_snapshots().await?;
    for (kind, plural) in [("PodMonitor", "podmonitors"), ("PrometheusRule", "prometheusrules")] {
        apply(&admin, &monitoring(kind, plural), &PatchParams::apply("test").force()).await?;
        eventually(PATIENCE, "the custom resource", async || {
            Ok::<_, kube::Error>(match apply(&admin, find(&other, kind), &dry).await {
                Err(kube::Error::Api(status)) if status.is_not_found() => Seen::NotYet(status.message),
                other => Seen::Done(other?),
            })
        })
        .await?;
    }
    for object in default.iter().chain(&other) {
        let answer = apply(&admin, object, &dry).await;
        answer.unwrap_or_else(|error| panic!("{} {}: {error}", object["kind"], name(object)));
        let labels = &object["metadata"]["labels"];
        for label in ["name", "instance", "component", "part-of", "version", "managed-by"] {
            assert!(labels[format!("app.kubernetes.io/{label}")].is_string(), "{label}: {object}");
        }
        if object["kind"] == "DaemonSet" {
            // Bidirectional mounts are the reason for the privileged container.
            let mut unprivileged = object.clone();
            unprivileged["spec"]["template"]["spec"]["containers"][0]["securityContext"]["privileged"] = false.into();
            let answer = apply(&admin, &unprivileged, &dry).await;
            is_forbidden(answer, &format!("{CONTAINER}.volumeMounts.mountPropagation"), "Bidirectional");
        }
    }
    Ok(())
}

pub async fn every_value_reaches_its_field(_: Arc<Cluster>) -> Result<(), Failure> {
    let [default, other] = [rendered(NAMESPACE, &json!({}))?, rendered("storage", &others())?];
    let values = others();
    let schema: Value = serde_json::from_str(&fs::read_to_string(chart().join("values.schema.json"))?)?;
    let defaults: Value = serde_saphyr::from_str(&fs::read_to_string(chart().join("values.yaml"))?)?;
    assert_eq!(unchanged(&schema, &defaults, &values), <[&str; 0]>::default(), "others() has no other value");
    let [node, reclaimer] = [&values["node"], &values["reclaimer"]];
    let image = format!("registry.example.invalid:5000/granary:v1@{DIGEST}");
    let mut expected = vec![
        (&default, "DaemonSet", "/spec/selector/matchLabels", json!({"app.kubernetes.io/name": "granary-storage"})),
        (
            &default,
            "DaemonSet",
            "/spec/template/spec/nodeSelector",
            json!({"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}),
        ),
        (&default, "DaemonSet", "/spec/template/spec/containers/0/image", json!("granary.invalid/storage:0.1.0")),
        (&default, "Deployment", "/spec/replicas", json!(2)),
        (&default, "PodDisruptionBudget", "/spec/maxUnavailable", json!(1)),
        (&default, "PodDisruptionBudget", "/spec/unhealthyPodEvictionPolicy", json!("AlwaysAllow")),
        (
            &other,
            "DaemonSet",
            "/spec/template/spec/nodeSelector",
            json!({"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "example.invalid/disk": "true"}),
        ),
        (&other, "DaemonSet", "/spec/template/metadata/labels/app.kubernetes.io~1name", json!("granary-storage")),
        (&other, "DaemonSet", "/spec/updateStrategy/type", json!("OnDelete")),
        (
            &other,
            "DaemonSet",
            "/spec/template/spec/containers/0/args",
            json!([
                "node",
                "--node=$(NODE_NAME)",
                "--directory=/srv/a b/\"volumes\" #1",
                "--file-system=shared",
                "--reserve=15%",
                "--overcommit=1.5",
                "--provisioner=external",
                "--kubelet=/var/snap/kubelet",
                "--limits=advisory",
                "--pods-cgroup=kubelet.slice/kubelet-kubepods.slice",
                "--sys=/host/sys",
                "--log-level=debug",
                "--container-logs=/logs",
            ]),
        ),
        (&other, "Deployment", "/spec/replicas", json!(3)),
        (&other, "Deployment", "/spec/strategy/type", json!("Recreate")),
        (
            &other,
            "Deployment",
            "/spec/template/spec/containers/0/args",
            json!(["reclaimer", "--pod=$(POD_NAME)", "--log-level=debug", "--listen=0.0.0.0:7839"]),
        ),
        (&other, "StorageClass", "/parameters", values["storageClasses"][0]["parameters"].clone()),
        (&other, "StorageClass", "/reclaimPolicy", json!("Retain")),
        (&other, "StorageClass", "/metadata/labels/tier", json!("fast")),
        (&other, "StorageClass", "/metadata/annotations/storageclass.kubernetes.io~1is-default-class", json!("true")),
        (&other, "VolumeSnapshotClass", "/driver", json!("local.granary.dev")),
        (&other, "VolumeSnapshotClass", "/parameters", values["snapshotClasses"][0]["parameters"].clone()),
        (&other, "VolumeSnapshotClass", "/deletionPolicy", json!("Retain")),
        (&other, "VolumeSnapshotClass", "/metadata/labels/tier", json!("fast")),
        (
            &other,
            "VolumeSnapshotClass",
            "/metadata/annotations",
            json!({IS_DEFAULT_OF_SNAPSHOTS: "true", "example.invalid/a": "b"}),
        ),
        (&other, "PodMonitor", "/metadata/labels/release", json!("prometheus")),
        (&other, "PodMonitor", "/spec/podMetricsEndpoints/0/interval", json!("30s")),
        (&other, "PodMonitor", "/spec/podMetricsEndpoints/0/honorLabels", json!(true)),
        (&other, "PodMonitor", "/spec/podMetricsEndpoints/0/relabelings/0/replacement", json!("granary")),
        (&other, "PrometheusRule", "/metadata/labels/release", json!("prometheus")),
        (&other, "PrometheusRule", "/spec/groups/0/name", json!("granary-storage")),
        (&other, "PrometheusRule", "/spec/groups/0/rules/0/alert", json!("GranaryNodeDown")),
        (&other, "NetworkPolicy", "/spec/ingress/0/from", values["networkPolicy"]["metricsFrom"].clone()),
    ];
    for (kind, values) in [("DaemonSet", node), ("Deployment", reclaimer)] {
        let mut field = |path: &'static str, value: &Value| expected.push((&other, kind, path, value.clone()));
        field("/spec/template/spec/containers/0/image", &json!(image));
        field("/spec/template/spec/containers/0/imagePullPolicy", &json!("Always"));
        field("/spec/template/spec/imagePullSecrets/0/name", &json!("registry"));
        field("/spec/template/spec/affinity", &values["affinity"]);
        field("/spec/template/spec/tolerations", &values["tolerations"]);
        field("/spec/template/spec/priorityClassName", &values["priorityClassName"]);
        field("/spec/template/metadata/labels/team", &json!("storage"));
        field("/spec/template/metadata/annotations/example.invalid~1a", &json!("b"));
    }
    for (objects, kind, path, value) in expected {
        assert_eq!(find(objects, kind).pointer(path), Some(&value), "{kind} {path}");
    }
    let second = other.iter().rfind(|object| object["kind"] == "StorageClass").expect("two classes");
    assert_eq!((name(second), second["reclaimPolicy"].as_str()), ("second", Some("Delete")));
    let second = other.iter().rfind(|object| object["kind"] == "VolumeSnapshotClass").expect("two classes");
    assert_eq!((name(second), second["deletionPolicy"].as_str()), ("second", Some("Delete")));
    assert_eq!(second["metadata"]["annotations"], json!({IS_DEFAULT_OF_SNAPSHOTS: "false"}));
    assert_eq!(
        find(&other, "Deployment").pointer("/spec/template/spec/containers/0/resources/limits/memory"),
        Some(&json!("1Gi"))
    );
    let arguments = find(&default, "DaemonSet")["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
    assert!(arguments.contains("--limits=enforced") && !arguments.contains("--pods-cgroup"), "{arguments}");
    let untagged = rendered(NAMESPACE, &json!({"image": {"digest": DIGEST}}))?;
    let untagged = find(&untagged, "Deployment").pointer("/spec/template/spec/containers/0/image");
    assert_eq!(untagged, Some(&json!(format!("granary.invalid/storage@{DIGEST}"))));
    // YAML reads this name as a number unless it is quoted.
    for object in rendered("2026", &others())? {
        let namespace = &object["metadata"]["namespace"];
        assert!(namespace.is_null() || namespace == "2026", "{object}");
    }
    let closed = rendered(NAMESPACE, &json!({"storageClasses": [], "networkPolicy": {"enabled": true}}))?;
    assert!(closed.iter().all(|object| object["kind"] != "StorageClass"));
    assert_eq!(find(&closed, "NetworkPolicy")["spec"]["ingress"], json!([]), "without peers, no pod is allowed");
    Ok(())
}

/// Every pod can reach the port if no NetworkPolicy is in force, and the endpoint serves few connections at once.
pub async fn no_probe_restarts_a_container(_: Arc<Cluster>) -> Result<(), Failure> {
    for objects in [rendered(NAMESPACE, &json!({}))?, rendered("storage", &others())?] {
        for kind in ["DaemonSet", "Deployment"] {
            let container = &find(&objects, kind)["spec"]["template"]["spec"]["containers"][0];
            assert_eq!(container["readinessProbe"]["httpGet"]["path"], "/readyz", "{kind}");
            for probe in ["livenessProbe", "startupProbe"] {
                assert!(container[probe].is_null(), "{kind}: {probe}");
            }
        }
    }
    Ok(())
}

pub async fn the_api_server_accepts_every_expression(cluster: Arc<Cluster>) -> Result<(), Failure> {
    install(&cluster).await?;
    let policies = Api::<ValidatingAdmissionPolicy>::all(cluster.admin());
    let warnings = eventually(PATIENCE, "the check of all policies", async || {
        let found = policies.list(&ListParams::default()).await?.items;
        let checking = |policy: &ValidatingAdmissionPolicy| policy.status.clone().unwrap_or_default().type_checking;
        let waiting = found.iter().filter(|policy| checking(policy).is_none()).count();
        Ok::<_, kube::Error>(if waiting > 0 {
            Seen::NotYet(format!("{waiting} of {} wait", found.len()))
        } else {
            let checked = found.iter().filter_map(checking);
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
        gone(&api(&admin, object), name(object)).await?;
    }
    Ok(())
}
