//! The services' configuration in the tests of this crate.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;

use cluster::{API_PORT, PodProcesses, PodSecurity, SecretKey, SecretStorage};
use programs::{Config, Disk, Durability, Paths};
use units::Bytes;

use crate::mesh;

pub(crate) fn services(pki: &Path) -> Config {
    Config {
        node: "granary".to_owned(),
        address: Ipv4Addr::new(10, 0, 2, 15),
        api_server: SocketAddrV4::new(Ipv4Addr::new(10, 0, 2, 15), API_PORT),
        services: "10.96.0.0/16".parse().unwrap(),
        cluster_pods: "10.244.0.0/16".parse().unwrap(),
        mesh: mesh::of_uplink(1500),
        durability: Durability::Durable,
        pod_security: PodSecurity::default(),
        secret_storage: SecretStorage::default(),
        secret_key: SecretKey::default(),
        pod_processes: PodProcesses::default(),
        images: Default::default(),
        disk: Disk { size: Bytes::GIB, etcd: Bytes::MIB, pods: Bytes::MIB, audit: Bytes::MIB },
        paths: Paths { pki: pki.to_owned(), etcd: pki.with_extension("etcd"), ..Paths::default() },
    }
}
