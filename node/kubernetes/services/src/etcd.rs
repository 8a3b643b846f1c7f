//! etcd: one member, on loopback.

use crate::config::Durability;
use crate::program::{Program, Service};
use crate::{Config, ready};

const CLIENTS: &str = "http://127.0.0.1:2379";

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
    fn it_listens_on_loopback_only() {
        for flag in program(&example()).arguments.iter().filter(|flag| flag.contains("http")) {
            assert!(flag.contains("http://127.0.0.1:"), "{flag}");
        }
    }
}
