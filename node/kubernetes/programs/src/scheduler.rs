//! kube-scheduler.

use crate::pki::identity::Identity;
use crate::program::{Program, Service};
use crate::{Config, Credentials, Rights, User};

/// Healthy as soon as it runs: kube-scheduler has no port for a readiness request.
pub fn service(config: &Config, credentials: &Credentials) -> Service {
    program(credentials).service(&config.paths, || std::future::ready(Ok(())))
}

pub(crate) fn program(credentials: &Credentials) -> Program {
    let arguments = vec![
        format!("--kubeconfig={}", credentials.kubeconfig(Identity::Scheduler).display()),
        "--bind-address=127.0.0.1".into(),
        "--secure-port=0".into(),
        "--profiling=false".into(),
        "--leader-elect=false".into(),
    ];
    let keys = [credentials.kubeconfig(Identity::Scheduler), credentials.key(Identity::Scheduler.name())];
    let rights = Some(Rights::new(User::Scheduler, keys));
    Program { name: User::Scheduler.program(), arguments, rights, ..Program::default() }
}
