//! Pages of fictitious nodes, for tests and for the picture in the documentation.

use std::time::Duration;

use supervisor::State;
use units::Bytes;

use crate::{
    Certificate, Clock, Closed, Condition, Disk, Inodes, Kernel, Life, Mesh, Mode, Orphans, Page, Peer, Service,
    Severity, Storage, Versions, Volume, Warning,
};

/// Time of the clock on all pages.
pub const NOW: u64 = 1_772_366_405;
const DAY: i64 = 86_400;

/// The page of the picture, with an example of most states.
pub fn example() -> Page {
    let etcd = "etcd ended with exit status: 1; last output: no space left on device";
    let services = vec![
        service("granary", State::Healthy, 0, None),
        service("granary.status", State::Healthy, 0, None),
        service("granary.etcd", State::Healthy, 1, Some(etcd)),
        service("granary.kube-apiserver", State::Healthy, 0, None),
        service("granary.kube-controller-manager", State::Healthy, 0, None),
        service("granary.kube-scheduler", State::Starting, 0, None),
        service("granary.containerd", State::Healthy, 0, None),
        service("granary.images", State::Done, 0, None),
        service("granary.kubelet", State::Stopping, 0, None),
        service("granary.kube-proxy", State::Failed, 3, Some("kube-proxy is not ready; last output: nothing")),
        service("granary.provisioner", State::Healthy, 0, None),
        service("granary.provisioner.volumes", State::Healthy, 0, None),
        service("granary.csi", State::Stopped, 0, None),
    ];
    let volumes = vec![
        volume("carts", Mode::Filesystem, Life::Announced, 312 << 20, 1 << 30),
        volume("orders-0", Mode::Block, Life::Announced, 4 << 30, 4 << 30),
        volume("sessions", Mode::Filesystem, Life::Announced, 245 << 20, 256 << 20),
        volume("uploads", Mode::Filesystem, Life::Staged, 0, 20 << 30),
        volume("yesterday", Mode::Filesystem, Life::Retired, 1 << 30, 2 << 30),
    ];
    let closed = vec![Closed { id: id("broken"), reason: "the record is not valid JSON".to_owned() }];
    let orphans = vec![Orphans { kind: "volume".to_owned(), found: 2 }];
    Page {
        node: "granary-1".to_owned(),
        now: Duration::from_secs(NOW),
        uptime: Duration::from_secs(93_784),
        versions: Versions {
            granary: "0.1.0".to_owned(),
            kernel: Kernel {
                release: "6.12.117+deb12-amd64".to_owned(),
                version: "#1 SMP PREEMPT_DYNAMIC Debian 6.12.117-1~deb12u1 (2026-11-14)".to_owned(),
                age: Some(Duration::from_secs(28 * 86_400)),
            },
            kubernetes: Some("v1.36.3".to_owned()),
            container_runtime: Some("containerd://2.2.1".to_owned()),
        },
        services,
        disk_faults: Vec::new(),
        storage: Some(Storage::new(disk(32), volumes, closed, orphans)),
        mesh: Some(Mesh::new(vec![peer(2, Some(72)), peer(3, Some(4000)), peer(4, None)])),
        clock: Clock::Synchronized { server: "10.0.2.2".into(), offset_us: -1730, ago: Duration::from_secs(65) },
        certificates: vec![certificate("apiserver", 300), certificate("etcd", 20), certificate("kubelet", -1)],
        warnings: vec![
            warning(Severity::Error, "provisioner::sweep", "volume has data and no PV; it is kept volume=pvc-lost", 1),
            warning(Severity::Warning, "kube-proxy", "can't reach <the API server> & co", 12),
        ],
    }
}

/// A new node without problems and volumes.
pub fn fresh() -> Page {
    let mut page = example();
    page.services.retain(Service::is_ready);
    page.storage = Some(Storage::new(disk(0), Vec::new(), Vec::new(), Vec::new()));
    page.mesh = Some(Mesh::new(Vec::new()));
    page.clock = Clock::Alone;
    page.versions.kubernetes = None;
    page.certificates.clear();
    page.warnings.clear();
    page
}

/// The page of a node whose data disk and mesh cannot be read.
pub fn unreadable() -> Page {
    let disk_faults = vec!["XFS has shut the file system down".to_owned()];
    Page { disk_faults, storage: None, mesh: Some(Mesh::default()), ..example() }
}

/// A volume name like those that the provisioner derives from a claim's UID.
pub(crate) fn id(claim: &str) -> String {
    let number = claim.bytes().fold(0x5bd1_e995_u32, |number, byte| number.rotate_left(5) ^ u32::from(byte));
    format!("pvc-{number:08x}-3ec7-470e-9cf6-02a8{number:08x}")
}

pub(crate) fn disk(allocated: u64) -> Disk {
    let gib = |count: u64| Bytes::new(count << 30);
    Disk {
        size: gib(112),
        reserve: gib(12),
        allocatable: gib(100),
        allocated: gib(allocated),
        free: gib(100 - allocated),
    }
}

pub(crate) fn service(path: &str, state: State, restarts: u32, last_failure: Option<&str>) -> Service {
    Service {
        path: path.to_owned(),
        name: path.rsplit('.').next().unwrap_or_default().to_owned(),
        depth: path.matches('.').count(),
        state,
        since: Duration::from_secs(if restarts > 0 { 42 } else { 93_723 }),
        restarts,
        last_failure: last_failure.map(str::to_owned),
        stalled: None,
    }
}

pub(crate) fn volume(claim: &str, mode: Mode, life: Life, used: u64, limit: u64) -> Volume {
    let (used, limit) = (Bytes::new(used), Bytes::new(limit));
    let inodes = (mode == Mode::Filesystem).then_some(Inodes { limit: limit.get() / 2048, used: used.get() / 65_536 });
    let condition = Condition::of(life, mode, [used, limit], inodes);
    Volume {
        id: id(claim),
        namespace: "shop".to_owned(),
        claim: claim.to_owned(),
        mode,
        limit,
        used,
        inodes,
        condition,
    }
}

pub(crate) fn peer(number: u8, seconds_ago: Option<u64>) -> Peer {
    let traffic = Bytes::new((u64::from(number) * seconds_ago.unwrap_or_default()) << 20);
    Peer {
        node: Some(format!("granary-{number}")),
        key: format!("{number:03}hi1TYfzLyvWW6G2Ow6Z4EVeXk3kYtP1Y5aeYpXk0="),
        endpoint: Some(format!("192.0.2.{number}:7838")),
        pods: vec![format!("10.244.{number}.0/24")],
        handshake: seconds_ago.map(Duration::from_secs),
        received: traffic,
        sent: Bytes::new(traffic.get() / 3),
    }
}

pub(crate) fn certificate(name: &str, days: i64) -> Certificate {
    Certificate { name: name.to_owned(), expires: i64::try_from(NOW).unwrap_or_default() + days * DAY }
}

pub(crate) fn warning(severity: Severity, source: &str, text: &str, count: u64) -> Warning {
    let (source, text) = (source.to_owned(), text.to_owned());
    Warning { severity, source, text, count, ago: Duration::from_secs(4 + count * 60) }
}
