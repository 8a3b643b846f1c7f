//! Configuration of registries: containerd's `hosts.toml` for each registry, and the kubelet's `config.json`.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cluster::{Certificates, Credentials, Images, Registry, Verification};
use serde_json::{Map, Value, json};

use crate::Paths;

pub(crate) const HUB: &str = "docker.io";

/// Paths and contents of files, which may contain credentials.
type Files = Vec<(PathBuf, String)>;

/// The directory of the registries of the node's configuration.
pub(crate) fn directory(paths: &Paths) -> PathBuf {
    paths.generated("certs.d")
}

/// Directories in which containerd searches for a registry at each pull (`config_path`). containerd uses only the first
/// directory that has the registry, so that the second one cannot replace registries of the node's configuration.
pub(crate) fn search_path(paths: &Paths) -> String {
    format!("{}:{}", directory(paths).display(), paths.installed_registries.display())
}

/// Directory of the CAs for all registries. Go adds those in `SSL_CERT_DIR` to the image's public ones.
pub(crate) fn cas(paths: &Paths) -> PathBuf {
    paths.generated("cas")
}

pub(crate) fn files(paths: &Paths, images: &Images) -> Files {
    let all = images.cas.iter().enumerate();
    let mut files: Files =
        all.map(|(at, one)| (cas(paths).join(format!("{at}.pem")), one.as_str().to_owned())).collect();
    for registry in &images.registries {
        files.extend(of_registry(&directory(paths).join(registry.name.as_str()), registry));
    }
    files
}

/// containerd/docs/hosts.md. Settings before the first host are those of the registry itself.
fn of_registry(directory: &Path, registry: &Registry) -> Files {
    let mut files = Files::new();
    let mut ca = |name: String, found: Option<&Certificates>| {
        let Some(found) = found else { return String::new() };
        let path = directory.join(name);
        files.push((path.clone(), found.as_str().to_owned()));
        format!("ca = {:?}\n", path.display().to_string())
    };
    let skip = if registry.verification == Verification::Disabled { "skip_verify = true\n" } else { "" };
    let mut text =
        registry.server.as_ref().map(|server| format!("server = {:?}\n", server.as_str())).unwrap_or_default();
    text.push_str(&ca("registry.pem".to_owned(), registry.cas.as_ref()));
    text.push_str(skip);
    for (at, mirror) in registry.mirrors.iter().enumerate() {
        let host = format!("host.{:?}", mirror.endpoint.as_str());
        let ca = ca(format!("mirror-{at}.pem"), mirror.cas.as_ref());
        text.push_str(&format!("[{host}]\ncapabilities = [\"pull\", \"resolve\"]\n{ca}{skip}"));
        if let Some(credentials) = &mirror.credentials {
            text.push_str(&format!("[{host}.header]\nAuthorization = [\"Basic {}\"]\n", basic(credentials)));
        }
    }
    files.push((directory.join("hosts.toml"), text));
    files
}

/// The kubelet's credentials, in the format of Docker's `config.json`.
pub(crate) fn credentials(images: &Images) -> String {
    let auths: Map<String, Value> = images
        .registries
        .iter()
        .filter_map(|registry| Some((registry.name.as_str(), registry.credentials.as_ref()?)))
        .map(|(name, found)| {
            // The kubelet uses this name for images without a registry.
            let key = if name == HUB { "https://index.docker.io/v1/" } else { name };
            (key.to_owned(), json!({"auth": basic(found)}))
        })
        .collect();
    json!({"auths": auths}).to_string()
}

fn basic(credentials: &Credentials) -> String {
    STANDARD.encode(credentials.reveal())
}

#[cfg(test)]
mod tests {
    use cluster::Server;

    use super::*;

    fn registry(name: &str) -> Registry {
        Registry {
            name: name.parse().unwrap(),
            mirrors: Vec::new(),
            server: None,
            cas: None,
            verification: Verification::Required,
            credentials: None,
        }
    }

    fn read(files: &Files, path: &str) -> String {
        let found = files.iter().find(|(found, _)| found == Path::new(path));
        found.unwrap_or_else(|| panic!("no {path} in {files:?}")).1.clone()
    }

    #[test]
    fn containerd_asks_the_mirrors_and_then_the_registry() {
        let ca = rcgen::generate_simple_self_signed(["registry.example".to_owned()]).unwrap();
        let certificates: Certificates = ca.cert.pem().parse().unwrap();
        let mirror = |endpoint: &str, credentials| Server {
            endpoint: endpoint.parse().unwrap(),
            cas: Some(certificates.clone()),
            credentials,
        };
        let mirrors = vec![
            mirror("https://one.example", None),
            mirror("https://two.example:5000/hub", Some(Credentials::new("user", "secret").unwrap())),
        ];
        let images = Images {
            cas: vec![certificates.clone()],
            registries: vec![Registry {
                server: Some("https://registry.internal".parse().unwrap()),
                cas: Some(certificates),
                mirrors,
                ..registry("registry.example:5000")
            }],
        };
        let files = files(&Paths::default(), &images);
        assert_eq!(
            read(&files, "/ephemeral/config/certs.d/registry.example:5000/hosts.toml"),
            r#"server = "https://registry.internal"
ca = "/ephemeral/config/certs.d/registry.example:5000/registry.pem"
[host."https://one.example"]
capabilities = ["pull", "resolve"]
ca = "/ephemeral/config/certs.d/registry.example:5000/mirror-0.pem"
[host."https://two.example:5000/hub"]
capabilities = ["pull", "resolve"]
ca = "/ephemeral/config/certs.d/registry.example:5000/mirror-1.pem"
[host."https://two.example:5000/hub".header]
Authorization = ["Basic dXNlcjpzZWNyZXQ="]
"#
        );
        for name in ["registry", "mirror-0", "mirror-1"] {
            read(&files, &format!("/ephemeral/config/certs.d/registry.example:5000/{name}.pem"));
        }
        read(&files, "/ephemeral/config/cas/0.pem");
    }

    #[test]
    fn only_a_registry_with_this_setting_is_not_verified() {
        let unverified = Registry {
            verification: Verification::Disabled,
            server: Some("http://192.0.2.10:5000".parse().unwrap()),
            ..registry("registry.example")
        };
        let images = Images { cas: vec![], registries: vec![unverified, registry("other.example")] };
        let files = files(&Paths::default(), &images);
        let wanted = "server = \"http://192.0.2.10:5000\"\nskip_verify = true\n";
        assert_eq!(read(&files, "/ephemeral/config/certs.d/registry.example/hosts.toml"), wanted);
        assert_eq!(read(&files, "/ephemeral/config/certs.d/other.example/hosts.toml"), "");
    }

    /// A registry of the configuration has a directory even if it has no settings.
    #[test]
    fn an_added_registry_does_not_replace_one_of_the_configuration() {
        let paths = Paths::default();
        assert_eq!(search_path(&paths), "/ephemeral/config/certs.d:/etc/containerd/certs.d");
        let images = Images { cas: vec![], registries: vec![registry("registry.example")] };
        assert_eq!(read(&files(&paths, &images), "/ephemeral/config/certs.d/registry.example/hosts.toml"), "");
    }

    #[test]
    fn the_kubelet_has_the_credentials_of_registries() {
        let credentials_of = |name| Registry { credentials: Credentials::new("user", "secret").ok(), ..registry(name) };
        let registries = vec![credentials_of("docker.io"), credentials_of("a.example:5000"), registry("b.example")];
        let found: Value = serde_json::from_str(&credentials(&Images { cas: vec![], registries })).unwrap();
        let auth = json!({"auth": "dXNlcjpzZWNyZXQ="});
        assert_eq!(found, json!({"auths": {"https://index.docker.io/v1/": auth, "a.example:5000": auth}}));
        assert_eq!(credentials(&Images::default()), r#"{"auths":{}}"#);
    }
}
