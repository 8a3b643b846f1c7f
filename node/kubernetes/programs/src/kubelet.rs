//! The kubelet. The CSI plugin's sockets must exist before it starts.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use units::Bytes;

use crate::config::Disk;
use crate::pki::identity::Identity;
use crate::program::{Program, Service};
use crate::{Config, Credentials, memory, ready, registries};

/// Percentage of the *whole* disk below which the kubelet evicts pods. The kubelet asks the file system, and does not
/// see the limits of directories. Volumes may use all of their reservations, so that a usual percentage would report
/// `DiskPressure` on a disk that works as intended. While all limits hold, more than this is free.
const PRESSURE_PERCENT: u64 = 1;

/// Processes and threads of `kernel.pid_max` and `kernel.threads-max` (some 9000 on the smallest machine) that are
/// reserved for the node. A pod's shim has about 12 threads outside of the pod's cgroup, and a node has at most 110
/// pods. The node's programs have some 200 threads, and the kernel about as many.
const PROGRAM_PROCESSES: u32 = 1536;
const SYSTEM_PROCESSES: u32 = 512;

/// Percentage of free PIDs below which the kubelet evicts pods.
const PROCESS_PRESSURE_PERCENT: u64 = 10;

/// Healthy when `/healthz` is `ok`, which does not include that the Node is ready.
pub fn service(config: &Config, credentials: &Credentials) -> Service {
    program(config, credentials).service(&config.paths, || ready::http(10248, "/healthz"))
}

/// Whether the kubelet has reported the Node ready at `since` or later, to the second. After a reboot, the stored Node
/// still has the conditions of the last boot.
pub fn is_ready(node: &Node, since: Timestamp) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut ready = conditions.filter(|condition| condition.type_ == "Ready" && condition.status == "True");
    ready.any(|condition| condition.last_heartbeat_time.as_ref().is_some_and(|heartbeat| heartbeat.0 >= since))
}

pub(crate) fn program(config: &Config, credentials: &Credentials) -> Program {
    let paths = &config.paths;
    let file = paths.generated("kubelet.json");
    let arguments = vec![
        format!("--config={}", file.display()),
        format!("--kubeconfig={}", credentials.kubeconfig(Identity::Kubelet).display()),
        format!("--root-dir={}", paths.kubelet.display()),
        format!("--cert-dir={}", paths.kubelet_pki.display()),
        format!("--hostname-override={}", config.node),
        format!("--node-ip={}", config.address),
    ];
    let directories = vec![
        (paths.kubelet.clone(), 0o750),
        (paths.csi_plugins(), 0o700),
        (paths.csi_registrations(), 0o700),
        (paths.kubelet_pki.clone(), 0o700),
        (paths.pod_logs.clone(), 0o750),
        (paths.flex_volumes(), 0o755),
    ];
    Program {
        name: "kubelet",
        arguments,
        directories,
        files: vec![(file, configuration(config, credentials))],
        // The kubelet searches for this file in HOME. A reboot deletes it.
        secrets: vec![(
            paths.ephemeral.join(".docker/config.json"),
            registries::credentials(&config.settings.images).into(),
        )],
        ..Program::default()
    }
}

pub(crate) fn configuration(config: &Config, credentials: &Credentials) -> String {
    let paths = &config.paths;
    // Pods share the rest, which is the limit of their cgroup (`enforceNodeAllocatable`). The kernel kills a pod that
    // takes all available memory before it kills a program of the node.
    let mut reserved = json!({"pid": PROGRAM_PROCESSES.to_string()});
    if let Some(machine) = paths.memory {
        reserved["memory"] = memory::reserved(machine).get().to_string().into();
    }
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": config.address,
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": credentials.certificate("ca")},
        },
        "authorization": {"mode": "Webhook"},
        // Without these, the kubelet creates two RSA keys at its first start.
        "tlsCertFile": credentials.certificate("kubelet-server"),
        "tlsPrivateKeyFile": credentials.key("kubelet-server"),
        "cgroupDriver": "cgroupfs",
        "containerRuntimeEndpoint": format!("unix://{}", paths.containerd_socket().display()),
        "clusterDomain": config.settings.cluster_domain.as_str(),
        "clusterDNS": [config.dns_service()],
        "resolvConf": paths.resolv_conf,
        "enforceNodeAllocatable": ["pods"],
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": format!("{PRESSURE_PERCENT}%"),
            "imagefs.available": format!("{PRESSURE_PERCENT}%"),
            "pid.available": format!("{PROCESS_PRESSURE_PERCENT}%"),
        },
        "failSwapOn": true,
        // The kubelet reads the usage of the whole disk, which does not show the usage of images. It deletes unused
        // images only by age; node/core/src/image_gc.rs deletes them at a threshold.
        "imageGCHighThresholdPercent": 100,
        "imageMaximumGCAge": "168h",
        "kubeReserved": reserved,
        "makeIPTablesUtilChains": false,
        "podLogsDir": paths.pod_logs,
        "podPidsLimit": config.settings.pod_processes.get(),
        "protectKernelDefaults": true,
        "rotateCertificates": true,
        "seccompDefault": true,
        // By default, the kubelet pulls one image after the other. A registry that sends a byte a minute would delay
        // the images of all other pods without end: containerd ends only pulls that have no progress.
        "serializeImagePulls": false,
        "systemReserved": {
            "ephemeral-storage": not_for_pods(config.disk).get().to_string(),
            "pid": SYSTEM_PROCESSES.to_string(),
        },
        "volumePluginDir": paths.flex_volumes(),
    })
    .to_string()
}

/// Reserved `ephemeral-storage`. Without it, the kubelet would offer the whole disk to pods. The kubelet itself
/// subtracts the part that it keeps free for evictions.
fn not_for_pods(disk: Disk) -> Bytes {
    let kept = Bytes::new(disk.size.get() / 100 * PRESSURE_PERCENT);
    disk.size.saturating_sub(disk.pods).saturating_sub(kept)
}

#[cfg(test)]
mod tests {
    use cluster::PodProcesses;
    use serde_json::Value;

    use super::*;
    use crate::config::with_credentials;

    fn read(config: &Config, credentials: &Credentials) -> Value {
        serde_json::from_str(&configuration(config, credentials)).unwrap()
    }

    #[test]
    fn it_serves_on_the_nodes_address_with_its_certificate() {
        let (config, credentials, _scratch) = with_credentials(Config::default());
        let read = read(&config, &credentials);
        assert_eq!(read["address"], "10.0.2.15");
        assert_eq!(read["clusterDNS"], json!(["10.96.0.10"]));
        assert_eq!(read["clusterDomain"], "cluster.local");
        for file in ["tlsCertFile", "tlsPrivateKeyFile"] {
            assert!(std::path::Path::new(read[file].as_str().unwrap()).exists(), "{file}");
        }
    }

    /// `benchmark.rs` checks the modes of authentication and authorization.
    #[test]
    fn only_clients_with_a_certificate_of_the_ca_are_accepted() {
        let (config, own, _scratch) = with_credentials(Config::default());
        let (_, others, _other_scratch) = with_credentials(Config::default());
        let read = read(&config, &own);
        let ca = std::path::Path::new(read["authentication"]["x509"]["clientCAFile"].as_str().unwrap()).to_owned();
        let certificate = |path: &std::path::Path| pem::parse(std::fs::read(path).unwrap()).unwrap().into_contents();
        let trusted = certificate(&ca);
        let (_, trusted) = x509_parser::parse_x509_certificate(&trusted).unwrap();
        let accepts = |client: &Credentials| {
            let client = certificate(&client.certificate("apikubelet"));
            let (_, client) = x509_parser::parse_x509_certificate(&client).unwrap();
            client.verify_signature(Some(trusted.public_key())).is_ok()
        };
        assert!(accepts(&own), "the API server");
        assert!(!accepts(&others), "the API server of another cluster");
    }

    #[test]
    fn pods_are_offered_the_part_of_the_disk_that_is_kubelets() {
        let mut config = Config::default();
        config.disk = Disk { size: Bytes::new(100 << 20), pods: Bytes::new(10 << 20), ..config.disk };
        let (config, credentials, _scratch) = with_credentials(config);
        let read = read(&config, &credentials);
        let reserved: u64 = read["systemReserved"]["ephemeral-storage"].as_str().unwrap().parse().unwrap();
        // The kubelet itself subtracts the part that it keeps free.
        assert_eq!((100 << 20) - reserved - (1 << 20), 10 << 20);
        assert_eq!(read["evictionHard"]["nodefs.available"], "1%");
    }

    #[test]
    fn pods_cannot_have_the_memory_of_the_nodes_programs() {
        let mut config = Config::default();
        config.paths.memory = Some(Bytes::new(4 << 30));
        let (config, credentials, _scratch) = with_credentials(config);
        let read = read(&config, &credentials);
        assert_eq!(read["enforceNodeAllocatable"], json!(["pods"]));
        let reserved: u64 = read["kubeReserved"]["memory"].as_str().unwrap().parse().unwrap();
        assert_eq!(reserved >> 20, 921);
    }

    /// A fork bomb ends at the limit of its pod, and all pods together leave the node enough processes.
    #[test]
    fn pods_cannot_have_the_processes_of_the_node() {
        let mut config = Config::default();
        config.settings.pod_processes = PodProcesses::new(300);
        let (config, credentials, _scratch) = with_credentials(config);
        let read = read(&config, &credentials);
        assert_eq!(read["podPidsLimit"], 300);
        assert_eq!([&read["kubeReserved"]["pid"], &read["systemReserved"]["pid"]], ["1536", "512"]);
        assert_eq!(read["kubeReserved"].get("memory"), None, "without a known size of the memory");
        assert_eq!(read["evictionHard"]["pid.available"], "10%");
    }

    /// Regression: the images of all pods waited for a pull that a slow registry never ends.
    #[test]
    fn an_image_does_not_wait_for_those_of_other_pods() {
        let (config, credentials, _scratch) = with_credentials(Config::default());
        let read = read(&config, &credentials);
        assert_eq!(read["serializeImagePulls"], false);
        assert_eq!(read.get("maxParallelImagePulls"), None, "a limit that the pods of one tenant could reach");
    }

    #[test]
    fn directories_of_csi_sockets_are_closed_to_others() {
        let (config, credentials, _scratch) = with_credentials(Config::default());
        let directories = program(&config, &credentials).directories;
        for path in ["/data/kubelet/plugins", "/data/kubelet/plugins_registry"] {
            assert!(directories.contains(&(path.into(), 0o700)), "{path}");
        }
    }

    fn node(status: &str, heartbeat: &str) -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": "granary"},
            "status": {"conditions": [
                {"type": "MemoryPressure", "status": "False", "lastHeartbeatTime": heartbeat},
                {"type": "Ready", "status": status, "lastHeartbeatTime": heartbeat},
            ]},
        }))
        .unwrap()
    }

    #[test]
    fn only_the_condition_ready_counts() {
        let start = "2026-11-21T21:00:00Z";
        let since: Timestamp = start.parse().unwrap();
        assert!(is_ready(&node("True", start), since));
        assert!(!is_ready(&node("Unknown", start), since));
        assert!(!is_ready(&Node::default(), since));
    }

    #[test]
    fn a_node_that_was_ready_before_is_not_ready() {
        let since: Timestamp = "2026-11-21T21:00:00Z".parse().unwrap();
        assert!(!is_ready(&node("True", "2026-11-21T20:59:59Z"), since));
    }
}
