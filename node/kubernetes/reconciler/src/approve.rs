//! Decides on the certificates that nodes ask for.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
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
use tracing::{info, warn};

use crate::approval::{SIGNER, Verdict, judge};

/// After a failure. Nodes wait for minutes.
const RETRY: Duration = Duration::from_secs(5);

/// Why the approver has to be started again.
#[derive(Debug, thiserror::Error)]
pub enum ApproveError {
    /// The watch of the requests ended, which it never does by itself.
    #[error("the watch of certificate signing requests ended")]
    WatchEnded,
}

/// A decision could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot decide on the certificate signing request")]
struct DecideError(#[from] Box<kube::Error>);

/// Approves or denies every request for a node's storage identity until it is cancelled; leaves all others alone.
/// Healthy when it has seen the requests that were there.
///
/// # Errors
/// [`ApproveError`]; an API server that is away is waited for and is none.
pub async fn approve(cx: Context, client: Client) -> Result<(), ApproveError> {
    let requests = Api::<CertificateSigningRequest>::all(client);
    let controller =
        Controller::new(requests.clone(), watcher::Config::default().fields(&format!("spec.signerName={SIGNER}")));
    let seen = controller.store();
    let token = cx.token();
    let decisions = controller
        .graceful_shutdown_on(async move { token.cancelled().await })
        .run(decide, |_, error, _| failed(error), Arc::new(requests))
        .for_each(|decision| {
            if let Err(error) = decision {
                let error: &dyn std::error::Error = &error;
                warn!(error, "certificate signing requests: pass failed, it is tried again");
            }
            std::future::ready(())
        });
    let ready = async {
        // An error means that the controller has ended, which the other branch tells.
        if seen.wait_until_ready().await.is_ok() {
            cx.healthy();
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = decisions => {}
        () = ready => {}
    }
    if cx.is_cancelled() { Ok(()) } else { Err(ApproveError::WatchEnded) }
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

fn failed(error: &DecideError) -> Action {
    let error: &dyn std::error::Error = error;
    warn!(error, "certificate signing request left undecided, it is tried again");
    Action::requeue(RETRY)
}
