//! The image boots from a data disk of the previous release and loses its power twice.

mod power;

use e2e::{Failure, Setting, cost, has_the_hosts_time, previous};
use envtest::chain;
use launch::{Data, Node, Options};
use power::Lost;
use qemu::Card;
use std::error::Error;
use std::fs;

/// The first boot uses a kernel without BPF-LSM, so no container runtime starts. At the first power cut, the disk has
/// changed, the API server is ready, and the Secrets are unchanged. The second boot completes the upgrade. The second
/// power cut is that of a node with pods and needs no other node. The network card of all boots is that of VMware,
/// unlike that of the previous release.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_continues_after_a_power_cut() {
    let setting = Setting::from_target().expect("the test's files");
    if let Err(failure) = upgrade(&setting).await {
        panic!("{}\n\nend of the node's console:\n{}", chain(&failure), console(&setting));
    }
}

async fn upgrade(setting: &Setting) -> Result<(), Failure> {
    let mut options = setting.options();
    options.data = Data::File(setting.previous_disk().expect("the data disk of the previous release"));
    options.hardware.card = Card::Vmxnet3;
    previous::cut_without_guard(&options).await.unwrap_or_else(|error| fail(setting, &error));
    let node = boot(setting, &options).await;
    has_the_hosts_time(&node.client()).await?;
    previous::is_upgraded(&node.client()).await?;
    println!("the disk is upgraded");

    let lost = Lost::cut(node).await?;
    lost.must_be_kept(boot(setting, &options).await).await
}

async fn boot(setting: &Setting, options: &Options) -> Node {
    cost("boots");
    let booted = Node::boot(options, |event| println!("{event}")).await;
    let node = booted.unwrap_or_else(|error| fail(setting, &error));
    let console = fs::read(node.console()).expect("the console");
    let console = String::from_utf8_lossy(&console);
    let loaded = console.lines().find(|line| line.contains("drivers loaded")).expect("a line about drivers");
    assert!(loaded.contains("vmxnet3"), "{loaded}");
    node
}

fn fail(setting: &Setting, error: &dyn Error) -> ! {
    panic!("{}\n\nend of the node's console:\n{}", chain(error), console(setting));
}

fn console(setting: &Setting) -> String {
    qemu::console_tail(&setting.file("console.log"), 400).unwrap_or_default().join("\n")
}
