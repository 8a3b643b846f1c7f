//! The administrator's kubeconfig for use outside the guest.

use apiclient::Deadlines;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use cluster::CaDigest;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use programs::discovery::ca_digest;
use serde_json::{Map, Value, json};
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

/// Name of the cluster, the user and the context.
const NAME: &str = "granary";

/// Fields of the announced kubeconfig that the host uses. A guest selects neither programs nor files of the host:
/// clients start the program in `exec` of a user, and send the content of its `tokenFile` to the server.
const CLUSTER: [&str; 2] = ["certificate-authority-data", "insecure-skip-tls-verify"];
const USER: [&str; 2] = ["client-certificate-data", "client-key-data"];

/// The kubeconfig for the forwarded port, with the certificates and the key of the announced one.
pub(crate) fn from_outside(announced: &str, port: u16) -> Result<Value, StepError> {
    let announced: Value = serde_json::from_str(announced).map_err(StepError::of(PARSE))?;
    let part = |path: &str, fields: [&str; 2]| -> Map<String, Value> {
        let found = announced.pointer(path).and_then(Value::as_object).into_iter().flatten();
        let used = found.filter(|(key, _)| fields.contains(&key.as_str()));
        used.map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    let mut cluster = part("/clusters/0/cluster", CLUSTER);
    cluster.insert("server".to_owned(), format!("https://127.0.0.1:{port}").into());
    Ok(json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": cluster}],
        "users": [{"name": NAME, "user": part("/users/0/user", USER)}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME}}],
        "current-context": NAME,
    }))
}

pub(crate) fn announced_ca(kubeconfig: &Value) -> Option<CaDigest> {
    let data = kubeconfig.pointer("/clusters/0/cluster/certificate-authority-data")?.as_str()?;
    let pem = String::from_utf8(BASE64_STANDARD.decode(data).ok()?).ok()?;
    ca_digest(&pem)
}

/// Writes the kubeconfig for `kubectl` with mode 0600, because it contains a key.
pub(crate) fn write(kubeconfig: &Value, path: &Path) -> Result<(), StepError> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| writeln!(file, "{kubeconfig:#}"))
        .map_err(StepError::of(format!("write {}", path.display())))
}

pub(crate) async fn client(kubeconfig: Value) -> Result<Client, StepError> {
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

    /// Regression: the launcher and kubectl started a program that the guest had selected, and sent files to it.
    #[test]
    fn a_guest_selects_no_program_and_no_file_of_the_host() {
        let cluster = json!({
            "server": "https://10.0.2.15:6443",
            "certificate-authority-data": "Q0E=",
            "certificate-authority": "/etc/passwd",
            "proxy-url": "http://10.0.2.2",
        });
        let user = json!({
            "client-certificate-data": "Q0E=",
            "client-key-data": "S0VZ",
            "client-key": "/etc/passwd",
            "tokenFile": "/etc/passwd",
            "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/false"},
        });
        let announced = json!({
            "clusters": [{"name": "granary", "cluster": cluster}],
            "users": [{"name": "granary", "user": user}],
        });
        let kubeconfig = from_outside(&announced.to_string(), 40123).unwrap();
        let cluster = json!({"server": "https://127.0.0.1:40123", "certificate-authority-data": "Q0E="});
        assert_eq!(kubeconfig["clusters"], json!([{"name": "granary", "cluster": cluster}]));
        let user = json!({"client-certificate-data": "Q0E=", "client-key-data": "S0VZ"});
        assert_eq!(kubeconfig["users"], json!([{"name": "granary", "user": user}]));
        serde_json::from_value::<Kubeconfig>(kubeconfig).unwrap();
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
            announced_ca(&json!({"clusters": [{"cluster": {"certificate-authority-data": data}}]}))
        };
        assert_eq!(of(CA.0).unwrap().to_string(), CA.1);
        assert_eq!(of("no certificate"), None);
        assert_eq!(announced_ca(&json!({})), None);
    }

    #[test]
    fn only_the_owner_can_read_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubeconfig");
        write(&json!({}), &path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn an_invalid_kubeconfig_is_rejected() {
        assert!(from_outside("no", 1).is_err());
    }
}
