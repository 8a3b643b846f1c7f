//! The contents of this node's status pages. The crate `status` renders them and controls access.

use std::error::Error;
use std::iter;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cluster::STATUS_PORT;
use k8s_openapi::api::core::v1::NodeSystemInfo;
use programs::PublicCertificates;
use prometheus::Registry;
use prometheus::proto::MetricFamily;
use status::{
    Closed, Condition, Disk, Inodes, Life, Orphans, Page, PublicFile, Recent, Service, Source, Storage, Versions,
};
use supervisor::{BoxError, Context};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tracing::warn;
use units::Bytes;
use volume::{Mode, Records, Space, State, VolumeId, VolumeUsage, Volumes};

use crate::certificates::CertificateStatus;
use crate::error::StepError;
use crate::host::uptime_ms;
use crate::kernel::Kernel;
use crate::mesh::Mesh;
use crate::metrics;

/// Metric with the number of orphans by kind. Only the provisioner compares the disk with the cluster.
const ORPHANS: &str = "granary_orphans";

const _: () = assert!(status::ALMOST_FULL == cluster::ALMOST_FULL);

#[derive(Clone)]
pub struct Facts {
    pub node: String,
    pub volumes: Arc<dyn Volumes>,
    pub registry: Registry,
    pub recent: Recent,
    pub paths: programs::Paths,
    pub keeper: Arc<clock::Keeper>,
    pub certificates: watch::Receiver<CertificateStatus>,
    pub mesh: Arc<Mesh>,
    pub kubernetes: Arc<OnceLock<Kubernetes>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubernetes {
    pub version: String,
    pub container_runtime: String,
}

impl From<NodeSystemInfo> for Kubernetes {
    fn from(system: NodeSystemInfo) -> Self {
        Self { version: system.kubelet_version, container_runtime: system.container_runtime_version }
    }
}

/// Serves the status on the node's address `own`, also to the API server at `server` if another node runs it, until
/// cancelled. Healthy when it listens.
pub async fn run(cx: Context, own: Ipv4Addr, server: Option<Ipv4Addr>, facts: Facts) -> Result<(), StepError> {
    let address = SocketAddr::from((own, STATUS_PORT));
    let listener = TcpListener::bind(address).await.map_err(StepError::of(format!("cannot listen on {address}")))?;
    cx.healthy();
    let node = Arc::new(Node { tree: cx.clone(), facts });
    tokio::select! {
        () = cx.cancelled() => {}
        () = status::serve(&listener, status::Audience::Node { own, server }, node) => {}
    }
    Ok(())
}

struct Node {
    tree: Context,
    facts: Facts,
}

impl Source for Node {
    fn services(&self) -> Vec<Service> {
        let mut services = status::services(&self.tree.tree());
        for failure in services.iter_mut().filter_map(|service| service.last_failure.as_mut()) {
            *failure = nodelog::redact(failure).into_owned();
        }
        services
    }

    fn public(&self) -> Vec<PublicFile> {
        public_files(&self.facts.certificates.borrow().public)
    }

    fn page(&self) -> Option<Page> {
        let Facts { node, volumes, recent, keeper, certificates, mesh, kubernetes, registry, .. } = &self.facts;
        let storage = Found::look(&**volumes).map(|found| found.into_storage(orphans(&registry.gather())));
        let storage = storage.inspect_err(|error| {
            warn!(error = causes::of(&**error), "cannot read the disk, the status page omits it");
        });
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Some(Page {
            node: node.clone(),
            now,
            uptime: Duration::from_millis(uptime_ms()),
            versions: versions(now, kubernetes.get()),
            services: self.services(),
            disk_faults: disk_faults(&**volumes),
            storage: storage.ok(),
            mesh: mesh.status(),
            clock: clock(keeper.state().borrow().clone(), keeper.servers()),
            certificates: certificates.borrow().expiries.iter().map(certificate).collect(),
            warnings: recent.warnings(),
        })
    }

    fn metrics(&self) -> Result<String, BoxError> {
        let Facts { registry, keeper, certificates, paths, .. } = &self.facts;
        let (clock, kept) = (keeper.state().borrow().clone(), certificates.borrow().clone());
        let own = metrics::collectors(&clock, &kept.expiries, &programs::out_of_memory(paths))?;
        Ok(status::metrics(registry, &self.services(), own)?)
    }
}

/// Path of the certificate of an administrator, whose name is a DNS label.
pub(crate) fn administrator_path(name: &str) -> String {
    format!("/administrators/{name}.crt")
}

/// Without administrators, the port serves no files to other machines.
fn public_files(certificates: &PublicCertificates) -> Vec<PublicFile> {
    let administrators = certificates.administrators.iter();
    let mut files: Vec<_> = administrators
        .map(|one| PublicFile { path: administrator_path(&one.name), certificate: one.certificate.clone() })
        .collect();
    if !files.is_empty() {
        files.push(PublicFile { path: "/ca.crt".to_owned(), certificate: certificates.ca.clone() });
    }
    files
}

/// Consistent with the metric `granary_clock_synchronized`: a server that is lost is reported as unsynchronized.
fn clock(state: clock::ClockState, servers: &[SocketAddr]) -> status::Clock {
    match (state.last, state.problem, servers) {
        (None, None, []) => status::Clock::Alone,
        (Some(last), None, _) => status::Clock::Synchronized {
            server: last.server.ip().to_string(),
            offset_us: last.sample.offset / 1000,
            ago: last.at.elapsed(),
        },
        (last, problem, servers) => {
            let servers: Vec<String> = servers.iter().map(|server| server.ip().to_string()).collect();
            status::Clock::Unsynchronized {
                server: servers.join(", "),
                reason: problem.as_deref().unwrap_or("no answer yet").to_owned(),
                ago: last.map(|last| last.at.elapsed()),
            }
        }
    }
}

fn certificate(expiry: &programs::Expiry) -> status::Certificate {
    status::Certificate { name: expiry.name.to_owned(), expires: expiry.at.unix_timestamp() }
}

fn versions(now: Duration, kubernetes: Option<&Kubernetes>) -> Versions {
    let kernel = Kernel::running().map(|kernel| {
        let age = kernel.age(now);
        status::Kernel { release: kernel.release, version: kernel.version, age }
    });
    Versions {
        granary: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: kernel.unwrap_or_default(),
        kubernetes: kubernetes.map(|kubernetes| kubernetes.version.clone()),
        container_runtime: kubernetes.map(|kubernetes| kubernetes.container_runtime.clone()),
    }
}

fn disk_faults(volumes: &dyn Volumes) -> Vec<String> {
    match volumes.faults() {
        Ok(faults) => faults.iter().map(ToString::to_string).collect(),
        Err(error) => {
            warn!(error = causes::of(&error), "cannot read the faults of the disk, the status page omits them");
            Vec::new()
        }
    }
}

fn orphans(families: &[MetricFamily]) -> Vec<Orphans> {
    let counted = families.iter().filter(|family| family.name() == ORPHANS).flat_map(MetricFamily::get_metric);
    counted
        .filter_map(|metric| {
            let kind = metric.get_label().first()?.value().to_owned();
            // The gauge stores an integer count as a float.
            let found = metric.get_gauge().get_value() as u64;
            (found > 0).then_some(Orphans { kind, found })
        })
        .collect()
}

struct Found {
    space: Space,
    volumes: Vec<VolumeUsage>,
    retired: Vec<VolumeId>,
    records: Records,
}

impl Found {
    fn look(store: &dyn Volumes) -> Result<Self, BoxError> {
        Ok(Self {
            space: store.space()?,
            volumes: store.usage()?,
            retired: store.retired()?,
            records: store.records()?,
        })
    }

    fn into_storage(self, orphans: Vec<Orphans>) -> Storage {
        let Self { space, volumes, retired, records } = self;
        let allocatable = space.overcommit.of(space.size).saturating_sub(space.reserve);
        let Space { size, reserved, reserve, .. } = space;
        let disk = Disk { size, reserve, allocatable, allocated: reserved, free: space.free() };
        let volumes = volumes.iter().map(|volume| volume_status(volume, retired.contains(&volume.id))).collect();
        let closed =
            records.unreadable.iter().map(|(id, reason)| Closed { id: id.to_string(), reason: chain(reason, ": ") });
        Storage::new(disk, volumes, closed.collect(), orphans)
    }
}

fn volume_status(volume: &VolumeUsage, is_retired: bool) -> status::Volume {
    let VolumeUsage { id, record, used, changed } = volume;
    let life = match record.state {
        _ if is_retired => Life::Retired,
        State::Staged => Life::Staged,
        State::Complete => Life::Complete,
        State::Announced => Life::Announced,
    };
    let (mode, inodes) = match record.mode {
        Mode::Filesystem { inodes } => {
            (status::Mode::Filesystem, Some(Inodes { limit: inodes.get(), used: used.inodes.get() }))
        }
        Mode::Block { .. } => (status::Mode::Block, None),
        Mode::Snapshot { .. } | Mode::SnapshotTree { .. } => (status::Mode::Snapshot, None),
    };
    let bytes: [Bytes; 2] = [used.bytes, record.size];
    status::Volume {
        id: id.to_string(),
        namespace: record.claim.namespace.clone(),
        claim: record.claim.name.clone(),
        mode,
        limit: record.size,
        used: used.bytes,
        inodes,
        condition: if changed.is_some() { Condition::LimitsChanged } else { Condition::of(life, mode, bytes, inodes) },
    }
}

pub fn chain(error: &(dyn Error + 'static), separator: &str) -> String {
    let errors = iter::successors(Some(error), |&error| error.source());
    errors.map(ToString::to_string).collect::<Vec<_>>().join(separator)
}

#[cfg(test)]
mod tests {
    use envtest::{FakeVolumes, faults_of_each_kind};
    use prometheus::{IntGaugeVec, Opts};
    use supervisor::{Settings, Supervisor};
    use volume::{Allocation, Claim, Owner, Record, Sharing};

    use super::*;

    fn record(name: &str, mode: Mode, state: State) -> Record {
        Record {
            claim: Claim { uid: name.to_owned(), namespace: "shop".to_owned(), name: name.to_owned() },
            owner: Owner::Provisioner,
            class: "local".to_owned(),
            mode,
            size: Bytes::MIB,
            project: fsquota::ProjectId::new(7).unwrap(),
            cloning: None,
            io: volume::IoLimits::NONE,
            state,
        }
    }

    fn volume(name: &str) -> VolumeId {
        format!("pvc-{name}").parse().unwrap()
    }

    async fn page(volumes: FakeVolumes, registry: Registry) -> Page {
        let services = crate::example::services("/nowhere".as_ref());
        let facts = Facts {
            node: "granary".to_owned(),
            volumes: Arc::new(volumes),
            registry,
            recent: Recent::default(),
            paths: programs::Paths::default(),
            keeper: Arc::new(clock::Keeper::new(Vec::new(), clock::Kernel)),
            certificates: watch::Sender::default().subscribe(),
            mesh: Arc::new(Mesh::new(&services, &Registry::new())),
            kubernetes: Arc::default(),
        };
        let (give, tree) = tokio::sync::oneshot::channel();
        let give = std::sync::Mutex::new(Some(give));
        let root = Supervisor::start("granary", Settings::default(), move |cx| {
            let _ = give.lock().unwrap().take().map(|give| give.send(cx.clone()));
            async move {
                cx.cancelled().await;
                Ok::<_, StepError>(())
            }
        });
        let page = Node { tree: tree.await.unwrap(), facts }.page().unwrap();
        root.stop(Duration::from_secs(5)).await.unwrap();
        page
    }

    #[tokio::test]
    async fn the_page_shows_every_volume_on_the_disk() {
        let volumes = FakeVolumes::with_size(Bytes::GIB);
        let filesystem = Mode::Filesystem { inodes: units::Inodes::new(64) };
        volumes.put(&volume("data"), record("data", filesystem, State::Announced));
        volumes.put(&volume("disk"), record("disk", Mode::Block { allocation: Allocation::Thick }, State::Staged));
        let page = page(volumes, Registry::new()).await;
        let storage = page.storage.unwrap();
        assert_eq!(storage.disk.size, Bytes::GIB);
        let found: Vec<_> = storage
            .volumes
            .iter()
            .map(|volume| (&*volume.claim, volume.mode, volume.condition, volume.inodes.is_some()))
            .collect();
        assert_eq!(
            found,
            [
                ("disk", status::Mode::Block, Condition::Staged, false),
                ("data", status::Mode::Filesystem, Condition::Fine, true),
            ]
        );
        assert_eq!(page.services[0].path, "granary");
        assert!(page.now > Duration::from_secs(1_700_000_000));
        assert_ne!(page.versions.kernel.release, "");
    }

    #[tokio::test]
    async fn the_page_shows_faults_of_the_disk_and_changed_limits() {
        let volumes = FakeVolumes::with_size(Bytes::GIB);
        let filesystem = Mode::Filesystem { inodes: units::Inodes::new(64) };
        volumes.put(&volume("data"), record("data", filesystem, State::Announced));
        volumes.set_changed(&volume("data"), fsquota::Limits::default());
        volumes.set_faults(faults_of_each_kind());
        let page = page(volumes, Registry::new()).await;
        assert_eq!(page.storage.unwrap().volumes[0].condition, Condition::LimitsChanged);
        assert_eq!(
            page.disk_faults,
            [
                "XFS has shut the file system down",
                "counters or quota records of the file system are damaged",
                "metadata in allocation groups of the file system is damaged: 2, the first is 5",
                "7 requests to the disk failed with medium or I/O errors",
                "the controller of the disk warns about nvme0n1: three warnings",
            ]
        );
    }

    #[tokio::test]
    async fn the_page_shows_which_snapshots_are_not_ready_or_share_blocks() {
        let volumes = FakeVolumes::with_size(Bytes::GIB);
        let (taken, inodes) = (UNIX_EPOCH, units::Inodes::new(64));
        let image = |sharing| Mode::Snapshot { taken, sharing };
        let tree = Mode::SnapshotTree { taken, inodes, sharing: Sharing::Temporary };
        for (name, mode, state) in [
            ("complete-image", image(Sharing::Temporary), State::Complete),
            ("complete-tree", tree, State::Complete),
            ("ready", image(Sharing::Temporary), State::Announced),
            ("staged-image", image(Sharing::Temporary), State::Staged),
            ("staged-tree", tree, State::Staged),
            ("thin", image(Sharing::Permanent), State::Announced),
        ] {
            volumes.put(&volume(name), record(name, mode, state));
        }
        let storage = page(volumes, Registry::new()).await.storage.unwrap();
        let found: Vec<_> = storage.volumes.iter().map(|volume| (&*volume.claim, volume.condition.as_str())).collect();
        assert_eq!(
            found,
            [
                ("staged-image", "not ready"),
                ("staged-tree", "not ready"),
                ("complete-image", "blocks being copied"),
                ("complete-tree", "blocks being copied"),
                ("ready", "fine"),
                ("thin", "fine"),
            ]
        );
    }

    #[tokio::test]
    async fn orphans_are_those_of_the_metric() {
        let registry = Registry::new();
        let gauge = IntGaugeVec::new(Opts::new(ORPHANS, "Orphans."), &["kind"]).unwrap();
        registry.register(Box::new(gauge.clone())).unwrap();
        gauge.with_label_values(&["pv"]).set(2);
        gauge.with_label_values(&["volume"]).set(0);
        let storage = page(FakeVolumes::with_size(Bytes::GIB), registry).await.storage.unwrap();
        assert_eq!(storage.orphans, [Orphans { kind: "pv".to_owned(), found: 2 }]);
    }

    #[test]
    fn a_time_server_that_is_lost_is_not_shown_as_good() {
        let server = SocketAddr::from(([10, 0, 2, 2], 123));
        let sample = clock::Sample { offset: -3_000_000, delay: 0, leap: clock::Leap::None };
        let answered = Some(clock::Comparison { server, sample, at: std::time::Instant::now() });
        let clock = |last, problem: Option<&str>, servers: &[SocketAddr]| {
            clock(clock::ClockState { last, problem: problem.map(Into::into), ..clock::ClockState::default() }, servers)
        };
        assert_eq!(clock(None, None, &[]), status::Clock::Alone);
        assert!(matches!(
            clock(answered, None, &[server]),
            status::Clock::Synchronized { server, offset_us: -3000, .. } if server == "10.0.2.2"
        ));
        assert!(matches!(
            clock(answered, Some("silence"), &[server]),
            status::Clock::Unsynchronized { server, reason, ago: Some(_) } if server == "10.0.2.2" && reason == "silence"
        ));
        let never = |reason: &str| status::Clock::Unsynchronized {
            server: "10.0.2.2".to_owned(),
            reason: reason.to_owned(),
            ago: None,
        };
        assert_eq!(clock(None, Some("silence"), &[server]), never("silence"));
        assert_eq!(clock(None, None, &[server]), never("no answer yet"));
    }

    const REQUEST: &str = include_str!("../../cluster/src/administrator/p256.csr");

    #[test]
    fn only_a_node_with_administrators_publishes_certificates() {
        let scratch = tempfile::tempdir().unwrap();
        let mut services = crate::example::services(&scratch.path().join("pki"));
        let ensure = |services: &programs::Config| {
            let credentials = programs::Credentials::ensure(services, time::OffsetDateTime::now_utc()).unwrap();
            public_files(&credentials.public())
        };
        assert_eq!(ensure(&services), []);
        services.settings.administrators = vec![REQUEST.parse().unwrap()];
        let files = ensure(&services);
        let paths: Vec<&str> = files.iter().map(|file| &*file.path).collect();
        assert_eq!(paths, ["/administrators/alice.crt", "/ca.crt"]);
        assert!(files.iter().all(|file| file.certificate.starts_with("-----BEGIN CERTIFICATE-----")), "{files:?}");
        let ca = std::fs::read_to_string(services.paths.pki.join("ca.crt")).unwrap();
        assert_eq!(files[1].certificate, ca);
    }

    #[test]
    fn the_metric_of_orphans_is_there() {
        let registry = Registry::new();
        let volumes = Arc::new(FakeVolumes::with_size(Bytes::GIB));
        let _metrics = provisioner::Metrics::register(&registry, volumes).unwrap();
        let names: Vec<String> = registry.gather().iter().map(|family| family.name().to_owned()).collect();
        assert!(names.iter().any(|name| name == ORPHANS), "{names:?}");
    }
}
