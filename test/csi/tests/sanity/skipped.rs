//! The specs of csi-sanity that do not run, each with the reason.

use crate::Spec;

const CONTROLLER: &str = "Controller Service [Controller Server]";

/// Names of specs, or the beginnings of the names of all specs of a container.
static SKIPPED: [(&str, &[&str]); 4] = [
    (
        "a snapshot can be used on its node alone, and has no alpha field that says so",
        &["CreateSnapshot [Controller Server] should succeed when creating a snapshot with accessibility requirements"],
    ),
    ("volumes are published without staging", &["Node Service NodeStageVolume", "Node Service NodeUnstageVolume"]),
    (
        "the node's own disk is attached to no other node",
        &[
            "Controller Service [Controller Server] ControllerPublishVolume",
            "Controller Service [Controller Server] ControllerUnpublishVolume",
            "Controller Service [Controller Server] volume lifecycle",
        ],
    ),
    (
        "disabled in csi-sanity as unreliable; `controller::pages_have_every_volume_once` covers pages",
        &["Controller Service [Controller Server] ListVolumes pagination should detect volumes"],
    ),
];

/// Fails unless exactly the listed specs were skipped.
pub(crate) fn compare(skipped: &[&Spec], ran: &[&Spec]) {
    let listed = || SKIPPED.iter().flat_map(|(_, specs)| *specs).copied();
    let is_listed = |name: &str| listed().any(|start| name.starts_with(start));
    let names = |specs: &[&Spec]| specs.iter().map(|spec| spec.name()).collect::<Vec<_>>();
    let (skipped, ran) = (names(skipped), names(ran));
    let without_reason: Vec<_> = skipped.iter().filter(|name| !is_listed(name)).collect();
    assert!(without_reason.is_empty(), "skipped without a reason here: {without_reason:#?}");
    let listed_and_ran: Vec<_> = ran.iter().filter(|name| is_listed(name)).collect();
    assert!(listed_and_ran.is_empty(), "listed as skipped, but they ran: {listed_and_ran:#?}");
    let unknown: Vec<_> = listed().filter(|start| !skipped.iter().any(|name| name.starts_with(start))).collect();
    assert!(unknown.is_empty(), "csi-sanity has no such specs: {unknown:#?}");
    assert!(ran.iter().any(|name| name.starts_with(CONTROLLER)), "{ran:#?}");
}
