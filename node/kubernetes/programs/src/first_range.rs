//! Address range of the control plane's pods: the first part of the pod network.
//!
//! kube-controller-manager assigns a part of the network to each Node, but is ready long after the kubelet. At its
//! start, kube-controller-manager accepts the parts that Nodes already have, and does not assign them again.

use cluster::NODE_PREFIX;
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::Config;

/// Assigns the first part of the pod network to the configured Node, and creates the Node if it is missing; the kubelet
/// completes the Node later. Returns the part if this call assigned it. Changes nothing if the Node already has a part
/// or another Node has this one. kube-controller-manager then assigns a part.
///
/// The caller must call this before kube-controller-manager starts, which could otherwise assign the same part to
/// another Node at the same time.
pub async fn assign(client: &Client, config: &Config) -> Result<Option<Ipv4Net>, kube::Error> {
    let Some(first) = Ipv4Net::new(config.cluster_pods.network(), NODE_PREFIX).ok() else { return Ok(None) };
    let nodes = Api::<Node>::all(client.clone());
    let own = nodes.get_opt(&config.node).await?;
    if own.as_ref().is_some_and(|node| parts(node).next().is_some()) {
        return Ok(None);
    }
    let others = nodes.list(&ListParams::default()).await?;
    if others
        .iter()
        .flat_map(parts)
        .any(|part| part.parse::<Ipv4Net>().is_ok_and(|part| part.contains(&first) || first.contains(&part)))
    {
        return Ok(None);
    }
    let node = with_part(&config.node, first);
    match own {
        Some(own) => {
            // The UID makes the patch fail if the Node has been deleted and created again meanwhile.
            let mut node = node;
            node["metadata"]["uid"] = own.uid().into();
            nodes.patch(&config.node, &PatchParams::default(), &Patch::Merge(node)).await?;
        }
        None => {
            let node = serde_json::from_value(node).map_err(kube::Error::SerdeError)?;
            nodes.create(&PostParams::default(), &node).await?;
        }
    }
    Ok(Some(first))
}

fn with_part(name: &str, part: Ipv4Net) -> Value {
    json!({"metadata": {"name": name}, "spec": {"podCIDR": part.to_string(), "podCIDRs": [part.to_string()]}})
}

fn parts(node: &Node) -> impl Iterator<Item = &str> {
    let spec = node.spec.iter();
    spec.flat_map(|spec| spec.pod_cidr.iter().chain(spec.pod_cidrs.iter().flatten())).map(String::as_str)
}
