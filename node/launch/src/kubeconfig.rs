//! The administrator's kubeconfig, as it is used from outside of the guest.

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The kubeconfig cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// It is no kubeconfig.
    #[error("the node announced a kubeconfig that cannot be read")]
    Parse(#[source] serde_json::Error),
    /// It lacks something.
    #[error("the node announced a kubeconfig that is not complete")]
    Incomplete(#[source] kube::config::KubeconfigError),
    /// No client can be made from it.
    #[error("the node announced a kubeconfig with unusable certificates")]
    Client(#[source] Box<kube::Error>),
    /// It cannot be written.
    #[error("cannot write {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
}

/// Puts the forwarded port in place of the guest's own address.
pub(crate) fn from_outside(announced: &str, port: u16) -> Result<serde_json::Value, KubeconfigError> {
    let mut kubeconfig: serde_json::Value = serde_json::from_str(announced).map_err(KubeconfigError::Parse)?;
    let clusters = kubeconfig.get_mut("clusters").and_then(serde_json::Value::as_array_mut);
    for cluster in clusters.into_iter().flatten() {
        if let Some(cluster) = cluster.get_mut("cluster").and_then(serde_json::Value::as_object_mut) {
            cluster.insert("server".to_owned(), format!("https://127.0.0.1:{port}").into());
        }
    }
    Ok(kubeconfig)
}

/// Writes it for `kubectl`, readable by its owner only: it holds a key.
pub(crate) fn write(kubeconfig: &serde_json::Value, path: &Path) -> Result<(), KubeconfigError> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| writeln!(file, "{kubeconfig:#}"))
        .map_err(|source| KubeconfigError::Write { path: path.into(), source })
}

/// A client for the forwarded port.
pub(crate) async fn client(kubeconfig: serde_json::Value) -> Result<Client, KubeconfigError> {
    let kubeconfig: Kubeconfig = serde_json::from_value(kubeconfig).map_err(KubeconfigError::Parse)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(KubeconfigError::Incomplete)?;
    // A proxy of the environment does not lead to this machine's loopback.
    config.proxy_url = None;
    Client::try_from(config).map_err(|error| KubeconfigError::Client(Box::new(error)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_the_address_is_replaced() {
        let announced = r#"{"clusters":[{"name":"granary","cluster":{"server":"https://10.0.2.15:6443","certificate-authority-data":"Q0E="}}]}"#;
        let kubeconfig = from_outside(announced, 40123).unwrap();
        assert_eq!(kubeconfig["clusters"][0]["cluster"]["server"], "https://127.0.0.1:40123");
        assert_eq!(kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"], "Q0E=");
    }

    #[test]
    fn nobody_else_can_read_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubeconfig");
        write(&serde_json::json!({}), &path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn text_that_is_no_kubeconfig_is_refused() {
        assert!(matches!(from_outside("no", 1), Err(KubeconfigError::Parse(_))));
    }
}
