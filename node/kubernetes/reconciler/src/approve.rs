//! Decides on the certificates that nodes ask for.

use std::sync::Arc;

use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::watcher;
use kube::{Client, ResourceExt as _};
use serde_json::json;
use services::STORAGE_USER_PREFIX;
use supervisor::Context;
use tracing::info;

use crate::approval::{SIGNER, Verdict, judge};
use crate::control::{WatchEnded, control};

/// A decision could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot decide on the certificate signing request")]
struct DecideError(#[from] Box<kube::Error>);

/// Approves or denies every request for a node's storage identity until it is cancelled; leaves all others alone.
/// Healthy when it has seen the requests that were there.
///
/// # Errors
/// [`WatchEnded`]; an API server that is away is waited for and is none.
pub async fn approve(cx: Context, client: Client) -> Result<(), WatchEnded> {
    let requests = Api::<CertificateSigningRequest>::all(client);
    let controller =
        Controller::new(requests.clone(), watcher::Config::default().fields(&format!("spec.signerName={SIGNER}")));
    control(cx, "certificate signing requests", controller, decide, Arc::new(requests)).await
}

async fn decide(
    request: Arc<CertificateSigningRequest>,
    requests: Arc<Api<CertificateSigningRequest>>,
) -> Result<Action, DecideError> {
    let name = request.name_any();
    let (type_, reason, message) = match judge(&request) {
        Verdict::Leave => return Ok(Action::await_change()),
        Verdict::Approve { node } => {
            ("Approved", "OwnNode", format!("{STORAGE_USER_PREFIX}{node}, asked for by that node"))
        }
        Verdict::Deny(denial) => ("Denied", denial.reason(), denial.to_string()),
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
    match requests.patch_approval(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(_) => info!(request = name, decision = type_, reason, why = message, "certificate signing request decided"),
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {}
        Err(error) => return Err(DecideError(Box::new(error))),
    }
    Ok(Action::await_change())
}
