//! kube-controller-manager with all default controllers except the approver of certificates, and with the controller
//! that deletes expired tokens.

use std::sync::Arc;

use cluster::NODE_PREFIX;

use crate::pki::identity::Identity;
use crate::pki::store::CONTROLLERS_SIGNING_KEY;
use crate::program::{Program, ProgramError, Service};
use crate::{Config, Credentials, Rights, User, ready};

/// A controller creates this account in every cluster. Without the account, no pod can be created.
const SIGN_OF_LIFE: &str = "/api/v1/namespaces/default/serviceaccounts/default";

const NAME: &str = User::ControllerManager.program();

/// Healthy when the default service account exists. The program starts after the API server is healthy:
/// kube-controller-manager waits 10 s for the API server and then ends, and each of these starts takes CPU time from a
/// starting API server.
pub fn service(config: &Config, credentials: &Arc<Credentials>) -> Service {
    let kept = Arc::clone(credentials);
    let run = program(config, credentials).service(&config.paths, move || {
        let credentials = Arc::clone(&kept);
        async move { ready::api(&credentials, SIGN_OF_LIFE).await }
    });
    let kept = Arc::clone(credentials);
    Box::new(move |cx| {
        let (credentials, run) = (Arc::clone(&kept), run(cx.clone()));
        Box::pin(async move {
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                healthy = ready::api(&credentials, "/healthz") => healthy.map_err(|source| ProgramError::Awaits {
                    program: NAME,
                    awaited: User::ApiServer.program(),
                    source: Box::new(source),
                })?,
            }
            run.await
        })
    })
}

pub(crate) fn program(config: &Config, credentials: &Credentials) -> Program {
    let kubeconfig = credentials.kubeconfig(Identity::ControllerManager).display().to_string();
    let arguments = [
        ("kubeconfig", kubeconfig.clone()),
        ("authentication-kubeconfig", kubeconfig.clone()),
        ("authorization-kubeconfig", kubeconfig),
        ("bind-address", "127.0.0.1".to_owned()),
        ("profiling", "false".to_owned()),
        // No port: the server would need a second to create a key, and has no clients.
        ("secure-port", "0".to_owned()),
        ("leader-elect", "false".to_owned()),
        // The approving controller would approve a certificate for any node name. By default, expired bootstrap tokens
        // stay.
        ("controllers", "*,token-cleaner-controller,-certificatesigningrequest-approving-controller".to_owned()),
        // Each Node gets a part of the pod network.
        ("allocate-node-cidrs", "true".to_owned()),
        ("cluster-cidr", config.cluster_pods.to_string()),
        ("node-cidr-mask-size", NODE_PREFIX.to_string()),
        ("service-cluster-ip-range", config.services.to_string()),
        // At its start, kube-controller-manager sends some 110 requests for the tokens of its controllers. client-go's
        // default limit of 20 a second would delay them by four seconds. The API server's priority and fairness limits
        // the requests instead.
        ("kube-api-qps", "200".to_owned()),
        ("kube-api-burst", "300".to_owned()),
        // At the first boot, this controller type-checks the node's policies, and compiles each variable for each
        // expression. The default, five at once, would take the CPUs from the controllers that the first pods need.
        ("concurrent-validating-admission-policy-status-syncs", "1".to_owned()),
        // kube-controller-manager creates this directory. The node has no FlexVolume plugins.
        ("flex-volume-plugin-dir", config.paths.scratch(NAME).join("flexvolume").display().to_string()),
        ("service-account-private-key-file", credentials.key(CONTROLLERS_SIGNING_KEY).display().to_string()),
        ("root-ca-file", credentials.certificate("ca").display().to_string()),
        ("cluster-signing-cert-file", credentials.certificate("ca").display().to_string()),
        ("cluster-signing-key-file", credentials.key("ca").display().to_string()),
        // The role of kube-controller-manager itself does not cover its controllers.
        ("use-service-account-credentials", "true".to_owned()),
        ("cert-dir", config.paths.scratch(NAME).display().to_string()),
    ];
    let name = Identity::ControllerManager.name();
    let keys = [
        credentials.kubeconfig(Identity::ControllerManager),
        credentials.key(name),
        credentials.key("ca"),
        credentials.key(CONTROLLERS_SIGNING_KEY),
    ];
    let rights = Rights { reads: vec![config.paths.names()], ..Rights::new(User::ControllerManager, keys) };
    Program {
        name: NAME,
        arguments: arguments.map(|(flag, value)| format!("--{flag}={value}")).into(),
        rights: Some(rights),
        ..Program::default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use supervisor::{Settings, Supervisor};

    use super::*;

    /// The paused clock advances while all tasks wait.
    #[tokio::test(start_paused = true)]
    async fn it_does_not_start_before_the_api_server_is_healthy() {
        let (config, credentials, _scratch) = crate::config::with_credentials(Config::default());
        let service = service(&config, &Arc::new(credentials));
        let (sender, mut ends) = tokio::sync::mpsc::channel(1);
        let tree = Supervisor::start(NAME, Settings::default(), move |cx| {
            let (running, sender) = (service(cx), sender.clone());
            async move {
                let end = running.await;
                _ = sender.try_send(end.as_ref().err().map(ToString::to_string));
                end
            }
        });
        let end = ends.recv().await.unwrap();
        assert_eq!(end.as_deref(), Some("kube-controller-manager is not started before kube-apiserver is ready"));
        tree.stop(Duration::from_secs(1)).await.unwrap();
    }

    #[test]
    fn every_controller_runs_but_the_approval_of_certificates() {
        let (config, credentials, _scratch) = crate::config::with_credentials(Config::default());
        let arguments = program(&config, &credentials).arguments;
        let controllers = arguments.iter().filter_map(|argument| argument.strip_prefix("--controllers="));
        assert!(controllers.eq(["*,token-cleaner-controller,-certificatesigningrequest-approving-controller"]));
    }
}
