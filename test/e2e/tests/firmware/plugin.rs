//! A pod network that a DaemonSet installs, like those of Cilium, Calico and flannel.

use e2e::{Case, Failure, PATIENCE, Pod as ServerPod, Seen, cost, eventually};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, LogParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use workload::Record;

const IMAGE: &str = "granary.invalid/e2e-plugin:1";
/// Range of the plugin, outside of the cluster's networks (RFC 2544).
const RANGE: &str = "198.18.7.0/24";
/// Name and label of the DaemonSet.
const NAME: &str = "plugin";
/// Container that inspects the node, and its port in the node's network. A separate pod would take longer.
const OBSERVER: &str = "observer";
const PORT: u16 = 8090;

/// Creates the DaemonSet. The node is not Ready until the DaemonSet's pod has installed the plugin.
pub async fn install(client: Client) -> Result<Case, Failure> {
    let case = Case::begin_privileged(client, "plugin".to_owned()).await?;
    let container = |name: &str, arguments: &[&str], user: u32, volumes: &[&str]| {
        let mounts = volumes.iter().map(|name| json!({"name": name, "mountPath": format!("/{name}")}));
        json!({
            "name": name,
            "image": IMAGE,
            "imagePullPolicy": "Never",
            "args": arguments,
            "securityContext": {"runAsUser": user},
            "volumeMounts": mounts.collect::<Vec<_>>(),
        })
    };
    let volume =
        |name: &str, path: &str| json!({"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}});
    let labels = json!({"app": NAME});
    let _: DaemonSet = case
        .create(json!({
            "metadata": {"name": NAME},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "hostNetwork": true,
                        "hostPID": true,
                        "automountServiceAccountToken": false,
                        "tolerations": [{"operator": "Exists"}],
                        "initContainers": [
                            container("rights", &["is-denied", "/programs/denied", "/registries/denied"], 1000, &["programs", "registries"]),
                            container("install", &["install", "/programs", "/configurations", RANGE], 0, &["programs", "configurations"]),
                        ],
                        // The runtime starts the container only if the node's mounts are shared.
                        "containers": [{
                            "name": "agent",
                            "image": "granary.invalid/pause:1",
                            "imagePullPolicy": "Never",
                            "securityContext": {"privileged": true},
                            "volumeMounts": [
                                {"name": "programs", "mountPath": "/programs", "mountPropagation": "Bidirectional"},
                                {"name": "bpf", "mountPath": "/sys/fs/bpf", "mountPropagation": "Bidirectional"},
                                {"name": "run", "mountPath": "/run/plugin", "mountPropagation": "HostToContainer"},
                            ],
                        }, {
                            "name": OBSERVER,
                            "image": IMAGE,
                            "imagePullPolicy": "Never",
                            "args": ["observe", "/host", PORT.to_string()],
                            "securityContext": {"privileged": true},
                            "volumeMounts": [{"name": "host", "mountPath": "/host", "readOnly": true}],
                        }],
                        "volumes": [
                            volume("host", "/"),
                            volume("programs", "/opt/cni/bin"),
                            volume("configurations", "/etc/cni/net.d"),
                            volume("registries", "/etc/containerd/certs.d"),
                            volume("bpf", "/sys/fs/bpf"),
                            volume("run", "/run/plugin"),
                        ],
                    },
                },
            },
        }))
        .await?;
    cost("pods");
    Ok(case)
}

/// Verifies that a pod has an address of the plugin and resolves names, and that the node has no pod network of its
/// own.
pub async fn is_used(case: &Case) -> Result<(), Failure> {
    let server = case.open(&ServerPod::server("ordinary")).await?;
    let pods: Api<Pod> = case.api();
    let pod = pods.get(server.name()).await.map_err(Failure::api("read a pod"))?;
    let address = pod.status.and_then(|status| status.pod_ip).unwrap_or_default();
    assert!(address.starts_with("198.18.7."), "{address}");
    eventually(PATIENCE, "an answer of the node's DNS", async || {
        let resolved = server.resolve("kubernetes.default.svc", Record::A).await;
        let text = format!("{resolved:?}");
        let is_right = resolved.is_ok_and(|found| found.answers == ["10.96.0.1"]);
        Ok(if is_right { Seen::Done(()) } else { Seen::NotYet(text) })
    })
    .await?;

    eventually(PATIENCE, "the pod of the DaemonSet", async || {
        let found: DaemonSet = case.api().get(NAME).await.map_err(Failure::api("read a DaemonSet"))?;
        let ready = found.status.map(|status| status.number_ready);
        Ok(if ready == Some(1) { Seen::Done(()) } else { Seen::NotYet(format!("{ready:?} are ready")) })
    })
    .await?;

    let found = look(case).await?;
    let [programs, interfaces, rules] = ["programs", "interfaces", "rules"].map(|key| found[key].to_string());
    assert!(programs.contains("\"kubelet\"") && !programs.contains("kube-proxy"), "{programs}");
    assert!(interfaces.contains("eth0") && !interfaces.contains("clusternet"), "{interfaces}");
    assert!(rules.contains("table inet granary") && rules.contains("cluster DNS"), "{rules}");
    for other in ["kube-proxy", "masquerade", "veth", "clusternet"] {
        assert!(!rules.contains(other), "{other}: {rules}");
    }
    Ok(())
}

async fn look(case: &Case) -> Result<Value, Failure> {
    let pods: Api<Pod> = case.api();
    let labelled = ListParams::default().labels(&format!("app={NAME}"));
    let found = pods.list(&labelled).await.map_err(Failure::api("list the pods of a DaemonSet"))?;
    let [pod] = &*found.items else { panic!("{} pods of a DaemonSet on one node", found.items.len()) };
    let pod = pod.name_any();
    let of_the_observer = LogParams { container: Some(OBSERVER.to_owned()), ..LogParams::default() };
    eventually(PATIENCE, "the observer to wait for requests", async || {
        let log = pods.logs(&pod, &of_the_observer).await.map_err(Failure::api("read the log of a container"))?;
        Ok(if log == "waiting for requests\n" { Seen::Done(()) } else { Seen::NotYet(log) })
    })
    .await?;
    let text = case.get(&format!("/api/v1/namespaces/{}/pods/{pod}:{PORT}/proxy/", case.namespace())).await?;
    serde_json::from_str(&text).map_err(|source| Failure::Report { pod, message: text, source })
}
