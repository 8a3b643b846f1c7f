//! The kubelet's plugin registration.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use conformity::{Case, answer, connect, hold, hold_in_turn, with_case};
use proptest::prelude::*;
use proto::csi::ProbeRequest;
use proto::csi::identity_client::IdentityClient;
use proto::registration::{InfoRequest, RegistrationStatus};
use tonic::Code;

use crate::malformed::{all_answered, nothing_to_do, text};

const LIMIT: Duration = Duration::from_secs(20);

async fn notify(case: &Case<'_>, plugin_registered: bool, error: &str) {
    let status = RegistrationStatus { plugin_registered, error: error.to_owned() };
    let mut client = case.node().registration().await;
    answer(client.notify_registration_status(status).await).expect("notify");
}

/// The kubelet's `ValidatePlugin` requires type, name, endpoint and versions. The kubelet then dials the endpoint. A
/// kubelet that restarts finds the same socket and sends its requests again, as the further runs do.
#[test]
fn the_endpoint_that_registration_names_is_served() {
    hold(async |case| {
        let info = answer(case.node().registration().await.get_info(InfoRequest {}).await).expect("info");
        assert_eq!((info.r#type.as_str(), info.name.as_str()), ("CSIPlugin", volume::DRIVER_NAME));
        assert_eq!(info.supported_versions, ["1.0.0"]);
        assert_eq!(Path::new(&info.endpoint), case.node().socket());
        let channel = connect(info.endpoint.into()).await.expect("connect");
        let probe = answer(IdentityClient::new(channel).probe(ProbeRequest {}).await).expect("probe");
        assert_eq!(probe.ready, Some(true));
        notify(case, true, "").await;
    });
}

/// The kubelet reports a failure, for example, when it could not create the CSINode object.
#[test]
fn a_rejected_registration_stops_nothing() {
    hold(async |case| {
        notify(case, false, "no CSINode object yet").await;
        let probe = answer(case.node().identity().probe(ProbeRequest {}).await).expect("probe");
        assert_eq!(probe.ready, Some(true));
        notify(case, true, "").await;
    });
}

/// The CSINode object has lost the plugin's entry. The kubelet handles only new sockets.
#[test]
fn the_registration_socket_is_created_again_on_request() {
    hold_in_turn(async |case| {
        let socket = case.node().registration_socket();
        let birth = || fs::symlink_metadata(&socket).map(|found| (found.ino(), found.ctime(), found.ctime_nsec()));
        notify(case, true, "").await;
        let first = birth().expect("a socket");
        case.node().plugin().register_again();
        let deadline = Instant::now() + LIMIT;
        while !birth().is_ok_and(|now| now != first) || connect(socket.clone()).await.is_err() {
            assert!(Instant::now() < deadline, "waited {LIMIT:?} for another socket; it is still {first:?}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        answer(case.node().registration().await.get_info(InfoRequest {}).await).expect("info");
        notify(case, true, "").await;
    });
}

/// Specification: Security; the sockets and their directories belong to root, with no access for others.
#[test]
fn only_root_can_use_the_sockets() {
    hold(async |case| {
        for socket in [case.node().socket(), case.node().registration_socket()] {
            let found = fs::symlink_metadata(&socket).expect("a socket");
            assert!(found.file_type().is_socket(), "{}", socket.display());
            let parent = fs::symlink_metadata(socket.parent().expect("a directory")).expect("a directory");
            let modes = [&found, &parent].map(|found| found.permissions().mode() & 0o7777);
            assert_eq!((modes, found.uid(), parent.uid()), ([0o600, 0o700], 0, 0), "{}", socket.display());
        }
    });
}

/// The plugin accepts every report of the kubelet about a registration.
#[test]
fn malformed_messages_are_answered() {
    with_case(|case| {
        let client = case.node().block_on(case.node().registration());
        let status = (any::<bool>(), text())
            .prop_map(|(plugin_registered, error)| RegistrationStatus { plugin_registered, error });
        let call = async |message| answer(client.clone().notify_registration_status(message).await);
        all_answered(case, status, &[Code::Ok], call, nothing_to_do);
        let success = RegistrationStatus { plugin_registered: true, error: String::new() };
        case.node().block_on(client.clone().notify_registration_status(success)).expect("notify");
    });
}
