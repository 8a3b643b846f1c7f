//! Facts that files of other languages repeat.

use serde::Deserialize;
use std::collections::BTreeSet;

#[derive(Deserialize)]
struct Driver {
    #[serde(rename = "DriverInfo")]
    info: Info,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Info {
    name: String,
    topology_keys: Vec<String>,
}

#[test]
fn the_description_has_the_name_and_topology_of_the_driver() {
    let driver: Driver = serde_saphyr::from_str(include_str!("../driver.yaml")).unwrap();
    assert_eq!(driver.info.name, cluster::DRIVER_NAME);
    assert_eq!(driver.info.topology_keys, [cluster::TOPOLOGY_KEY]);
}

/// Kubernetes' modules with their versions; both go.mod files have them in `replace` lines and in one requirement.
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
