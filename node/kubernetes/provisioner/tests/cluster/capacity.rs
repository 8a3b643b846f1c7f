//! The capacity that a node publishes for the scheduler, and its metrics. The tests act as the kubelet and the
//! scheduler.

use std::sync::Arc;

use envtest::{Cluster, Failure, PATIENCE, Seen, create, eventually, gone, merge, remove};
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt as _};
use prometheus::TextEncoder;
use serde_json::{Value, json};
use tokio::time::Instant;
use units::{Bytes, Inodes};
use volume::{Mode, Overcommit, Space};

use crate::node::{Node, until};

pub const DISK: Bytes = Bytes::new(100 << 30);

pub fn objects(node: &Node) -> Api<CSIStorageCapacity> {
    Api::namespaced(node.admin.clone(), "kube-system")
}

/// Creates a copy of the object for this host. No provisioner maintains it.
pub async fn copy(
    node: &Node,
    object: &CSIStorageCapacity,
    name: &str,
    host: &str,
) -> Result<CSIStorageCapacity, Failure> {
    let mut copy = serde_json::to_value(object)?;
    copy["metadata"] = json!({"name": name, "labels": object.labels()});
    copy["nodeTopology"] = json!({"matchLabels": {"kubernetes.io/hostname": host}});
    Ok(create(&objects(node), copy).await?)
}

/// Creates the Node as the kubelet does, unless it exists.
pub async fn register(node: &Node) -> Result<String, Failure> {
    let nodes = Api::<k8s_openapi::api::core::v1::Node>::all(node.admin.clone());
    if let Some(found) = nodes.get_opt(&node.name).await? {
        return Ok(found.uid().unwrap_or_default());
    }
    let object = json!({"metadata": {"name": node.name, "labels": {"kubernetes.io/hostname": node.name}}});
    Ok(create(&nodes, object).await?.uid().unwrap_or_default())
}

async fn published(node: &Node, class: &str) -> Result<Vec<CSIStorageCapacity>, kube::Error> {
    let mut all = objects(node).list(&ListParams::default()).await?.items;
    all.retain(|object| object.storage_class_name == class);
    Ok(all)
}

/// Waits until the only object of the class has this `capacity`, and the largest volume of either mode in it.
pub async fn publishes(node: &Node, class: &str, capacity: &str) -> Result<CSIStorageCapacity, Failure> {
    publishes_for(node, class, capacity, 2048).await
}

async fn publishes_for(
    node: &Node,
    class: &str,
    capacity: &str,
    bytes_per_inode: u64,
) -> Result<CSIStorageCapacity, Failure> {
    let largest = largest(bytes(capacity), bytes_per_inode);
    let what = format!("capacity {capacity} and maximum {largest} of class {class}");
    let found = eventually(PATIENCE, &what, async || {
        let found = published(node, class).await?;
        let texts = |object: &CSIStorageCapacity| {
            [&object.capacity, &object.maximum_volume_size].map(|size| size.clone().unwrap_or_default().0)
        };
        let is_right = |texts: [String; 2]| texts[0] == capacity && bytes(&texts[1]) == largest;
        Ok::<_, kube::Error>(match &*found {
            [one] if is_right(texts(one)) => Seen::Done(one.clone()),
            others => Seen::NotYet(format!("{:?}", others.iter().map(texts).collect::<Vec<_>>())),
        })
    });
    Ok(found.await?)
}

fn largest(free: Bytes, bytes_per_inode: u64) -> Bytes {
    let space = Space { size: free, reserved: Bytes::ZERO, reserve: Bytes::ZERO, overcommit: Overcommit::NONE };
    let inodes = |size: Bytes| Inodes::new((size.get() / bytes_per_inode).max(64));
    space.largest_block().max(space.largest(|size| Mode::Filesystem { inodes: inodes(size) }))
}

/// Size of a quantity in Ki, Mi, Gi or bytes; zero if the quantity has another unit.
fn bytes(quantity: &str) -> Bytes {
    let unit =
        |(suffix, shift): &(&str, u32)| quantity.strip_suffix(suffix)?.parse::<u64>().ok().map(|size| size << shift);
    let units = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("", 0)];
    Bytes::new(units.iter().find_map(unit).unwrap_or_default())
}

async fn unpublished(node: &Node, class: &str) -> Result<(), Failure> {
    until(&format!("no object of class {class}"), async || {
        let found = published(node, class).await?;
        Ok((!found.is_empty()).then(|| format!("{found:?}")))
    })
    .await
}

async fn make_class(node: &Node, name: &str, provisioner: &str, parameters: Value) -> Result<(), Failure> {
    let class = json!({"metadata": {"name": name}, "provisioner": provisioner, "parameters": parameters});
    create(&Api::<StorageClass>::all(node.admin.clone()), class).await?;
    Ok(())
}

async fn delete_class(node: &Node, name: &str) -> Result<(), Failure> {
    remove(&Api::<StorageClass>::all(node.admin.clone()), name).await
}

pub(crate) fn metric(node: &Node, name: &str) -> Result<Option<f64>, Failure> {
    let text = TextEncoder::new().encode_to_string(&node.registry.gather())?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    Ok(line.map(str::parse).transpose()?)
}

pub(crate) async fn capacity_is_published_when_the_node_exists(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start(&cluster, "capacity-published").await?;
    // The kubelet registers after the start of the provisioner.
    assert_eq!(published(&node, &node.class).await?, []);
    let uid = register(&node).await?;
    let object = publishes(&node, &node.class, "100Gi").await?;
    // The largest volume is a block volume. Of the disk's 26214400 blocks of 4 KiB, 640 are for writes and a part of
    // one for two inodes. Of the other 26213759, one of each 125 is for the map: 26004048 blocks, and 209711 for their
    // map.
    assert_eq!(object.maximum_volume_size, Some(Quantity("104016192Ki".into())));
    let whole = serde_json::to_value(&object)?;
    assert_eq!(whole["nodeTopology"], json!({"matchLabels": {"kubernetes.io/hostname": node.name}}));
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": uid}]);
    assert_eq!(whole["metadata"]["ownerReferences"], owner);
    assert_eq!(object.labels()["csi.storage.k8s.io/drivername"], "local.granary.dev");
    assert!(object.name_any().ends_with(&format!(".{}.local.granary.dev", node.name)), "{}", object.name_any());
    node.end().await
}

pub(crate) async fn capacity_follows_the_classes(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start(&cluster, "classes").await?;
    register(&node).await?;
    make_class(&node, "foreign", "example.invalid", json!({})).await?;
    // Class `few-files` has one inode per MiB. Class `odd` is rejected, and its claims get an event with the reason.
    make_class(&node, "few-files", "local.granary.dev", json!({"bytesPerInode": "1048576"})).await?;
    make_class(&node, "odd", "local.granary.dev", json!({"colour": "red"})).await?;
    let few = publishes_for(&node, "few-files", "100Gi", 1 << 20).await?;
    // The largest volume is a filesystem, with 512 bytes for each MiB. 102350 MiB and their inodes leave 25 KiB, and 24
    // KiB of that are whole blocks.
    assert_eq!(few.maximum_volume_size, Some(Quantity("104806424Ki".into())));
    publishes(&node, "odd", "100Gi").await?;
    assert_eq!(published(&node, "foreign").await?, []);
    let pv = node.provisioned("few", json!({"storageClassName": "few-files"})).await?;
    let record = node.volumes.record(&pv.name_any().parse()?).ok_or("no record")?;
    assert_eq!(record.mode, Mode::Filesystem { inodes: Inodes::new((1 << 30) >> 20) });
    node.delete("few", &pv).await?;
    for name in ["few-files", "odd", "foreign"] {
        delete_class(&node, name).await?;
        unpublished(&node, name).await?;
    }
    publishes(&node, &node.class, "100Gi").await?;
    node.end().await
}

pub(crate) async fn a_volume_reduces_the_capacity_until_it_is_deleted(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start(&cluster, "volumes").await?;
    register(&node).await?;
    node.make_class(json!({"allowVolumeExpansion": true})).await?;
    publishes(&node, &node.class, "100Gi").await?;
    let pv = node.provisioned("data", json!({"resources": {"requests": {"storage": "8Gi"}}})).await?;
    // The volume has 8 GiB, and 2 GiB for its files.
    publishes(&node, &node.class, "90Gi").await?;
    node.enlarge("data", "16Gi").await?;
    publishes(&node, &node.class, "80Gi").await?;
    node.delete("data", &pv).await?;
    publishes(&node, &node.class, "100Gi").await?;
    node.end().await
}

pub(crate) async fn a_burst_of_claims_is_published_once_a_second(cluster: Arc<Cluster>) -> Result<(), Failure> {
    const CLAIMS: usize = 24;
    const WRITTEN: &str = r#"granary_capacity_publications_total{result="written"}"#;

    let node = Node::start(&cluster, "published-burst").await?;
    register(&node).await?;
    publishes(&node, &node.class, "100Gi").await?;
    let (before, begun) = (metric(&node, WRITTEN)?.unwrap_or_default(), Instant::now());
    let one = json!({"resources": {"requests": {"storage": "800Mi"}}});
    for number in 0..CLAIMS {
        node.claim_here(&format!("data-{number}"), one.clone()).await?;
    }
    for number in 0..CLAIMS {
        node.bound(&format!("data-{number}")).await?;
    }
    // Each volume needs 1000 MiB with its files.
    publishes(&node, &node.class, "78400Mi").await?;
    // The node publishes two classes: this one, and the default class, for the first time perhaps after `before`.
    let (written, seconds) = (metric(&node, WRITTEN)?.unwrap_or_default() - before, begun.elapsed().as_secs_f64());
    assert!(written <= 2.0 * (seconds + 2.0) + 1.0, "{written} in {seconds} s");
    node.end().await
}

pub(crate) async fn stale_objects_are_deleted_and_unmanaged_ones_kept(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut node = Node::start(&cluster, "stale").await?;
    register(&node).await?;
    make_class(&node, "gone-class", "local.granary.dev", json!({})).await?;
    let stale = publishes(&node, "gone-class", "100Gi").await?;
    node.halt().await?;
    delete_class(&node, "gone-class").await?;
    // Objects of the same class: one of another node, and one that an administrator created.
    let mut kept = Vec::new();
    for (name, topology) in
        [(stale.name_any().replacen(&node.name, "other", 1), "other"), ("by-hand".to_owned(), node.name.as_str())]
    {
        kept.push(copy(&node, &stale, &name, topology).await?);
    }
    node.run().await?;
    gone(&objects(&node), &stale.name_any()).await?;
    for object in kept {
        let found = objects(&node).get(&object.name_any()).await?;
        assert_eq!(found.resource_version(), object.resource_version(), "{} was written", object.name_any());
        objects(&node).delete(&object.name_any(), &DeleteParams::default()).await?;
    }
    node.end().await
}

pub(crate) async fn changed_objects_are_repaired(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start(&cluster, "repaired").await?;
    register(&node).await?;
    let object = publishes(&node, &node.class, "100Gi").await?;
    merge(&objects(&node), &object.name_any(), json!({"capacity": "1Ei", "maximumVolumeSize": null})).await?;
    publishes(&node, &node.class, "100Gi").await?;
    objects(&node).delete(&object.name_any(), &DeleteParams::default()).await?;
    let again = publishes(&node, &node.class, "100Gi").await?;
    assert_eq!(again.name_any(), object.name_any());
    node.end().await
}

pub(crate) async fn objects_are_deleted_and_created_again_with_their_node(
    cluster: Arc<Cluster>,
) -> Result<(), Failure> {
    let node = Node::start(&cluster, "owner").await?;
    let former = register(&node).await?;
    publishes(&node, &node.class, "100Gi").await?;
    let nodes = Api::<k8s_openapi::api::core::v1::Node>::all(node.admin.clone());
    nodes.delete(&node.name, &DeleteParams::default()).await?;
    unpublished(&node, &node.class).await?;
    let uid = register(&node).await?;
    assert_ne!(uid, former);
    let object = publishes(&node, &node.class, "100Gi").await?;
    assert_eq!(object.owner_references().iter().map(|owner| &owner.uid).collect::<Vec<_>>(), [&uid]);
    node.end().await
}

pub(crate) async fn claims_and_capacity_are_served_after_the_api_server_was_down(
    cluster: Arc<Cluster>,
) -> Result<(), Failure> {
    let node = Node::start(&cluster, "published-later").await?;
    register(&node).await?;
    publishes(&node, &node.class, "100Gi").await?;
    let before = node.provisioned("before", json!({})).await?;
    cluster.stop_api_server().await;
    cluster.start_api_server().await?;
    node.delete("before", &before).await?;
    node.provisioned("data", json!({"resources": {"requests": {"storage": "8Gi"}}})).await?;
    publishes(&node, &node.class, "90Gi").await?;
    assert_eq!(node.attempts(), 1, "the provisioner is not started again");
    node.end().await
}

pub(crate) async fn metrics_count_operations(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start(&cluster, "metrics").await?;
    let claim = node.claim_here("data", json!({"resources": {"requests": {"storage": "8Gi"}}})).await?;
    let pv = node.bound("data").await?;
    node.claim_here("large", json!({"resources": {"requests": {"storage": "1Ti"}}})).await?;
    node.event("large", "ProvisioningFailed").await?;
    let of = format!(
        r#"{{claim="data",mode="filesystem",namespace="{}",volume="{}"}}"#,
        claim.namespace().unwrap_or_default(),
        pv.name_any()
    );
    for (name, value) in [
        (r#"granary_volume_operations_total{operation="provision",result="changed"}"#.to_owned(), 1.0),
        (r#"granary_volume_operations_total{operation="provision",result="full"}"#.to_owned(), 1.0),
        (r#"granary_provisioner_failures_total{object="claim",reason="Full"}"#.to_owned(), 1.0),
        (format!("granary_volume_limit_bytes{of}"), (8u64 << 30) as f64),
        (format!("granary_volume_limit_inodes{of}"), (8u64 << 30) as f64 / 2048.0),
        ("granary_disk_size_bytes".to_owned(), DISK.get() as f64),
        ("granary_disk_promised_bytes".to_owned(), (10u64 << 30) as f64),
        (r#"granary_orphans{kind="volume"}"#.to_owned(), 0.0),
    ] {
        eventually(PATIENCE, &format!("{name} {value}"), async || {
            let found = metric(&node, &name).map_err(std::io::Error::other)?;
            Ok::<_, std::io::Error>(if found == Some(value) {
                Seen::Done(())
            } else {
                Seen::NotYet(format!("{found:?}"))
            })
        })
        .await?;
    }
    node.delete("data", &pv).await?;
    assert_eq!(metric(&node, &format!("granary_volume_limit_bytes{of}"))?, None);
    let discarded = r#"granary_volume_operations_total{operation="discard",result="changed"}"#;
    assert_eq!(metric(&node, discarded)?, Some(1.0));
    node.end().await
}
