//! csi-sanity, the conformity tests of the CSI project, against the plugin's socket; and further requirements of the
//! Controller service. README.md describes both.

mod controller;
mod skipped;
mod snapshots;

use std::fs;
use std::process::Command;

use conformity::{Kind, Node, Services};
use serde::Deserialize;

use crate::snapshots::records;

/// Size of volumes in bytes. The time of a copy depends on it, and no spec does.
const SIZE: u64 = 1 << 20;
const EXPANDED: u64 = 2 << 20;

/// A suite of ginkgo's JSON report.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Suite {
    spec_reports: Vec<Spec>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Spec {
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    leaf_node_text: String,
    state: String,
}

impl Spec {
    fn name(&self) -> String {
        let containers = self.container_hierarchy_texts.iter().flatten().map(String::as_str);
        containers.chain([self.leaf_node_text.as_str()]).collect::<Vec<_>>().join(" ")
    }

    fn is_skipped(&self) -> bool {
        matches!(self.state.as_str(), "skipped" | "pending")
    }
}

#[test]
fn csi_sanity_passes_with_filesystem_volumes() {
    sanity(Kind::Filesystem);
}

#[test]
fn csi_sanity_passes_with_block_volumes() {
    sanity(Kind::Block);
}

fn sanity(kind: Kind) {
    let node = Node::start(Services::BesideProvisioner);
    let before = records(&node);
    let access = match kind {
        Kind::Filesystem => "mount",
        Kind::Block => "block",
    };
    let report = format!("/tmp/sanity-{access}.json");
    let output = Command::new("/usr/bin/csi-sanity")
        .arg(format!("--csi.endpoint=unix://{}", node.socket().display()))
        .arg(format!("--csi.mountdir={}", node.kubelet().join("pods/sanity").display()))
        .arg("--csi.stagingdir=/tmp/staging")
        .arg(format!("--csi.testvolumeaccesstype={access}"))
        .arg(format!("--csi.testvolumesize={SIZE}"))
        .arg(format!("--csi.testvolumeexpandsize={EXPANDED}"))
        .args(mutable_parameters(kind))
        .args(["--ginkgo.no-color", "--ginkgo.json-report", &report])
        .output()
        .expect("csi-sanity is in the guest");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}", output.status);
    let suites: Vec<Suite> = serde_json::from_slice(&fs::read(report).expect("a report")).expect("ginkgo's format");
    let specs = suites.iter().flat_map(|suite| &suite.spec_reports).filter(|spec| spec.leaf_node_type == "It");
    let (skipped, ran): (Vec<_>, Vec<_>) = specs.partition(|spec| spec.is_skipped());
    let failed = ran.iter().filter(|spec| spec.state != "passed").map(|spec| spec.name());
    assert_eq!(failed.collect::<Vec<_>>(), Vec::<String>::new(), "{text}");
    assert!(!ran.is_empty(), "{text}");
    skipped::compare(&skipped, &ran);
    assert_eq!(records(&node), before, "csi-sanity deletes its volumes");
    node.end();
}

/// The argument with I/O limits, which only block volumes have.
fn mutable_parameters(kind: Kind) -> Option<String> {
    if kind == Kind::Filesystem {
        return None;
    }
    let file = "/tmp/mutable.yaml";
    fs::write(file, "readIOPS: \"100\"\nwriteBytesPerSecond: 1Mi\n").expect("a file");
    Some(format!("--csi.testvolumemutableparameters={file}"))
}
