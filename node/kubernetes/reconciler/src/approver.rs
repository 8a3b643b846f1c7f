//! Approves or denies the certificate signing requests of machines and nodes.

use std::net::IpAddr;
use std::sync::Arc;

use cluster::BOOTSTRAP_NODE_ANNOTATION;
use ipnet::Ipv4Net;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::runtime::watcher;
use kube::{Client, ResourceExt as _};
use serde_json::json;
use supervisor::Context;
use tracing::info;

use crate::control::{WatchEnded, control, copied, watch};
use crate::csr;
use crate::kubelet_certificate::{Facts, KubeletRequest, Requester};
use crate::removed::{REMOVED_NODES, REMOVED_NODES_NAMESPACE, Removed, removed};
use crate::storage_certificate;

#[derive(Debug, thiserror::Error)]
#[error("cannot decide on the certificate signing request")]
struct ApproveError(#[from] Box<kube::Error>);

struct Approver {
    client: Client,
    requests: Api<CertificateSigningRequest>,
    reserved: Vec<Ipv4Net>,
}

struct Decision {
    type_: &'static str,
    reason: &'static str,
    message: String,
}

/// Decides on requests for kubelet certificates, storage and DNS identities until cancelled, and ignores all others.
/// Denies serving certificates with addresses of the `reserved` networks ([`programs::Config::not_for_workers`]).
/// Healthy when it has listed the requests. Waits for an unreachable API server.
pub async fn approve(cx: Context, client: Client, reserved: Vec<Ipv4Net>) -> Result<(), WatchEnded> {
    let requests = Api::<CertificateSigningRequest>::all(client.clone());
    let (copies, changed) = copied(watch(cx.clone(), requests.clone(), watcher::Config::default()));
    let approver = Approver { client, requests, reserved };
    control(cx, "certificate signing requests", copies, changed, decide, Arc::new(approver)).await
}

async fn decide(request: Arc<CertificateSigningRequest>, approver: Arc<Approver>) -> Result<Action, ApproveError> {
    let name = request.name_any();
    let Some(Decision { type_, reason, message }) = approver.decision(&request).await.map_err(Box::new)? else {
        return Ok(Action::await_change());
    };
    let condition = CertificateSigningRequestCondition {
        type_: type_.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.clone()),
        last_update_time: Some(Time(Timestamp::now())),
        last_transition_time: None,
    };
    // Set the resource version, so that the patch fails if another approver has decided.
    let patch = json!({
        "metadata": {"resourceVersion": request.resource_version()},
        "status": {"conditions": [condition]},
    });
    match approver.requests.patch_approval(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(_) => info!(
            request = name,
            decision = type_,
            reason,
            explanation = message,
            "certificate signing request decided"
        ),
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {}
        Err(error) => return Err(ApproveError(Box::new(error))),
    }
    Ok(Action::await_change())
}

impl Approver {
    async fn decision(&self, request: &CertificateSigningRequest) -> Result<Option<Decision>, kube::Error> {
        // The watch returns each request again when it is decided, and when it is signed.
        if csr::is_decided(request) {
            return Ok(None);
        }
        let removed = self.removed().await?;
        let decision = if let Some(request) = KubeletRequest::of(request) {
            let facts = self.facts(&request, &removed).await?;
            Some(request.judge(&facts, &self.reserved).map(|node| format!("the kubelet of {node}")))
        } else {
            let decision = storage_certificate::judge(request, &removed);
            decision.map(|node| node.map(|node| format!("a client of {node}, requested by that node")))
        };
        Ok(decision.map(|decision| match decision {
            Ok(message) => Decision { type_: "Approved", reason: "OwnNode", message },
            Err(denial) => Decision { type_: "Denied", reason: denial.reason(), message: denial.to_string() },
        }))
    }

    async fn removed(&self) -> Result<Removed, kube::Error> {
        let maps = Api::<ConfigMap>::namespaced(self.client.clone(), REMOVED_NODES_NAMESPACE);
        Ok(removed(maps.get_opt(REMOVED_NODES).await?))
    }

    async fn facts(&self, request: &KubeletRequest<'_>, removed: &Removed) -> Result<Facts, kube::Error> {
        let token_is_for = match request.requester() {
            Requester::Token(id) => {
                let secrets = Api::<Secret>::namespaced(self.client.clone(), programs::BOOTSTRAP_NAMESPACE);
                let secret = secrets.get_opt(&programs::bootstrap_secret_name(id)).await?;
                secret.and_then(|secret| secret.annotations().get(BOOTSTRAP_NODE_ANNOTATION).cloned())
            }
            Requester::Kubelet(_) | Requester::Other(_) => None,
        };
        let nodes = Api::<Node>::all(self.client.clone()).list(&ListParams::default()).await?.items;
        let (own, others): (Vec<_>, Vec<_>) =
            nodes.iter().partition(|node| node.metadata.name.as_deref() == request.node());
        let addresses = |node: &Node| node.status.as_ref()?.addresses.clone();
        let of_others = others
            .into_iter()
            .flat_map(|node| addresses(node).into_iter().flatten().map(|address| (address.address, node.name_any())))
            .filter_map(|(address, owner)| Some((address.parse::<IpAddr>().ok()?.to_canonical(), owner)))
            .collect();
        let removed = request.node().is_some_and(|node| removed.contains(node));
        Ok(Facts { token_is_for, registered: !own.is_empty(), removed, of_others })
    }
}
