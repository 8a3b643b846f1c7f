//! Faults of the disk and of volumes.

use std::sync::Arc;

use envtest::{Cluster, Failure, faults_of_each_kind};
use fsquota::{Limits, Usage};
use prometheus::TextEncoder;
use serde_json::json;
use units::{Bytes, Inodes};

use crate::node::Node;

pub async fn faults_of_disk_and_volumes_are_reported(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut node = Node::start_apart(&cluster, "health").await?;
    let id = node.volume("precious", json!({})).await?;
    // The provisioner checks for faults at its start.
    node.halt().await?;
    node.volumes.set_used(&id, Usage { bytes: Bytes::new(950 << 20), inodes: Inodes::new(3) });
    node.volumes.set_changed(&id, Limits::default());
    let faults = faults_of_each_kind();
    node.volumes.set_faults(faults.clone());
    node.run().await?;
    let full = node.event("precious", "VolumeAlmostFull").await?;
    assert!(full.contains("92 % full") && full.contains("950 MiB of its 1 GiB"), "{full}");
    let changed = node.event(&node.name, "VolumeLimitsChanged").await?;
    assert!(changed.contains(id.as_str()) && changed.contains("limit of space none"), "{changed}");
    for fault in &faults {
        node.event_with(&node.name, "DataDiskFault", &[&fault.to_string()]).await?;
    }
    let metrics = TextEncoder::new().encode_to_string(&node.registry.gather())?;
    let series =
        faults.iter().map(|fault| format!(r#"granary_disk_faults{{fault="{}"}} {}"#, fault.kind(), fault.count()));
    for line in series.chain(["granary_volumes_limits_changed 1".to_owned()]) {
        assert!(metrics.lines().any(|found| found == line), "{line} in:\n{metrics}");
    }
    node.end().await
}
