//! How a worker is let into the cluster.

use crate::configuration;
use crate::rising::Access;
use crate::site::Site;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::PostParams;
use services::{BOOTSTRAP_NAMESPACE, Token};
use std::io;
use time::{Duration, OffsetDateTime};

/// How long the worker may take to join.
const LIFETIME: Duration = Duration::hours(1);

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
}

/// Makes a token for the worker. Returns what the worker is told.
pub(crate) async fn invite(access: &Access, worker: &Site) -> Result<String, JoinError> {
    let authority = access.authority.ok_or(JoinError::NoAuthority)?;
    let token = Token::generate().map_err(JoinError::Random)?;
    let secret = token.secret(&worker.name, OffsetDateTime::now_utc() + LIFETIME).map_err(JoinError::Secret)?;
    let secrets: Api<Secret> = Api::namespaced(access.client.clone(), BOOTSTRAP_NAMESPACE);
    let created = secrets.create(&PostParams::default(), &secret).await;
    created.map_err(|error| JoinError::Create(Box::new(error)))?;
    Ok(configuration::of_worker(worker, authority, &token))
}
