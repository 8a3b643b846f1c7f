//! The addresses of the control plane's pods: the first part of the pod network.
//!
//! kube-controller-manager assigns a part of the network to each Node, but it is ready long after the kubelet. It accepts the
//! parts that Nodes have when it starts, and assigns none of them again.

use cluster::NODE_PREFIX;
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::Config;

/// Assigns the first part of the pod network to the Node of the configuration, and creates the Node if it is missing; the
/// kubelet completes it. Returns the part if this call assigned it. Changes nothing if the Node has a part, or if another
/// Node has this one: kube-controller-manager then assigns another.
///
/// Only before kube-controller-manager starts: it could assign the same part to another Node at the same time.
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
            // A Node that was deleted and created again meanwhile is another one.
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
