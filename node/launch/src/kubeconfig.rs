//! The administrator's kubeconfig, as it is used from outside of the guest.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use cluster::CaDigest;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use programs::discovery::ca_digest;
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

/// Whom a machine that joins is to trust. `None` if it does not say.
pub(crate) fn authority(kubeconfig: &serde_json::Value) -> Option<CaDigest> {
    let data = kubeconfig.pointer("/clusters/0/cluster/certificate-authority-data")?.as_str()?;
    let pem = String::from_utf8(BASE64_STANDARD.decode(data).ok()?).ok()?;
    ca_digest(&pem)
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

    /// An authority that was made for this test, and the SHA-256 of its key as openssl(1) has it.
    const AUTHORITY: (&str, &str) = (
        "-----BEGIN CERTIFICATE-----\n\
         MIIBhjCCASugAwIBAgIUEJRnjqrZJnaCEdpuL7uTI1imsDUwCgYIKoZIzj0EAwIw\n\
         FzEVMBMGA1UEAwwMZ3JhbmFyeS10ZXN0MCAXDTI2MTEyMjEzMjUxMVoYDzIxMjYx\n\
         MDI5MTMyNTExWjAXMRUwEwYDVQQDDAxncmFuYXJ5LXRlc3QwWTATBgcqhkjOPQIB\n\
         BggqhkjOPQMBBwNCAASJJF13ZvUoH5269zuF+rnkaeI/s3s9MgVjxniojPi2U8Uy\n\
         IdwcvldgN8UOZE2/w/l6YuXhyE2nDAxOoFnTY3voo1MwUTAdBgNVHQ4EFgQUNLji\n\
         VDhTUWipzNtgka2ItNTPhkIwHwYDVR0jBBgwFoAUNLjiVDhTUWipzNtgka2ItNTP\n\
         hkIwDwYDVR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNJADBGAiEAmFB+qtDVWXGW\n\
         tRABhvJZBGNNdbR1cc19zKmCNrQG2VMCIQCPi2CNdhR4UhbibyPp+zvDUHCrLjwF\n\
         wJw9jPd++iFypw==\n\
         -----END CERTIFICATE-----\n",
        "sha256:b1e07596b3f82d6fee0d202897081f94ca85a761ce919748c23cadd61b4cab61",
    );

    #[test]
    fn the_authority_is_known_by_the_digest_of_its_key() {
        let of = |text: &str| {
            let data = BASE64_STANDARD.encode(text);
            authority(&serde_json::json!({"clusters": [{"cluster": {"certificate-authority-data": data}}]}))
        };
        assert_eq!(of(AUTHORITY.0).unwrap().to_string(), AUTHORITY.1);
        assert_eq!(of("no certificate"), None);
        assert_eq!(authority(&serde_json::json!({})), None);
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
