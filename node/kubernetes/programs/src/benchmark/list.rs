//! The items to check or to explain: the automated items of the benchmark for control plane, etcd and node, and some of
//! its manual items.

#[rustfmt::skip]
pub(super) const ITEMS: [&str; 75] = [
    "1.1.1", "1.1.2", "1.1.3", "1.1.4", "1.1.5", "1.1.6", "1.1.7", "1.1.8", "1.1.11", "1.1.12", "1.1.13", "1.1.14", "1.1.15",
    "1.1.16", "1.1.17", "1.1.18", "1.1.19",
    "1.2.2", "1.2.3", "1.2.4", "1.2.5", "1.2.6", "1.2.7", "1.2.8", "1.2.10", "1.2.12", "1.2.13", "1.2.14", "1.2.15", "1.2.16",
    "1.2.17", "1.2.18", "1.2.19", "1.2.21", "1.2.22", "1.2.23", "1.2.24", "1.2.25", "1.2.26", "1.2.27", "1.2.28", "1.2.30",
    "1.3.2", "1.3.3", "1.3.4", "1.3.5", "1.3.6", "1.3.7",
    "1.4.1", "1.4.2",
    "2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.7",
    "3.2.1", "3.2.2",
    "4.1.1", "4.1.2", "4.1.5", "4.1.6", "4.1.9", "4.1.10",
    "4.2.1", "4.2.2", "4.2.3", "4.2.6", "4.2.10", "4.2.13",
    "4.3.1",
    "5.1.5", "5.1.6", "5.1.7",
];

const PODS: &str = "not applicable: PID 1 starts the program, there is no pod specification";
const UNIT: &str = "not applicable: PID 1 starts kubelet, there is no service file";
const OWNER: &str = "PID 1, which is root, writes the file";

/// Reasons for items without a check on some or all nodes. `docs/operations/security.md` lists the items that do not
/// pass.
pub(super) const REASONS: [(&str, &str); 24] = [
    ("1.1.1", PODS),
    ("1.1.2", PODS),
    ("1.1.3", PODS),
    ("1.1.4", PODS),
    ("1.1.5", PODS),
    ("1.1.6", PODS),
    ("1.1.7", PODS),
    ("1.1.8", PODS),
    ("1.1.14", OWNER),
    ("1.1.16", "fails by intention: scheduler.kubeconfig belongs to the user of kube-scheduler"),
    ("1.1.18", "fails by intention: controller-manager.kubeconfig belongs to the user of kube-controller-manager"),
    ("1.1.19", "fails by intention: the keys and kubeconfigs of confined programs belong to their users"),
    ("1.2.18", "depends on the disk: 1 to 9 files on data disks below 19 GiB, since each has 6 MiB or more"),
    ("1.2.19", "depends on the disk: 6 to 100 MiB, 100 MiB from a data disk of 235 GiB on"),
    ("2.7", "fails: etcd and the API server share the CA; etcd accepts two certificates by their name"),
    ("4.1.1", UNIT),
    ("4.1.2", UNIT),
    ("4.1.6", OWNER),
    ("4.1.9", "fails: mode 0644, in memory, without secrets; no pod sees the directory"),
    ("4.1.10", OWNER),
    ("4.2.6", "fails: the image has no iptables, and kube-proxy uses nftables"),
    ("5.1.5", "partly: the default accounts have no role; whether pods get their tokens is the tenants' decision"),
    ("5.1.6", "partly: no pod of the image has a token; automountServiceAccountToken is the tenants' decision"),
    ("5.1.7", "fails by intention: the break-glass certificate is in system:masters"),
];
