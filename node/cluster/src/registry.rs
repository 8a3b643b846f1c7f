//! Registries that a node pulls images from, and their CAs.

use std::fmt;
use std::str::FromStr;

use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;

use crate::domain::is_label;

/// Settings for image pulls. [`Default`] accepts the public CAs of the system image, and has no endpoints other than
/// the registries in the names of images.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Images {
    /// CAs of all registries, in addition to the public CAs.
    pub cas: Vec<Certificates>,
    pub registries: Vec<Registry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registry {
    pub name: RegistryName,
    /// Other servers with the images of the registry, the preferred one first. The node tries the registry itself last.
    pub mirrors: Vec<Server>,
    /// Endpoint of the registry, if it differs from the name.
    pub server: Option<Endpoint>,
    pub cas: Option<Certificates>,
    pub verification: Verification,
    pub credentials: Option<Credentials>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    pub endpoint: Endpoint,
    pub cas: Option<Certificates>,
    pub credentials: Option<Credentials>,
}

/// Whether the certificate of a registry is verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verification {
    #[default]
    Required,
    /// The node requires neither a valid certificate nor TLS: any machine on the path can replace the images.
    Disabled,
}

/// Host of a registry as in the names of images, with a port if it is not 443. The text is safe as the name of a
/// directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RegistryName(String);

/// URL of a server, `https://HOST[:PORT][/PATH]`, with characters that need no quoting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(String);

/// X.509 certificates in PEM, at least one and nothing else.
#[derive(Clone, PartialEq, Eq)]
pub struct Certificates(String);

/// User name and password of HTTP's basic authentication.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    username: String,
    password: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    #[error("not the host of a registry as in the names of images, such as registry.example or 192.0.2.10:5000")]
    Name,
    #[error("not the URL of a server, such as https://mirror.example or https://192.0.2.10:5000/path")]
    Endpoint,
    #[error("must contain one or more certificates in PEM, and nothing else")]
    Certificates,
    #[error("certificate {0} of the PEM text is not an X.509 certificate, or is damaged; copy it again from its file")]
    Damaged(usize),
    #[error(
        "a user name must have 1 to 255 characters without a colon, and a password 1 to 4096, without control characters"
    )]
    Credentials,
}

/// Whether `text` is `HOST[:PORT]` with a DNS name or an IPv4 address.
fn is_host(text: &str) -> bool {
    let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|number| number != 0 && number.to_string() == port);
    host.len() <= 253 && host.split('.').all(is_label) && port.is_none_or(is_port)
}

impl FromStr for RegistryName {
    type Err = RegistryError;

    fn from_str(text: &str) -> Result<Self, RegistryError> {
        // Without a dot or a port, the first part of an image's name is a directory of docker.io.
        let is_name = is_host(text) && (text.contains(['.', ':']) || text == "localhost");
        if is_name { Ok(Self(text.to_owned())) } else { Err(RegistryError::Name) }
    }
}

impl RegistryName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RegistryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Endpoint {
    type Err = RegistryError;

    fn from_str(text: &str) -> Result<Self, RegistryError> {
        let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        let (host, path) =
            rest.map(|rest| rest.split_once('/').unwrap_or((rest, ""))).ok_or(RegistryError::Endpoint)?;
        let is_path = path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte));
        if is_host(host) && is_path && path.len() <= 1024 {
            Ok(Self(text.trim_end_matches('/').to_owned()))
        } else {
            Err(RegistryError::Endpoint)
        }
    }
}

impl Endpoint {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn has_tls(&self) -> bool {
        self.0.starts_with("https:")
    }
}

impl FromStr for Certificates {
    type Err = RegistryError;

    fn from_str(text: &str) -> Result<Self, RegistryError> {
        let found = pem::parse_many(text).map_err(|_| RegistryError::Certificates)?;
        let are_certificates = !found.is_empty() && found.iter().all(|part| part.tag() == "CERTIFICATE");
        if !are_certificates {
            return Err(RegistryError::Certificates);
        }
        let is_damaged = |part: &pem::Pem| !matches!(X509Certificate::from_der(part.contents()), Ok(([], _)));
        match found.iter().position(is_damaged) {
            Some(index) => Err(RegistryError::Damaged(index + 1)),
            None => Ok(Self(pem::encode_many(&found))),
        }
    }
}

impl Certificates {
    /// The certificates in PEM.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Certificates({} bytes)", self.0.len())
    }
}

impl Credentials {
    pub fn new(username: &str, password: &str) -> Result<Self, RegistryError> {
        let is_text = |text: &str, most| (1..=most).contains(&text.len()) && !text.contains(char::is_control);
        if is_text(username, 255) && is_text(password, 4096) && !username.contains(':') {
            Ok(Self { username: username.to_owned(), password: password.to_owned() })
        } else {
            Err(RegistryError::Credentials)
        }
    }

    /// `USERNAME:PASSWORD`.
    pub fn reveal(&self) -> String {
        format!("{}:{}", self.username, self.password)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({}:…)", self.username)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate() -> String {
        rcgen::generate_simple_self_signed(["registry.example".to_owned()]).unwrap().cert.pem()
    }

    #[test]
    fn names_of_registries_are_hosts_with_an_optional_port() {
        for name in ["docker.io", "registry.example", "192.0.2.10:5000", "localhost", "localhost:5000", "registry:5000"]
        {
            assert_eq!(name.parse::<RegistryName>().unwrap().as_str(), name);
        }
        for name in
            ["", "library", "https://a.example", "a.example/b", "A.example", "..", "a..b", ".a", "a.b:0", "a.b:05"]
        {
            assert_eq!(name.parse::<RegistryName>(), Err(RegistryError::Name), "{name}");
        }
    }

    #[test]
    fn endpoints_are_urls_without_a_query() {
        for (text, wanted) in [
            ("https://mirror.example", "https://mirror.example"),
            ("https://mirror.example/", "https://mirror.example"),
            ("http://192.0.2.10:5000/hub/v1", "http://192.0.2.10:5000/hub/v1"),
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().as_str(), wanted);
        }
        for text in [
            "mirror.example",
            "ftp://a.example",
            "https://",
            "https://a.example/?b",
            "https://u@a.b",
            "https://a.b/\"x",
        ] {
            assert_eq!(text.parse::<Endpoint>(), Err(RegistryError::Endpoint), "{text}");
        }
    }

    #[test]
    fn only_certificates_are_accepted_as_such() {
        let one = certificate();
        let key = pem::encode(&pem::Pem::new("PRIVATE KEY", [1, 2, 3]));
        assert_eq!(pem::parse_many(format!("{one}{one}").parse::<Certificates>().unwrap().as_str()).unwrap().len(), 2);
        for text in ["", "no PEM", &key, &format!("{one}{key}")] {
            assert_eq!(text.parse::<Certificates>(), Err(RegistryError::Certificates), "{text}");
        }
    }

    /// Regression: the node started, and containerd rejected the CA at each pull.
    #[test]
    fn damaged_certificates_are_rejected() {
        let good = certificate();
        let whole = pem::parse(&good).unwrap().into_contents();
        let cut = &whole[..whole.len() - 1];
        let longer = [&*whole, &[0]].concat();
        for damaged in [&[1, 2, 3][..], cut, &longer] {
            let damaged = pem::encode(&pem::Pem::new("CERTIFICATE", damaged));
            assert_eq!(damaged.parse::<Certificates>(), Err(RegistryError::Damaged(1)), "{damaged}");
            assert_eq!(format!("{good}{damaged}").parse::<Certificates>(), Err(RegistryError::Damaged(2)), "{damaged}");
        }
    }

    #[test]
    fn the_debug_output_has_no_password() {
        let credentials = Credentials::new("user", "secret").unwrap();
        assert_eq!(format!("{credentials:?}"), "Credentials(user:…)");
        for (username, password) in [("", "secret"), ("user", ""), ("us:er", "secret"), ("user", "a\nb")] {
            assert_eq!(Credentials::new(username, password), Err(RegistryError::Credentials));
        }
    }
}
