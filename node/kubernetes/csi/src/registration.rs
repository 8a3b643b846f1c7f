//! The kubelet's plugin registration: it finds the socket, reads the plugin's name and reports the result.

use std::sync::Arc;
use std::time::Duration;

use proto::registration::registration_server::Registration;
use proto::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::{Request, Response, Status};
use tracing::{info, warn};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegistrationState {
    /// The kubelet has not answered yet, or has rejected the plugin.
    Unregistered,
    Registered,
}

#[derive(Debug)]
pub(crate) struct RegistrationService {
    pub(crate) endpoint: String,
    pub(crate) state: Arc<watch::Sender<RegistrationState>>,
}

/// Ends when the plugin has not been registered for `patience`: some kubelets try only once per socket.
pub(crate) async fn unregistered_for(mut state: watch::Receiver<RegistrationState>, patience: Duration) {
    loop {
        let registered = state.wait_for(|state| *state == RegistrationState::Registered);
        let in_time = timeout(patience, registered).await.is_ok_and(|answer| answer.is_ok());
        if !in_time || state.wait_for(|state| *state == RegistrationState::Unregistered).await.is_err() {
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
            self.state.send_replace(RegistrationState::Registered);
        } else {
            warn!(reason = error, "kubelet did not register the plugin");
            self.state.send_replace(RegistrationState::Unregistered);
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
    async fn the_wait_ends_without_an_answer() {
        let (_state, seen) = watch::channel(RegistrationState::Unregistered);
        let begun = Instant::now();
        unregistered_for(seen, PATIENCE).await;
        assert_eq!(begun.elapsed(), PATIENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_registered_plugin_waits_forever() {
        let (state, seen) = watch::channel(RegistrationState::Unregistered);
        state.send_replace(RegistrationState::Registered);
        assert!(timeout(100 * PATIENCE, unregistered_for(seen, PATIENCE)).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_rejection_after_success_restarts_the_wait() {
        let (state, seen) = watch::channel(RegistrationState::Registered);
        let mut waiting = pin!(unregistered_for(seen, PATIENCE));
        assert!(timeout(10 * PATIENCE, waiting.as_mut()).await.is_err());
        let refused = Instant::now();
        state.send_replace(RegistrationState::Unregistered);
        waiting.await;
        assert_eq!(refused.elapsed(), PATIENCE);
    }
}
