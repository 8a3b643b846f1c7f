//! Decides on the certificates that machines and nodes ask for.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use cluster::{BOOTSTRAP_NODE_ANNOTATION, STORAGE_USER_PREFIX};
use ipnet::Ipv4Net;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::watcher;
use kube::{Client, ResourceExt as _};
use serde_json::json;
use supervisor::Context;
use tracing::info;

use crate::approval::{self, Verdict};
use crate::control::{WatchEnded, control};
use crate::csr;
use crate::kubelet::{Asker, Facts, Question};
use crate::removed::{REMOVED_NODES, REMOVED_NODES_NAMESPACE};

/// A decision could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot decide on the certificate signing request")]
struct DecideError(#[from] Box<kube::Error>);

/// What a decision needs.
struct Approver {
    client: Client,
    requests: Api<CertificateSigningRequest>,
    /// Networks of the cluster, in which no node has an address.
    reserved: Vec<Ipv4Net>,
}

/// What is written into a request.
struct Decision {
    type_: &'static str,
    reason: &'static str,
    message: String,
}

/// Approves or denies every request for a kubelet's certificates and for a node's storage identity until it is
/// cancelled; leaves all others alone. No kubelet may serve under an address of the `reserved` networks: those of
/// Services and pods. Healthy when it has seen the requests that were there.
///
/// # Errors
/// [`WatchEnded`]; an API server that is away is waited for and is none.
pub async fn approve(cx: Context, client: Client, reserved: Vec<Ipv4Net>) -> Result<(), WatchEnded> {
    let requests = Api::<CertificateSigningRequest>::all(client.clone());
    let controller = Controller::new(requests.clone(), watcher::Config::default());
    let approver = Approver { client, requests, reserved };
    control(cx, "certificate signing requests", controller, decide, Arc::new(approver)).await
}

async fn decide(request: Arc<CertificateSigningRequest>, approver: Arc<Approver>) -> Result<Action, DecideError> {
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
    // What was looked at: with another resource version somebody else has decided.
    let patch = json!({
        "metadata": {"resourceVersion": request.resource_version()},
        "status": {"conditions": [condition]},
    });
    match approver.requests.patch_approval(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(_) => info!(request = name, decision = type_, reason, why = message, "certificate signing request decided"),
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {}
        Err(error) => return Err(DecideError(Box::new(error))),
    }
    Ok(Action::await_change())
}

impl Approver {
    /// `None` if there is nothing to decide.
    async fn decision(&self, request: &CertificateSigningRequest) -> Result<Option<Decision>, kube::Error> {
        // Each comes back when it is decided, and with its certificate.
        if csr::is_decided(request) {
            return Ok(None);
        }
        let removed = self.removed().await?;
        if let Some(question) = Question::of(request) {
            let facts = self.facts(&question, &removed).await?;
            return Ok(Some(match question.judge(&facts, &self.reserved) {
                Ok(node) => Decision::approved("OwnNode", format!("the kubelet of {node}")),
                Err(denial) => Decision::denied(denial.reason(), denial.to_string()),
            }));
        }
        Ok(match approval::judge(request, &removed) {
            Verdict::Leave => None,
            Verdict::Approve { node } => {
                Some(Decision::approved("OwnNode", format!("{STORAGE_USER_PREFIX}{node}, asked for by that node")))
            }
            Verdict::Deny(denial) => Some(Decision::denied(denial.reason(), denial.to_string())),
        })
    }

    /// Names of the nodes that were removed for good.
    async fn removed(&self) -> Result<BTreeSet<String>, kube::Error> {
        let maps = Api::<ConfigMap>::namespaced(self.client.clone(), REMOVED_NODES_NAMESPACE);
        let named = maps.get_opt(REMOVED_NODES).await?.and_then(|map| map.data);
        Ok(named.into_iter().flatten().map(|(name, _)| name).collect())
    }

    /// What the cluster knows about a kubelet's request.
    async fn facts(&self, question: &Question<'_>, removed: &BTreeSet<String>) -> Result<Facts, kube::Error> {
        let token_is_for = match question.asker() {
            Asker::Token(id) => {
                let secrets = Api::<Secret>::namespaced(self.client.clone(), programs::BOOTSTRAP_NAMESPACE);
                let secret = secrets.get_opt(&programs::bootstrap_secret_name(id)).await?;
                secret.and_then(|secret| secret.annotations().get(BOOTSTRAP_NODE_ANNOTATION).cloned())
            }
            Asker::Kubelet(_) | Asker::Other(_) => None,
        };
        let nodes = Api::<Node>::all(self.client.clone()).list(&ListParams::default()).await?.items;
        let (own, others): (Vec<_>, Vec<_>) =
            nodes.iter().partition(|node| node.metadata.name.as_deref() == question.node());
        let addresses = |node: &Node| node.status.as_ref()?.addresses.clone();
        let of_others = others
            .into_iter()
            .flat_map(|node| addresses(node).into_iter().flatten().map(|address| (address.address, node.name_any())))
            .filter_map(|(address, owner)| Some((address.parse::<IpAddr>().ok()?.to_canonical(), owner)))
            .collect();
        let removed = question.node().is_some_and(|node| removed.contains(node));
        Ok(Facts { token_is_for, registered: !own.is_empty(), removed, of_others })
    }
}

impl Decision {
    const fn approved(reason: &'static str, message: String) -> Self {
        Self { type_: "Approved", reason, message }
    }

    const fn denied(reason: &'static str, message: String) -> Self {
        Self { type_: "Denied", reason, message }
    }
}
