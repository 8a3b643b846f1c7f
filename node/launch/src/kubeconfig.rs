//! The administrator's kubeconfig for use outside the guest.

use apiclient::Deadlines;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use cluster::CaDigest;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use programs::discovery::ca_digest;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use crate::error::StepError;

const PARSE: &str = "use the kubeconfig that the node announced";
/// Same deadlines as kube's own client. A guest without KVM responds slowly.
const DEADLINES: Deadlines = Deadlines {
    object: Duration::from_secs(295),
    list: Duration::from_secs(295),
    idle: Duration::from_secs(295),
    pooled: Duration::from_secs(45),
};

/// Replaces the address of the API server with the forwarded port.
pub(crate) fn from_outside(announced: &str, port: u16) -> Result<serde_json::Value, StepError> {
    let mut kubeconfig: serde_json::Value = serde_json::from_str(announced).map_err(StepError::of(PARSE))?;
    let clusters = kubeconfig.get_mut("clusters").and_then(serde_json::Value::as_array_mut);
    for cluster in clusters.into_iter().flatten() {
        if let Some(cluster) = cluster.get_mut("cluster").and_then(serde_json::Value::as_object_mut) {
            cluster.insert("server".to_owned(), format!("https://127.0.0.1:{port}").into());
        }
    }
    Ok(kubeconfig)
}

pub(crate) fn announced_ca(kubeconfig: &serde_json::Value) -> Option<CaDigest> {
    let data = kubeconfig.pointer("/clusters/0/cluster/certificate-authority-data")?.as_str()?;
    let pem = String::from_utf8(BASE64_STANDARD.decode(data).ok()?).ok()?;
    ca_digest(&pem)
}

/// Writes the kubeconfig for `kubectl` with mode 0600, because it contains a key.
pub(crate) fn write(kubeconfig: &serde_json::Value, path: &Path) -> Result<(), StepError> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| writeln!(file, "{kubeconfig:#}"))
        .map_err(StepError::of(format!("write {}", path.display())))
}

pub(crate) async fn client(kubeconfig: serde_json::Value) -> Result<Client, StepError> {
    let kubeconfig: Kubeconfig = serde_json::from_value(kubeconfig).map_err(StepError::of(PARSE))?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(StepError::of(PARSE))?;
    apiclient::client_with(config, DEADLINES).map_err(StepError::of(PARSE))
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

    /// A test CA, and the SHA-256 of its key according to openssl(1).
    const CA: (&str, &str) = (
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
    fn the_ca_has_the_digest_of_its_key() {
        let of = |text: &str| {
            let data = BASE64_STANDARD.encode(text);
            announced_ca(&serde_json::json!({"clusters": [{"cluster": {"certificate-authority-data": data}}]}))
        };
        assert_eq!(of(CA.0).unwrap().to_string(), CA.1);
        assert_eq!(of("no certificate"), None);
        assert_eq!(announced_ca(&serde_json::json!({})), None);
    }

    #[test]
    fn only_the_owner_can_read_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubeconfig");
        write(&serde_json::json!({}), &path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn an_invalid_kubeconfig_is_rejected() {
        assert!(from_outside("no", 1).is_err());
    }
}
