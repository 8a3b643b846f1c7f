//! Keeps the cluster's networks as they were at its creation. etcd stores the addresses of Services and Nodes, which
//! would be outside of another network.

use std::path::PathBuf;

use ipnet::Ipv4Net;
use nix::sys::stat::Mode;
use serde_json::{Value, json};

use crate::Config;
use crate::pki::store::{PkiError, Store};

const RECORD: &str = "networks.json";

#[derive(Debug, thiserror::Error)]
pub enum NetworksError {
    #[error(transparent)]
    Disk(#[from] PkiError),
    #[error(
        "the cluster on the data disk was created with {field} {kept}, but the configuration has {configured}: set the \
         field to {kept}, or use an empty data disk for a new cluster"
    )]
    Changed { field: &'static str, kept: String, configured: Ipv4Net },
    #[error("{} does not name the networks; remove it if the configured networks are unchanged", .path.display())]
    Record { path: PathBuf },
}

/// Compares the configured networks with the stored ones. The first start stores them, durably when this returns. Waits
/// for the disk.
pub fn keep(config: &Config) -> Result<(), NetworksError> {
    let configured = [
        ("controlPlane.podNetwork", "pods", config.cluster_pods),
        ("controlPlane.serviceNetwork", "services", config.services),
    ];
    let store = Store::create(&config.paths.pki)?;
    let Some(text) = store.read(RECORD)? else {
        let record: Value =
            configured.iter().map(|(_, key, network)| ((*key).to_owned(), json!(network.to_string()))).collect();
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        return Ok(store.write(RECORD, &record.to_string(), mode)?);
    };
    let record: Value = serde_json::from_str(&text).unwrap_or_default();
    for (field, key, configured) in configured {
        let kept = record[key].as_str().ok_or_else(|| NetworksError::Record { path: config.paths.pki.join(RECORD) })?;
        if kept != configured.to_string() {
            return Err(NetworksError::Changed { field, kept: kept.to_owned(), configured });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_cluster_keeps_its_networks() {
        let scratch = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.paths.pki = scratch.path().join("pki");
        keep(&config).unwrap();
        keep(&config).unwrap();
        let before = fs::read(config.paths.pki.join(RECORD)).unwrap();
        let mut other = config.clone();
        other.services = "10.97.0.0/16".parse().unwrap();
        let error = keep(&other).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the cluster on the data disk was created with controlPlane.serviceNetwork 10.96.0.0/16, but the \
             configuration has 10.97.0.0/16: set the field to 10.96.0.0/16, or use an empty data disk for a new cluster"
        );
        assert_eq!(fs::read(config.paths.pki.join(RECORD)).unwrap(), before);
    }

    #[test]
    fn a_record_that_says_nothing_is_named() {
        let scratch = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.paths.pki = scratch.path().to_path_buf();
        fs::write(scratch.path().join(RECORD), "{}").unwrap();
        let error = keep(&config).unwrap_err().to_string();
        assert!(error.contains(RECORD), "{error}");
    }
}
