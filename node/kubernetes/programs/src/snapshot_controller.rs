//! snapshot-controller: creates the VolumeSnapshotContent of each VolumeSnapshot, labeled with the node that has the
//! volume.

use std::sync::Arc;

use crate::pki::identity::Identity;
use crate::program::{Program, Service};
use crate::{Config, Credentials, Rights, User, ready};

/// snapshot-controller ends if the API server does not serve its kinds within 30 s.
const READINESS_PATH: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshots?limit=1";

/// Healthy when the API server serves the controller's kinds: snapshot-controller has no port.
pub fn service(config: &Config, credentials: &Arc<Credentials>) -> Service {
    let kept = Arc::clone(credentials);
    program(credentials).service(&config.paths, move || {
        let credentials = Arc::clone(&kept);
        async move { ready::api(&credentials, READINESS_PATH).await }
    })
}

fn program(credentials: &Credentials) -> Program {
    let identity = Identity::SnapshotController;
    let kubeconfig = credentials.kubeconfig(identity);
    Program {
        name: User::SnapshotController.program(),
        arguments: vec![format!("--kubeconfig={}", kubeconfig.display())],
        rights: Some(Rights::new(User::SnapshotController, [kubeconfig, credentials.key(identity.name())])),
        ..Program::default()
    }
}
