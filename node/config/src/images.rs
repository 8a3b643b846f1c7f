//! Registries and CAs.

use std::collections::BTreeSet;

use cluster::{Certificates, Credentials, Endpoint, Images, Registry, Server, Verification};
use proto::node;

use crate::config::Check;
use crate::problem::{FieldPath, Violation};

const CAS: usize = 16;
const REGISTRIES: usize = 64;
const MIRRORS: usize = 8;

/// Whether the node sends a password to a server.
#[derive(Clone, Copy)]
enum User {
    None,
    Configured,
}

impl User {
    fn of(credentials: Option<&node::Credentials>) -> Self {
        credentials.map_or(Self::None, |_| Self::Configured)
    }

    fn or(self, other: Self) -> Self {
        match self {
            Self::None => other,
            Self::Configured => self,
        }
    }
}

impl Check {
    pub(crate) fn images(&mut self, message: &node::Config, top: &FieldPath) -> Images {
        let path = top.field("registries");
        self.at_most(REGISTRIES, message.registries.len(), &path);
        let mut names = BTreeSet::new();
        let mut registries = Vec::new();
        for (index, registry) in message.registries.iter().enumerate() {
            let path = path.item(index);
            let Some(registry) = self.registry(registry, &path) else { continue };
            if !names.insert(registry.name.clone()) {
                self.problem(&path.field("name"), Violation::Listed(registry.name.to_string()));
            }
            registries.push(registry);
        }
        let cas = &top.field("registryCas");
        let cas = self.list(&message.registry_cas, CAS, str::parse, cas);
        Images { cas, registries }
    }

    fn registry(&mut self, message: &node::Registry, path: &FieldPath) -> Option<Registry> {
        self.require(message.name.is_some(), &path.field("name"));
        let verification = match message.verification() {
            node::Verification::Unspecified | node::Verification::Required => Verification::Required,
            node::Verification::Disabled => Verification::Disabled,
        };
        // containerd sends the user of the registry to the registry, and to a mirror that requests credentials.
        let registry_user = User::of(message.credentials.as_ref());
        let server = self.endpoint(message.server.as_deref(), verification, registry_user, &path.field("server"));
        let at_mirrors = path.field("mirrors");
        self.at_most(MIRRORS, message.mirrors.len(), &at_mirrors);
        let mut mirrors: Vec<Server> = Vec::new();
        for (index, mirror) in message.mirrors.iter().enumerate() {
            let path = at_mirrors.item(index);
            let Some(mirror) = self.mirror(mirror, verification, registry_user, &path) else { continue };
            if mirrors.iter().any(|other| other.endpoint == mirror.endpoint) {
                self.problem(&path.field("server"), Violation::Listed(mirror.endpoint.as_str().to_owned()));
            }
            mirrors.push(mirror);
        }
        let cas = self.cas(message.ca.as_deref(), path);
        let credentials = self.credentials(message.credentials.as_ref(), path);
        let name = self.text(message.name.as_deref(), &path.field("name"))?;
        Some(Registry { name, mirrors, server, cas, verification, credentials })
    }

    fn mirror(
        &mut self,
        message: &node::Mirror,
        verification: Verification,
        registry_user: User,
        path: &FieldPath,
    ) -> Option<Server> {
        let at_server = path.field("server");
        self.require(message.server.is_some(), &at_server);
        let cas = self.cas(message.ca.as_deref(), path);
        let credentials = self.credentials(message.credentials.as_ref(), path);
        let user = User::of(message.credentials.as_ref()).or(registry_user);
        let endpoint = self.endpoint(message.server.as_deref(), verification, user, &at_server)?;
        Some(Server { endpoint, cas, credentials })
    }

    fn endpoint(
        &mut self,
        text: Option<&str>,
        verification: Verification,
        user: User,
        path: &FieldPath,
    ) -> Option<Endpoint> {
        let endpoint: Endpoint = self.text(text, path)?;
        if !endpoint.has_tls() {
            match (user, verification) {
                (User::Configured, _) => self.problem(path, Violation::Cleartext),
                (User::None, Verification::Required) => self.problem(path, Violation::Unverified),
                (User::None, Verification::Disabled) => {}
            }
        }
        Some(endpoint)
    }

    fn cas(&mut self, text: Option<&str>, path: &FieldPath) -> Option<Certificates> {
        self.text(text, &path.field("ca"))
    }

    fn credentials(&mut self, message: Option<&node::Credentials>, path: &FieldPath) -> Option<Credentials> {
        let message = message?;
        let path = path.field("credentials");
        self.require(message.username.is_some(), &path.field("username"));
        self.require(message.password.is_some(), &path.field("password"));
        let (username, password) = (message.username.as_deref()?, message.password.as_deref()?);
        Credentials::new(username, password).map_err(|error| self.problem(&path, error)).ok()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::Config;
    use crate::problem::ParseError;

    const DAMAGED: &str = "-----BEGIN CERTIFICATE-----\nAQID\n-----END CERTIFICATE-----\n";

    fn certificate() -> String {
        rcgen::generate_simple_self_signed(["registry.example".to_owned()]).unwrap().cert.pem()
    }

    #[test]
    fn registries_are_read() {
        let user = json!({"username": "user", "password": "secret"});
        let mirror = json!({"server": "https://mirror.example", "ca": certificate(), "credentials": user});
        let config = json!({
            "registryCas": [certificate()],
            "registries": [
                {"name": "docker.io", "mirrors": [mirror], "credentials": user},
                {"name": "192.0.2.10:5000", "server": "http://192.0.2.10:5000", "verification": "DISABLED"},
            ],
        });
        let images = Config::parse(&config.to_string()).unwrap().programs.images;
        assert_eq!(images.cas.len(), 1);
        let [hub, plain] = &*images.registries else { panic!("{images:?}") };
        assert_eq!((hub.name.as_str(), hub.mirrors[0].endpoint.as_str()), ("docker.io", "https://mirror.example"));
        assert_eq!(hub.credentials.as_ref().unwrap().reveal(), "user:secret");
        assert!(hub.mirrors[0].cas.is_some() && hub.mirrors[0].credentials.is_some());
        assert!(!plain.server.as_ref().unwrap().has_tls());
        assert!(!format!("{images:?}").contains("secret"));
    }

    #[test]
    fn an_invalid_registry_is_reported_by_its_field() {
        let with = |field: &str, value: Value| {
            let mut registry = json!({"name": "registry.example"});
            registry[field] = value;
            json!({"registries": [registry]})
        };
        let secret = "a secret\n";
        for (config, field) in [
            (json!({"registries": [{}]}), "registries[0].name"),
            (with("name", json!("https://registry.example")), "registries[0].name"),
            (with("server", json!("registry.example")), "registries[0].server"),
            (with("server", json!("http://registry.example")), "registries[0].server"),
            (with("verification", json!("NONE")), "registries[0].verification"),
            (with("ca", json!("PEM")), "registries[0].ca"),
            (with("ca", json!(DAMAGED)), "registries[0].ca"),
            (with("mirrors", json!([{"server": "https://a.example", "ca": DAMAGED}])), "registries[0].mirrors[0].ca"),
            (with("credentials", json!({"username": "user"})), "registries[0].credentials.password"),
            (with("credentials", json!({"username": "a:b", "password": secret})), "registries[0].credentials"),
            (with("mirrors", json!([{}])), "registries[0].mirrors[0].server"),
            (with("mirrors", json!([{"server": "http://a.example"}])), "registries[0].mirrors[0].server"),
            (
                with("mirrors", json!([{"server": "https://a.example"}, {"server": "https://a.example/"}])),
                "registries[0].mirrors[1].server",
            ),
            (
                json!({"registries": [{
                    "name": "registry.example", "verification": "DISABLED", "mirrors": [{"server": "http://a.example"}],
                    "credentials": {"username": "user", "password": secret.trim()},
                }]}),
                "registries[0].mirrors[0].server",
            ),
            (
                json!({"registries": [{
                    "name": "registry.example", "verification": "DISABLED", "server": "http://a.example",
                    "credentials": {"username": "user", "password": secret.trim()},
                }]}),
                "registries[0].server",
            ),
            (
                json!({"registries": [{
                    "name": "registry.example", "verification": "DISABLED", "mirrors": [{
                        "server": "http://a.example", "credentials": {"username": "user", "password": secret.trim()},
                    }],
                }]}),
                "registries[0].mirrors[0].server",
            ),
            (
                with(
                    "mirrors",
                    json!([{
                        "server": "http://a.example", "credentials": {"username": "user", "password": secret.trim()},
                    }]),
                ),
                "registries[0].mirrors[0].server",
            ),
            (json!({"registryCas": [certificate(), ""]}), "registryCas[1]"),
            (json!({"registries": [{"name": "registry.example"}, {"name": "registry.example"}]}), "registries[1].name"),
        ] {
            let Err(ParseError::Problems(found)) = Config::parse(&config.to_string()) else { panic!("{config}") };
            let found: Vec<String> = found.iter().map(ToString::to_string).collect();
            assert_eq!(found.len(), 1, "{config}: {found:?}");
            assert!(found[0].starts_with(&format!("{field}: ")) && !found[0].contains(secret), "{config}: {found:?}");
        }
    }
}
