//! etcd: one member on loopback. It accepts only certificates that name a client of etcd.
//!
//! Loopback alone does not protect etcd, because pods in the host's network can connect to it.

use units::Bytes;

use crate::config::Durability;
use crate::headroom::Headroom;
use crate::pki::certificate::ETCD_CLIENT;
use crate::pki::store;
use crate::program::{Program, Service};
use crate::{Config, Rights, User, ready};

pub(crate) const CLIENTS: &str = "https://127.0.0.1:2379";

/// Peer URL. The cluster has one member, so no peer connects.
const PEERS: &str = "https://127.0.0.1:2380";

/// Port of health and metrics, on loopback.
pub(crate) const HEALTH_PORT: u16 = 2381;

/// Ports of clients, of health and metrics, and of members, all on loopback.
pub const PORTS: [u16; 3] = [2379, HEALTH_PORT, 2380];

/// Path that returns 200 if etcd has no alarm and can read.
pub(crate) const HEALTH: &str = "/health";

/// Like [`HEALTH`], but also returns 200 with the alarm of a full database (etcd's
/// `server/etcdserver/api/etcdhttp/health.go`). The alarm outlives a restart, and only a client of a running etcd can
/// disarm it.
const READINESS: &str = "/health?exclude=NOSPACE";

/// Space for the log and the headroom file. The log has up to four segments of 64 MB, each allocated before it is used:
/// two that are kept, the current one, and the next one.
const LOG: Bytes = Bytes::new(256 << 20);

/// Maximum size of the database in a directory of this size. If the database is full, etcd rejects writes, but clients
/// can read and delete objects. If the disk is full, etcd ends.
fn database(directory: Bytes) -> Bytes {
    directory.saturating_sub(LOG).max(Bytes::new(directory.get() / 4))
}

pub fn service(config: &Config) -> Service {
    let service = program(config).service(&config.paths, || ready::http(HEALTH_PORT, READINESS));
    Headroom::of(config.paths.etcd.clone()).with(service)
}

pub(crate) fn program(config: &Config) -> Program {
    let file = |name, extension| store::file(&config.paths.pki, name, extension).display().to_string();
    let (ca, certificate, key) = (file("ca", "crt"), file("etcd", "crt"), file("etcd", "key"));
    let mut arguments = vec![
        format!("--data-dir={}", config.paths.etcd.display()),
        format!("--listen-client-urls={CLIENTS}"),
        format!("--advertise-client-urls={CLIENTS}"),
        "--client-cert-auth=true".into(),
        format!("--client-cert-allowed-hostname={ETCD_CLIENT}"),
        format!("--trusted-ca-file={ca}"),
        format!("--cert-file={certificate}"),
        format!("--key-file={key}"),
        // HTTP has a separate port, because gRPC behind Go's HTTP server is slow, and with TLS starves watches.
        format!("--listen-client-http-urls=http://127.0.0.1:{HEALTH_PORT}"),
        // The gateway would serve objects on the health port, without a certificate.
        "--enable-grpc-gateway=false".into(),
        format!("--listen-peer-urls={PEERS}"),
        format!("--initial-advertise-peer-urls={PEERS}"),
        format!("--initial-cluster=default={PEERS}"),
        // Only etcd's own certificate has this name, and it is not valid for clients, so no peer can connect.
        "--peer-client-cert-auth=true".into(),
        "--peer-cert-allowed-cn=etcd".into(),
        format!("--peer-trusted-ca-file={ca}"),
        format!("--peer-cert-file={certificate}"),
        format!("--peer-key-file={key}"),
        "--log-level=warn".into(),
        format!("--quota-backend-bytes={}", database(config.disk.etcd).get()),
        // No other member needs older segments. etcd deletes a segment when a snapshot replaces it.
        "--max-wals=2".into(),
        "--snapshot-count=1000".into(),
        // The API server sends a watch a bookmark each minute if etcd has reported progress since the watch began.
        "--watch-progress-notify-interval=20s".into(),
        // Heartbeats have no receiver, and each interval wakes etcd. An election timeout must have at least five
        // intervals. The timeout is etcd's default, so that a started member becomes the leader as soon as by default.
        "--heartbeat-interval=200".into(),
        "--election-timeout=1000".into(),
    ];
    match config.durability {
        Durability::Durable => {}
        Durability::UnsafeNoFsync => arguments.push("--unsafe-no-fsync".into()),
    }
    let rights = Rights {
        owns: vec![config.paths.etcd.clone()],
        ..Rights::new(User::Etcd, [store::file(&config.paths.pki, "etcd", "key")])
    };
    Program { name: User::Etcd.program(), arguments, rights: Some(rights), ..Program::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headroom;

    #[test]
    fn only_a_test_that_asks_gets_an_etcd_without_fsync() {
        let unsafe_flag = |config: &Config| program(config).arguments.iter().any(|flag| flag == "--unsafe-no-fsync");
        assert!(!unsafe_flag(&Config::default()));
        assert!(unsafe_flag(&Config { durability: Durability::UnsafeNoFsync, ..Config::default() }));
    }

    #[test]
    fn the_database_and_the_log_fit_into_the_directory() {
        for mib in [480_u64, 1 << 10, 3 << 10] {
            let directory = Bytes::new(mib << 20);
            assert!(database(directory).saturating_add(LOG) <= directory, "{directory}");
        }
        // The smallest disk has three segments of 64 MB.
        let smallest = Bytes::new(256 << 20);
        let beside = Bytes::new(3 * 64_000_000).saturating_add(headroom::SIZE);
        assert!(database(smallest) <= smallest.saturating_sub(beside));
        assert!(LOG >= Bytes::new(4 * 64_000_000).saturating_add(headroom::SIZE));
        let expected = format!("--quota-backend-bytes={}", (480_u64 - 256) << 20);
        assert!(program(&Config::default()).arguments.contains(&expected));
    }

    /// etcd does not start with an election timeout of less than five heartbeat intervals.
    #[test]
    fn an_election_timeout_has_the_fewest_ticks_that_etcd_allows() {
        let arguments = program(&Config::default()).arguments;
        let milliseconds = |flag: &str| -> u64 {
            arguments.iter().find_map(|argument| argument.strip_prefix(flag)).unwrap().parse().unwrap()
        };
        assert_eq!(milliseconds("--election-timeout="), 1000);
        assert_eq!(5 * milliseconds("--heartbeat-interval="), 1000);
    }

    /// Otherwise all pods in the host's network could read and write every object.
    #[test]
    fn only_its_health_is_served_without_a_certificate() {
        let arguments = program(&Config::default()).arguments;
        let listens: Vec<&str> = arguments
            .iter()
            .filter_map(|flag| flag.strip_prefix("--listen-")?.split_once('='))
            .map(|flag| flag.1)
            .collect();
        assert_eq!(listens, [CLIENTS, "http://127.0.0.1:2381", PEERS]);
        let ports = listens.iter().filter_map(|url| url.rsplit(':').next()?.parse().ok());
        assert_eq!(ports.collect::<Vec<u16>>(), PORTS);
        for wanted in ["--client-cert-auth=true", "--peer-client-cert-auth=true"] {
            assert!(arguments.iter().any(|flag| flag == wanted), "{wanted}");
        }
        for flag in ["--trusted-ca-file=", "--peer-trusted-ca-file="] {
            assert!(arguments.contains(&format!("{flag}/data/pki/ca.crt")), "{flag}: {arguments:?}");
        }
    }
}
