//! Bootstrap tokens of workers.

use crate::configuration;
use crate::error::StepError;
use crate::node_boot::Access;
use crate::spec::NodeSpec;
use cluster::Token;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::PostParams;
use programs::{BOOTSTRAP_NAMESPACE, bootstrap_secret};
use std::time::Duration;
use time::OffsetDateTime;
use tokio::time::timeout;

const LIFETIME: time::Duration = time::Duration::hours(1);
/// Time limit of the request; the API server's own one is 60 s.
const LIMIT: Duration = Duration::from_secs(120);

pub(crate) async fn invite(access: &Access, worker: &NodeSpec) -> Result<String, StepError> {
    let step = format!("create a bootstrap token for node {}", worker.name);
    let ca = access.ca.ok_or("the announced kubeconfig has no CA").map_err(StepError::of(&*step))?;
    let token = Token::generate().map_err(StepError::of(&*step))?;
    let secret =
        bootstrap_secret(&token, &worker.name, OffsetDateTime::now_utc() + LIFETIME).map_err(StepError::of(&*step))?;
    let secrets: Api<Secret> = Api::namespaced(access.client.clone(), BOOTSTRAP_NAMESPACE);
    let created = timeout(LIMIT, secrets.create(&PostParams::default(), &secret)).await;
    created
        .map_err(|_| format!("the API server did not answer within {LIMIT:?}"))
        .map_err(StepError::of(&*step))?
        .map_err(StepError::of(&*step))?;
    Ok(configuration::of_worker(worker, ca, &token))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use std::error::Error as _;
    use std::future::pending;
    use std::io;
    use std::path::{Path, PathBuf};
    use tower::service_fn;

    #[tokio::test(start_paused = true)]
    async fn a_request_to_a_silent_api_server_has_a_time_limit() {
        let service = service_fn(|_: Request<Body>| pending::<Result<Response<Body>, io::Error>>());
        let ca = format!("sha256:{}", "0a".repeat(32)).parse().unwrap();
        let access =
            Access { client: Client::new(service, "default"), kubeconfig: PathBuf::new(), api: 6443, ca: Some(ca) };
        let worker = NodeSpec::control_plane(&Options::fake(Path::new("/tmp")));
        let error = invite(&access, &worker).await.unwrap_err();
        assert!(error.source().unwrap().to_string().contains("did not answer within 120s"), "{error:?}");
    }
}
