//! etcd: one member, on loopback.

use units::Bytes;

use crate::config::Durability;
use crate::program::{Program, Service};
use crate::{Config, ready};

const CLIENTS: &str = "http://127.0.0.1:2379";

/// What the log takes: segments of 64 MB, each allocated before it is used. Two that are kept, the one
/// that is written, the next.
const LOG: Bytes = Bytes::new(256 << 20);

/// How large the database may be in a directory of this size. A full database is refused by etcd, and
/// can be read and emptied; a full disk ends the program.
fn database(directory: Bytes) -> Bytes {
    directory.saturating_sub(LOG).max(Bytes::new(directory.get() / 4))
}

/// Healthy when it takes requests.
pub fn service(config: &Config) -> Service {
    program(config).service(&config.paths, || ready::http(2379, "/health"))
}

fn program(config: &Config) -> Program {
    let mut arguments = vec![
        format!("--data-dir={}", config.paths.etcd.display()),
        format!("--listen-client-urls={CLIENTS}"),
        format!("--advertise-client-urls={CLIENTS}"),
        "--listen-peer-urls=http://127.0.0.1:2380".into(),
        "--log-level=warn".into(),
        format!("--quota-backend-bytes={}", database(config.disk.etcd).get()),
        // No other member waits for what is older. A segment goes when a snapshot stands for it.
        "--max-wals=2".into(),
        "--snapshot-count=1000".into(),
    ];
    match config.durability {
        Durability::Durable => {}
        Durability::UnsafeNoFsync => arguments.push("--unsafe-no-fsync".into()),
    }
    // etcd complains about a directory that others may read.
    Program { name: "etcd", arguments, directories: vec![(config.paths.etcd.clone(), 0o700)], ..Program::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::example;

    #[test]
    fn only_a_test_that_asks_gets_an_etcd_without_fsync() {
        let unsafe_flag = |config: &Config| program(config).arguments.iter().any(|flag| flag == "--unsafe-no-fsync");
        assert!(!unsafe_flag(&example()));
        assert!(unsafe_flag(&Config { durability: Durability::UnsafeNoFsync, ..example() }));
    }

    #[test]
    fn the_database_and_the_log_fit_into_the_directory() {
        for mib in [480_u64, 1 << 10, 3 << 10] {
            let directory = Bytes::new(mib << 20);
            assert!(database(directory).saturating_add(LOG) <= directory, "{directory}");
        }
        // The smallest disk has three segments of 64 MB.
        let smallest = Bytes::new(256 << 20);
        assert!(database(smallest) <= smallest.saturating_sub(Bytes::new(3 * 64_000_000)));
        let expected = format!("--quota-backend-bytes={}", (480_u64 - 256) << 20);
        assert!(program(&example()).arguments.contains(&expected));
    }

    #[test]
    fn it_listens_on_loopback_only() {
        for flag in program(&example()).arguments.iter().filter(|flag| flag.contains("http")) {
            assert!(flag.contains("http://127.0.0.1:"), "{flag}");
        }
    }
}
