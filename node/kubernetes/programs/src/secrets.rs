//! Converts Secrets in etcd to the configured form.
//!
//! The API server writes with its first key and reads with all keys. A data disk of a release without encryption has
//! Secrets in plain text, and a disk whose key was replaced has Secrets of the former key. These Secrets stay readable.
//! [`rewrite`] writes each of them again, records the completion on the disk, and does nothing at later boots.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use supervisor::Context;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::timeout;
use tracing::{info, warn};

use crate::{PkiError, StoredSecrets};

/// Secrets per list request. The metadata of each may exceed 256 KiB.
const PAGE: u32 = 50;

/// Deadline of one request. The API server itself ends a request after a minute, even while a webhook delays it.
const DEADLINE: Duration = Duration::from_secs(90);

/// Maximum number of rejected Secrets that each pass logs by name.
const NAMED: usize = 10;

#[derive(Debug, thiserror::Error)]
pub enum RewriteError {
    #[error(
        "cannot list the cluster's Secrets; if the API server cannot decrypt them, restore pki/secrets.key from a backup of \
         the data disk"
    )]
    List(#[source] RequestError),
    #[error("cannot write Secret {secret} again")]
    Write { secret: String, source: RequestError },
    /// The API server rejected some Secrets. All others are written.
    #[error(
        "the API server rejects {count} Secrets that have to be written again, such as {secret} ({reason}): make the \
         admission webhook or policy allow it, or delete the Secret"
    )]
    Rejected { count: usize, secret: String, reason: String },
    #[error("cannot read or write the record of the storage of Secrets")]
    Note(#[from] PkiError),
    #[error("a task for the disk panicked")]
    Thread(#[from] JoinError),
}

#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error(transparent)]
    Api(#[from] Box<kube::Error>),
    #[error("no response within {} s", DEADLINE.as_secs())]
    Overdue,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rewritten {
    pub secrets: usize,
    /// Secrets that were stored in another form.
    pub changed: usize,
}

/// Service that stores all Secrets in the configured form, and is then done.
pub async fn rewrite(cx: Context, client: Client, stored: StoredSecrets) -> Result<(), RewriteError> {
    let rewritten = tokio::select! {
        () = cx.cancelled() => return Ok(()),
        rewritten = rewrite_once(&client, &stored) => rewritten?,
    };
    if let Some(Rewritten { secrets, changed }) = rewritten {
        info!(secrets, changed, "all Secrets are stored as configured");
    }
    cx.done();
    Ok(())
}

/// Writes all Secrets again and records the completion; `None` if the record exists. A power cut may end the work after
/// each step.
pub async fn rewrite_once(client: &Client, stored: &StoredSecrets) -> Result<Option<Rewritten>, RewriteError> {
    let (checked, noted) = (stored.clone(), stored.clone());
    if spawn_blocking(move || checked.is_complete()).await?? {
        return Ok(None);
    }
    let rewritten = rewrite_all(client).await?;
    spawn_blocking(move || noted.complete()).await??;
    Ok(Some(rewritten))
}

/// One pass over all Secrets. Continues after a Secret that the API server rejects.
pub async fn rewrite_all(client: &Client) -> Result<Rewritten, RewriteError> {
    let all = Api::<Secret>::all(client.clone());
    let mut rewritten = Rewritten::default();
    let mut rejected: Option<(String, String)> = None;
    let mut count = 0;
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let listed = within(all.list_metadata(&page)).await.map_err(RewriteError::List)?;
        for found in listed.items {
            let secret = format!("{}/{}", found.namespace().unwrap_or_default(), found.name_any());
            match write_again(client, &found).await {
                Ok(Outcome::Written { changed }) => {
                    rewritten.secrets += 1;
                    rewritten.changed += usize::from(changed);
                }
                Ok(Outcome::Deleted) => {}
                Ok(Outcome::Rejected(reason)) => {
                    count += 1;
                    if count <= NAMED {
                        warn!(secret, reason, "Secret not written again");
                    }
                    rejected.get_or_insert((secret, reason));
                }
                Err(source) => return Err(RewriteError::Write { secret, source }),
            }
        }
        match listed.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => break,
        }
    }
    match rejected {
        Some((secret, reason)) => Err(RewriteError::Rejected { count, secret, reason }),
        None => Ok(rewritten),
    }
}

enum Outcome {
    Written { changed: bool },
    Deleted,
    Rejected(String),
}

/// For an empty patch, the API server writes the object only if its stored form differs.
async fn write_again(client: &Client, found: &PartialObjectMeta<Secret>) -> Result<Outcome, RequestError> {
    let secrets = Api::<Secret>::namespaced(client.clone(), &found.namespace().unwrap_or_default());
    let (name, parameters, patch) = (found.name_any(), PatchParams::default(), Patch::Merge(json!({})));
    match within(secrets.patch_metadata(&name, &parameters, &patch)).await {
        Ok(written) => Ok(Outcome::Written { changed: written.resource_version() != found.resource_version() }),
        Err(RequestError::Api(error)) => match *error {
            kube::Error::Api(status) if status.is_not_found() => Ok(Outcome::Deleted),
            kube::Error::Api(status) => Ok(Outcome::Rejected(status.message.clone())),
            other => Err(RequestError::Api(Box::new(other))),
        },
        Err(overdue) => Err(overdue),
    }
}

async fn within<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, RequestError> {
    let answer = timeout(DEADLINE, request).await.map_err(|_| RequestError::Overdue)?;
    Ok(answer.map_err(Box::new)?)
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::{Arc, Mutex};

    use http::{Method, Request, Response};
    use kube::client::Body;
    use serde_json::Value;
    use tower::service_fn;

    use super::*;

    #[derive(Clone, Copy, PartialEq)]
    enum Answer {
        Written,
        Rejected,
        Missing,
        Silence,
    }

    fn meta(name: usize, version: &str) -> Value {
        let metadata = json!({"namespace": "n", "name": name.to_string(), "resourceVersion": version});
        json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": metadata})
    }

    fn respond(request: &Request<Body>, answers: &[Answer]) -> Option<(u16, Value)> {
        let uri = request.uri();
        if request.method() == Method::GET {
            let query: Vec<_> =
                uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('=')).collect();
            let value = |name| query.iter().find(|(found, _)| *found == name).and_then(|(_, value)| value.parse().ok());
            let (limit, from): (usize, usize) =
                (value("limit").expect("a bounded page"), value("continue").unwrap_or(0));
            assert!(limit <= 50, "{limit}");
            let end = (from + limit).min(answers.len());
            let items: Vec<_> = (from..end).map(|name| meta(name, "1")).collect();
            let next = if end < answers.len() { end.to_string() } else { String::new() };
            let list = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
                "metadata": {"continue": next}, "items": items});
            return Some((200, list));
        }
        assert_eq!(request.method(), Method::PATCH);
        let name: usize = uri.path().strip_prefix("/api/v1/namespaces/n/secrets/").unwrap().parse().unwrap();
        let status = |code: u16, reason: &str, message: &str| {
            json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason,
                "message": message})
        };
        match answers[name] {
            Answer::Written => Some((200, meta(name, "2"))),
            Answer::Rejected => Some((403, status(403, "Forbidden", "a webhook denied the request"))),
            Answer::Missing => Some((404, status(404, "NotFound", "not found"))),
            Answer::Silence => None,
        }
    }

    fn client(answers: Vec<Answer>) -> (Client, Arc<Mutex<usize>>) {
        let (answers, requests) = (Arc::new(answers), Arc::new(Mutex::new(0)));
        let counted = Arc::clone(&requests);
        let service = service_fn(move |request: Request<Body>| {
            let (answers, counted) = (Arc::clone(&answers), Arc::clone(&counted));
            async move {
                *counted.lock().unwrap() += 1;
                match respond(&request, &answers) {
                    None => pending().await,
                    Some((code, body)) => {
                        let body = Body::from(body.to_string().into_bytes());
                        Ok::<_, std::convert::Infallible>(Response::builder().status(code).body(body).unwrap())
                    }
                }
            }
        });
        (Client::new(service, "default"), requests)
    }

    #[tokio::test]
    async fn all_pages_are_written_and_deleted_secrets_are_left_out() {
        let mut answers = vec![Answer::Written; 120];
        answers[70] = Answer::Missing;
        let (client, requests) = client(answers);
        let rewritten = rewrite_all(&client).await.unwrap();
        assert_eq!(rewritten, Rewritten { secrets: 119, changed: 119 });
        assert_eq!(*requests.lock().unwrap(), 3 + 120);
    }

    #[tokio::test]
    async fn a_rejected_secret_does_not_stop_the_others_and_is_named() {
        let mut answers = vec![Answer::Written; 120];
        for rejected in [3, 60, 119] {
            answers[rejected] = Answer::Rejected;
        }
        let (client, requests) = client(answers);
        let error = rewrite_all(&client).await.unwrap_err().to_string();
        assert!(error.starts_with("the API server rejects 3 Secrets"), "{error}");
        assert!(error.contains("such as n/3 (a webhook denied the request)"), "{error}");
        assert_eq!(*requests.lock().unwrap(), 3 + 120);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_without_an_answer_ends_the_pass() {
        let (client, _) = client(vec![Answer::Written, Answer::Silence, Answer::Written]);
        match rewrite_all(&client).await {
            Err(RewriteError::Write { secret, source: RequestError::Overdue }) => assert_eq!(secret, "n/1"),
            other => panic!("{other:?}"),
        }
    }
}
