//! Facts that are repeated in files of other languages.

use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

const DRIVER: &str = include_str!("../driver.yaml");

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Driver {
    #[serde(rename = "DriverInfo")]
    info: Info,
    snapshot_class: Option<BTreeMap<String, bool>>,
    group_snapshot_class: Option<BTreeMap<String, bool>>,
    volume_attributes_class: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Info {
    name: String,
    topology_keys: Vec<String>,
    volume_snapshot_stress_test_options: Option<BTreeMap<String, u32>>,
    volume_group_snapshot_stress_test_options: Option<BTreeMap<String, u32>>,
    capabilities: BTreeMap<String, bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Attributes {
    driver_name: String,
}

#[test]
fn the_description_has_the_name_and_topology_of_the_driver() {
    let driver: Driver = serde_saphyr::from_str(DRIVER).unwrap();
    assert_eq!(driver.info.name, cluster::DRIVER_NAME);
    assert_eq!(driver.info.topology_keys, [cluster::TOPOLOGY_KEY]);
}

/// If the class is missing, the suite skips the tests of a capability.
#[test]
fn a_claimed_capability_has_its_class() {
    let driver: Driver = serde_saphyr::from_str(DRIVER).unwrap();
    let claims = |name: &str| driver.info.capabilities[name];
    assert_eq!(claims("snapshotDataSource"), driver.snapshot_class.is_some());
    assert_eq!(claims("snapshotDataSource"), driver.info.volume_snapshot_stress_test_options.is_some());
    assert_eq!(claims("groupSnapshot"), driver.group_snapshot_class.is_some());
    assert_eq!(claims("groupSnapshot"), driver.info.volume_group_snapshot_stress_test_options.is_some());
    let attributes: Attributes = serde_saphyr::from_str(include_str!("../attributes.yaml")).unwrap();
    assert_eq!(driver.volume_attributes_class["FromFile"], "test/conformance/attributes.yaml");
    assert_eq!(attributes.driver_name, cluster::DRIVER_NAME);
    assert_eq!(claims("nodeExpansion"), claims("controllerExpansion"), "the node expands what the claim has got");
}

#[test]
fn a_capability_that_is_not_claimed_has_its_reason() {
    let (_, capabilities) = DRIVER.split_once("Capabilities:").unwrap();
    let mut has_reason = false;
    for line in capabilities.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let is_claimed = line.ends_with(": true");
        assert!(is_claimed || has_reason || line.starts_with('#'), "{line}");
        // One reason may apply to several lines.
        has_reason = !is_claimed;
    }
}

/// Through a link to another directory, a test would find no volume of any pod.
#[test]
fn the_link_of_agnhost_leads_to_the_root_directory_of_the_kubelet() {
    let kubelet = programs::Paths::default().kubelet;
    let link = format!(r#""var/lib/kubelet": "/rootfs{}","#, kubelet.display());
    assert!(include_str!("../BUILD.bazel").contains(&link), "links in BUILD.bazel: {link}");
}

/// Versions of Kubernetes' modules. Both go.mod files contain them in `replace` lines and in one requirement.
fn kubernetes(go_mod: &str) -> BTreeSet<&str> {
    let lines = go_mod.lines().map(|line| line.trim().trim_start_matches("require "));
    lines.filter(|line| line.starts_with("replace k8s.io/") || line.starts_with("k8s.io/kubernetes v")).collect()
}

#[test]
fn the_tests_have_the_version_of_the_node() {
    let node = kubernetes(include_str!("../../../third_party/kubernetes/go.mod"));
    let tests = kubernetes(include_str!("../../../third_party/conformance/go.mod"));
    assert!(node.iter().any(|line| line.starts_with("k8s.io/kubernetes v")), "{node:?}");
    assert_eq!(tests, node, "change third_party/conformance/go.mod like that of third_party/kubernetes");
}
