//! The image starts from a data disk of the previous release.

use e2e::{Failure, Setting, cost, has_the_hosts_time, previous};
use envtest::chain;
use launch::{Data, Node};
use std::error::Error;

/// The first boot has a kernel without BPF-LSM, with which no container runtime starts. At the power cut, the disk has
/// changed, the API server is ready, and the Secrets have not changed.
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
    previous::cut_without_guard(&options).await.unwrap_or_else(|error| fail(setting, &error));
    cost("boots");
    let booted = Node::boot(&options, |event| println!("{event}")).await;
    let node = booted.unwrap_or_else(|error| fail(setting, &error));
    has_the_hosts_time(&node.client()).await?;
    previous::is_upgraded(&node.client()).await
}

fn fail(setting: &Setting, error: &dyn Error) -> ! {
    panic!("{}\n\nend of the node's console:\n{}", chain(error), console(setting));
}

fn console(setting: &Setting) -> String {
    qemu::console_tail(&setting.file("console.log"), 400).unwrap_or_default().join("\n")
}
