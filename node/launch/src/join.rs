//! How a worker is let into the cluster.

use crate::configuration;
use crate::rising::Access;
use crate::site::Site;
use cluster::Token;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::PostParams;
use programs::{BOOTSTRAP_NAMESPACE, bootstrap_secret};
use std::io;
use std::time::Duration;
use time::OffsetDateTime;
use tokio::time::timeout;

/// How long the worker may take to join.
const LIFETIME: time::Duration = time::Duration::hours(1);
/// How long the API server may take. It gives a request up itself after 60 s.
const LIMIT: Duration = Duration::from_secs(120);

/// Why a worker is not let in.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// Nothing says whom the worker is to trust.
    #[error("the announced kubeconfig has no certificate of the cluster's authority")]
    NoAuthority,
    /// No random numbers.
    #[error("cannot make a bootstrap token")]
    Random(#[source] io::Error),
    /// The token is no object.
    #[error("cannot make the Secret of a bootstrap token")]
    Secret(#[source] serde_json::Error),
    /// The API server does not take it.
    #[error("cannot create the Secret of a bootstrap token")]
    Create(#[source] Box<kube::Error>),
    /// The API server says nothing.
    #[error("cannot create the Secret of a bootstrap token: the API server did not answer within {LIMIT:?}")]
    Late,
}

/// Makes a token for the worker. Returns what the worker is told.
pub(crate) async fn invite(access: &Access, worker: &Site) -> Result<String, JoinError> {
    let authority = access.authority.ok_or(JoinError::NoAuthority)?;
    let token = Token::generate().map_err(JoinError::Random)?;
    let secret =
        bootstrap_secret(&token, &worker.name, OffsetDateTime::now_utc() + LIFETIME).map_err(JoinError::Secret)?;
    let secrets: Api<Secret> = Api::namespaced(access.client.clone(), BOOTSTRAP_NAMESPACE);
    match timeout(LIMIT, secrets.create(&PostParams::default(), &secret)).await {
        Ok(Ok(_)) => Ok(configuration::of_worker(worker, authority, &token)),
        Ok(Err(error)) => Err(JoinError::Create(Box::new(error))),
        Err(_) => Err(JoinError::Late),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Image, Options};
    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use std::future::pending;
    use std::path::{Path, PathBuf};
    use tower::service_fn;

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_does_not_answer_is_not_waited_for() {
        let service = service_fn(|_: Request<Body>| pending::<Result<Response<Body>, io::Error>>());
        let authority = format!("sha256:{}", "0a".repeat(32)).parse().unwrap();
        let access = Access {
            client: Client::new(service, "default"),
            kubeconfig: PathBuf::new(),
            api: 6443,
            authority: Some(authority),
        };
        let [kernel, initramfs, system, command_line] = [const { PathBuf::new() }; 4];
        let image = Image { kernel, initramfs, system, command_line };
        let worker = Site::control_plane(&Options::new(image, Path::new("/tmp")));
        assert!(matches!(invite(&access, &worker).await, Err(JoinError::Late)));
    }
}
