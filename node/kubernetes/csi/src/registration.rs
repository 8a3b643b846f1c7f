//! kubelet's plugin registration: it finds a socket, asks who is there, and says whether it liked the answer.

use std::sync::Arc;
use std::time::Duration;

use proto::registration::registration_server::Registration;
use proto::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::{Request, Response, Status};
use tracing::{info, warn};

/// Registration cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve kubelet's plugin registration")]
pub struct RegisterError(#[from] crate::ServeError);

/// What kubelet said last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Nothing yet, or that it does not take us.
    Outside,
    /// kubelet knows the plugin.
    Registered,
}

/// The service. kubelet asks again whenever it restarts.
#[derive(Debug)]
pub(crate) struct RegistrationService {
    pub(crate) endpoint: String,
    pub(crate) standing: Arc<watch::Sender<Standing>>,
}

/// Ends when kubelet did not register the plugin for `patience`: some kubelets try only once for each socket.
pub(crate) async fn outside_for(mut standing: watch::Receiver<Standing>, patience: Duration) {
    loop {
        let registered = standing.wait_for(|standing| *standing == Standing::Registered);
        let in_time = timeout(patience, registered).await.is_ok_and(|answer| answer.is_ok());
        if !in_time || standing.wait_for(|standing| *standing == Standing::Outside).await.is_err() {
            return;
        }
    }
}

#[tonic::async_trait]
impl Registration for RegistrationService {
    async fn get_info(&self, _request: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: volume::DRIVER_NAME.to_owned(),
            endpoint: self.endpoint.clone(),
            supported_versions: vec!["1.0.0".to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        if plugin_registered {
            info!("kubelet registered the plugin");
            self.standing.send_replace(Standing::Registered);
        } else {
            warn!(reason = error, "kubelet did not register the plugin");
            self.standing.send_replace(Standing::Outside);
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use tokio::time::Instant;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn patience_ends_without_an_answer() {
        let (_standing, seen) = watch::channel(Standing::Outside);
        let begun = Instant::now();
        outside_for(seen, PATIENCE).await;
        assert_eq!(begun.elapsed(), PATIENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_registered_plugin_waits_for_ever() {
        let (standing, seen) = watch::channel(Standing::Outside);
        standing.send_replace(Standing::Registered);
        assert!(timeout(100 * PATIENCE, outside_for(seen, PATIENCE)).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_after_success_starts_the_wait_anew() {
        let (standing, seen) = watch::channel(Standing::Registered);
        let mut waiting = pin!(outside_for(seen, PATIENCE));
        assert!(timeout(10 * PATIENCE, waiting.as_mut()).await.is_err());
        let refused = Instant::now();
        standing.send_replace(Standing::Outside);
        waiting.await;
        assert_eq!(refused.elapsed(), PATIENCE);
    }
}
