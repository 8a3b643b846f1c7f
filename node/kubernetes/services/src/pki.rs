//! Certificates, keys and kubeconfigs on the data disk.
//!
//! Made once and kept. At each start what expires within 30 days, or does not fit the configuration any
//! more, is made again; a power cut between two files leaves something that is found out and made again.

use std::collections::BTreeSet;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use dir::{Dir, Name};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use nix::sys::stat::Mode;
use rcgen::KeyPair;
use time::OffsetDateTime;
use tracing::{info, warn};

use crate::Config;
use crate::certificate::{Authority, Pair, Purpose, ServerName, Stale, Wanted};
use crate::kubeconfig;

const SECRET: Mode = Mode::S_IRUSR.union(Mode::S_IWUSR);
const PUBLIC: Mode = SECRET.union(Mode::S_IRGRP).union(Mode::S_IROTH);

/// The name of a node's storage identity is this and the node's name.
pub const STORAGE_USER_PREFIX: &str = "granary:node:";

/// The group of the nodes' storage identities.
pub const STORAGE_GROUP: &str = "granary:nodes";

/// Who asks the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Identity {
    /// An administrator: group `system:masters`.
    Admin,
    /// `system:kube-controller-manager`.
    ControllerManager,
    /// `system:kube-scheduler`.
    Scheduler,
    /// `system:node:NAME` in the group `system:nodes`.
    Kubelet,
    /// `system:kube-proxy`.
    Proxy,
    /// The node's own storage: `granary:node:NAME` in the group `granary:nodes`. Its certificate is not made here but
    /// asked for, see [`StorageIdentity`](crate::StorageIdentity).
    Storage,
}

impl Identity {
    const ALL: [Self; 6] =
        [Self::Admin, Self::ControllerManager, Self::Scheduler, Self::Kubelet, Self::Proxy, Self::Storage];

    pub(crate) const fn file(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::ControllerManager => "controller-manager",
            Self::Scheduler => "scheduler",
            Self::Kubelet => "kubelet",
            Self::Proxy => "proxy",
            Self::Storage => "storage",
        }
    }

    pub(crate) fn wanted(self, node: &str) -> Wanted {
        let (common_name, organization) = match self {
            Self::Admin => ("granary:admin".to_owned(), Some("system:masters")),
            Self::ControllerManager => ("system:kube-controller-manager".to_owned(), None),
            Self::Scheduler => ("system:kube-scheduler".to_owned(), None),
            Self::Kubelet => (format!("system:node:{node}"), Some("system:nodes")),
            Self::Proxy => ("system:kube-proxy".to_owned(), None),
            Self::Storage => (format!("{STORAGE_USER_PREFIX}{node}"), Some(STORAGE_GROUP)),
        };
        Wanted { name: self.file(), common_name, organization, purpose: Purpose::Client }
    }
}

/// Where the node's credentials are, and an administrator's to be carried away.
pub struct Credentials {
    pki: PathBuf,
    admin: String,
}

impl Credentials {
    /// Makes what is missing or of no use any more, `now`: all but the certificate of [`Identity::Storage`]. Waits for
    /// the disk.
    ///
    /// # Errors
    /// [`PkiError`]: the disk, or a clock that is behind the authority's certificate.
    pub fn ensure(config: &Config, now: OffsetDateTime) -> Result<Self, PkiError> {
        let pki = config.paths.pki.clone();
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&pki)
            .map_err(|source| PkiError::Directory { path: pki.clone(), source })?;
        let store = Store::open(&pki)?;

        let authority = store.authority(now)?;
        store.service_accounts()?;
        for wanted in servers(config) {
            store.leaf(&authority, &wanted, now)?;
        }
        let mut admin = String::new();
        for identity in Identity::ALL {
            let path = |extension| file(&pki, identity.file(), extension);
            let local =
                kubeconfig::with_files("https://127.0.0.1:6443", &file(&pki, "ca", "crt"), &path("crt"), &path("key"));
            store.write(&format!("{}.kubeconfig", identity.file()), &local, SECRET)?;
            if identity == Identity::Storage {
                continue;
            }
            let pair = store.leaf(&authority, &identity.wanted(&config.node), now)?;
            if identity == Identity::Admin {
                let server = format!("https://{}:6443", config.address);
                admin = kubeconfig::with_contents(&server, authority.certificate(), &pair);
            }
        }
        Ok(Self { pki, admin })
    }

    /// The file of a kubeconfig for this machine.
    pub fn kubeconfig(&self, identity: Identity) -> PathBuf {
        file(&self.pki, identity.file(), "kubeconfig")
    }

    /// An administrator's kubeconfig for the node's address, with the private key inside.
    pub fn admin_kubeconfig(&self) -> &str {
        &self.admin
    }

    /// A client of the API server of this machine.
    ///
    /// # Errors
    /// [`ClientError`]: the kubeconfig cannot be read or used.
    pub async fn client(&self, identity: Identity) -> Result<kube::Client, ClientError> {
        let path = self.kubeconfig(identity);
        let read = || async {
            let kubeconfig = Kubeconfig::read_from(&path)?;
            kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await
        };
        let config = read().await.map_err(|source| ClientError::Kubeconfig { path: path.clone(), source })?;
        kube::Client::try_from(config).map_err(|source| ClientError::Client { path, source: Box::new(source) })
    }

    pub(crate) fn certificate(&self, name: &str) -> PathBuf {
        file(&self.pki, name, "crt")
    }

    pub(crate) fn key(&self, name: &str) -> PathBuf {
        file(&self.pki, name, "key")
    }

    pub(crate) fn public_key(&self, name: &str) -> PathBuf {
        file(&self.pki, name, "pub")
    }
}

/// Why the credentials could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// The directory.
    #[error("cannot make {path}")]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file in it.
    #[error("cannot keep certificates")]
    Disk(#[from] dir::Error),
    /// The clock is wrong, most likely: nothing is replaced because of that.
    #[error("the cluster's certificate authority is not valid yet at {now}; set the machine's clock")]
    Clock {
        /// What the clock says.
        now: OffsetDateTime,
    },
    /// A certificate could not be made.
    #[error("cannot make the certificate {name}")]
    Certificate {
        /// Its file, without extension.
        name: &'static str,
        /// Why.
        #[source]
        source: rcgen::Error,
    },
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The file.
    #[error("cannot use {path}")]
    Kubeconfig {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: KubeconfigError,
    },
    /// What it says.
    #[error("cannot make a client of {path}")]
    Client {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
}

fn file(pki: &Path, name: &str, extension: &str) -> PathBuf {
    pki.join(format!("{name}.{extension}"))
}

/// Certificates that belong to servers, and the API server's own as kubelet's client.
fn servers(config: &Config) -> [Wanted; 3] {
    let dns = |name: &str| ServerName::Dns(name.to_owned());
    let mut api: BTreeSet<_> =
        ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"].map(dns).into();
    api.extend([[127, 0, 0, 1].into(), config.address].map(|address| ServerName::Ip(address.into())));
    api.extend(config.api_service().map(|address| ServerName::Ip(address.into())));
    let kubelet = [dns(&config.node), ServerName::Ip(config.address.into())];
    [
        Wanted {
            name: "apiserver",
            common_name: "kube-apiserver".into(),
            organization: None,
            purpose: Purpose::Server(api),
        },
        Wanted {
            name: "apikubelet",
            common_name: "granary:apiserver".into(),
            organization: Some("system:masters"),
            purpose: Purpose::Client,
        },
        Wanted {
            name: "kubelet-server",
            common_name: format!("system:node:{}", config.node),
            organization: Some("system:nodes"),
            purpose: Purpose::Server(kubelet.into()),
        },
    ]
}

/// The directory of the files.
pub(crate) struct Store {
    dir: Dir,
}

impl Store {
    pub(crate) fn open(pki: &Path) -> Result<Self, PkiError> {
        Ok(Self { dir: Dir::open(pki)? })
    }

    fn authority(&self, now: OffsetDateTime) -> Result<Authority, PkiError> {
        let stale = match self.read_pair("ca")?.map(|pair| Authority::load(&pair, now)) {
            Some(Ok(authority)) => return Ok(authority),
            Some(Err(Stale::NotYet)) => return Err(PkiError::Clock { now }),
            Some(Err(stale)) => {
                warn!(reason = %stale, "certificate authority replaced, with every certificate");
                stale
            }
            None => Stale::Absent,
        };
        let (authority, pair) = Authority::make(now).map_err(|source| PkiError::Certificate { name: "ca", source })?;
        self.write_pair("ca", &pair)?;
        info!(name = "ca", reason = %stale, "certificate made");
        Ok(authority)
    }

    fn leaf(&self, authority: &Authority, wanted: &Wanted, now: OffsetDateTime) -> Result<Pair, PkiError> {
        let name = wanted.name;
        let found = self.read_pair(name)?.ok_or(Stale::Absent);
        let stale = match found.and_then(|pair| authority.check(wanted, &pair, now).map(|()| pair)) {
            Ok(pair) => return Ok(pair),
            Err(stale) => stale,
        };
        let pair = authority.issue(wanted, now).map_err(|source| PkiError::Certificate { name, source })?;
        self.write_pair(name, &pair)?;
        info!(name, reason = %stale, "certificate made");
        Ok(pair)
    }

    /// The keys that sign tokens of service accounts. Replaced only when unreadable: that ends every token.
    fn service_accounts(&self) -> Result<(), PkiError> {
        let found = self.read("sa.key")?.and_then(|pem| KeyPair::from_pem(&pem).ok());
        let key = match found {
            Some(key) => key,
            None => {
                let key = KeyPair::generate().map_err(|source| PkiError::Certificate { name: "sa", source })?;
                self.write("sa.key", &key.serialize_pem(), SECRET)?;
                info!(name = "sa", "signing key made");
                key
            }
        };
        self.write("sa.pub", &key.public_key_pem(), PUBLIC)
    }

    pub(crate) fn read_pair(&self, name: &str) -> Result<Option<Pair>, PkiError> {
        let certificate = self.read(&format!("{name}.crt"))?;
        let key = self.read(&format!("{name}.key"))?;
        Ok(certificate.zip(key).map(|(certificate, key)| Pair { certificate, key }))
    }

    pub(crate) fn write_pair(&self, name: &str, pair: &Pair) -> Result<(), PkiError> {
        self.write(&format!("{name}.key"), &pair.key, SECRET)?;
        self.write(&format!("{name}.crt"), &pair.certificate, PUBLIC)
    }

    /// What is no text counts as absent: it is of no use.
    pub(crate) fn read(&self, name: &str) -> Result<Option<String>, PkiError> {
        Ok(self.dir.read(&name_of(name))?.and_then(|content| String::from_utf8(content).ok()))
    }

    fn write(&self, name: &str, content: &str, mode: Mode) -> Result<(), PkiError> {
        if self.read(name)?.as_deref() == Some(content) {
            return Ok(());
        }
        Ok(self.dir.write(&name_of(name), content.as_bytes(), mode)?)
    }
}

#[expect(clippy::expect_used, reason = "names are made of literals of this file")]
fn name_of(name: &str) -> Name {
    Name::try_from(name).expect("a file name without a slash")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::PermissionsExt;

    use time::Duration;

    use super::*;
    use crate::config::example;

    const NOW: OffsetDateTime = time::macros::datetime!(2026-03-01 12:00 UTC);

    /// Whose certificates are made, and not asked for.
    const MADE: [Identity; 5] =
        [Identity::Admin, Identity::ControllerManager, Identity::Scheduler, Identity::Kubelet, Identity::Proxy];

    struct Disk {
        config: Config,
        scratch: tempfile::TempDir,
    }

    impl Disk {
        fn new() -> Self {
            let scratch = tempfile::tempdir().unwrap();
            let mut config = example();
            config.paths.pki = scratch.path().join("pki");
            Self { config, scratch }
        }

        fn ensure(&self, now: OffsetDateTime) -> Result<Credentials, PkiError> {
            Credentials::ensure(&self.config, now)
        }

        fn files(&self) -> BTreeMap<String, String> {
            std::fs::read_dir(self.scratch.path().join("pki"))
                .unwrap()
                .map(|entry| entry.unwrap())
                .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read_to_string(entry.path()).unwrap()))
                .collect()
        }

        /// Names of the files that differ since `before`.
        fn changed(&self, before: &BTreeMap<String, String>) -> Vec<String> {
            self.files()
                .into_iter()
                .filter(|(name, text)| before.get(name) != Some(text))
                .map(|(name, _)| name)
                .collect()
        }
    }

    #[test]
    fn every_certificate_is_signed_by_the_authority_for_its_name_and_group() {
        let disk = Disk::new();
        disk.ensure(NOW).unwrap();
        let store = Store::open(&disk.config.paths.pki).unwrap();
        let authority = store.authority(NOW).unwrap();
        let clients = MADE.map(|identity| identity.wanted("granary"));
        let pairs = clients.into_iter().chain(servers(&disk.config));
        for wanted in pairs {
            let pair = store.read_pair(wanted.name).unwrap().unwrap();
            assert_eq!(authority.check(&wanted, &pair, NOW), Ok(()), "{}", wanted.name);
        }
    }

    #[test]
    fn the_identities_are_those_that_kubernetes_gives_roles_to() {
        let named = |identity: Identity| {
            let wanted = identity.wanted("n1");
            (wanted.common_name, wanted.organization)
        };
        assert_eq!(named(Identity::Admin).1, Some("system:masters"));
        assert_eq!(named(Identity::ControllerManager), ("system:kube-controller-manager".into(), None));
        assert_eq!(named(Identity::Scheduler), ("system:kube-scheduler".into(), None));
        assert_eq!(named(Identity::Proxy), ("system:kube-proxy".into(), None));
        assert_eq!(named(Identity::Kubelet), ("system:node:n1".into(), Some("system:nodes")));
        assert_eq!(named(Identity::Storage), ("granary:node:n1".into(), Some("granary:nodes")));
    }

    #[test]
    fn the_api_server_is_known_by_all_its_names() {
        let [api, ..] = servers(&example());
        let Purpose::Server(names) = api.purpose else { panic!("a server") };
        let shown: Vec<String> = names
            .iter()
            .map(|name| match name {
                ServerName::Dns(name) => name.clone(),
                ServerName::Ip(address) => address.to_string(),
            })
            .collect();
        assert_eq!(
            shown,
            [
                "kubernetes",
                "kubernetes.default",
                "kubernetes.default.svc",
                "localhost",
                "10.0.2.15",
                "10.96.0.1",
                "127.0.0.1"
            ]
        );
    }

    #[test]
    fn only_certificates_and_the_public_key_can_be_read_by_others() {
        let disk = Disk::new();
        disk.ensure(NOW).unwrap();
        assert_eq!(std::fs::metadata(&disk.config.paths.pki).unwrap().permissions().mode() & 0o777, 0o700);
        for name in disk.files().keys() {
            let mode = std::fs::metadata(disk.config.paths.pki.join(name)).unwrap().permissions().mode() & 0o777;
            let public = Path::new(name).extension().is_some_and(|extension| extension == "crt" || extension == "pub");
            assert_eq!(mode, if public { 0o644 } else { 0o600 }, "{name}");
        }
    }

    #[test]
    fn a_later_boot_changes_nothing() {
        let disk = Disk::new();
        disk.ensure(NOW).unwrap();
        let before = disk.files();
        disk.ensure(NOW + Duration::days(300)).unwrap();
        assert_eq!(disk.changed(&before), Vec::<String>::new());
    }

    #[test]
    fn near_their_end_the_leaves_are_made_again_and_the_authority_stays() {
        let disk = Disk::new();
        disk.ensure(NOW).unwrap();
        let before = disk.files();
        disk.ensure(NOW + Duration::days(340)).unwrap();
        let changed = disk.changed(&before);
        assert_eq!(changed.len(), 2 * (MADE.len() + 3), "{changed:?}");
        assert!(!changed.iter().any(|name| name.starts_with("ca.") || name.starts_with("sa.")));
    }

    #[test]
    fn an_authority_near_its_end_is_replaced_with_all_it_signed_but_not_the_token_key() {
        let disk = Disk::new();
        disk.ensure(NOW).unwrap();
        let before = disk.files();
        disk.ensure(NOW + Duration::days(3640)).unwrap();
        let changed = disk.changed(&before);
        assert_eq!(changed.len(), 2 * (MADE.len() + 4), "{changed:?}");
        assert!(!changed.iter().any(|name| name.starts_with("sa.")));
    }

    #[test]
    fn a_new_address_renews_only_the_servers_that_have_it() {
        let mut disk = Disk::new();
        disk.ensure(NOW).unwrap();
        let before = disk.files();
        disk.config.address = [10, 0, 2, 99].into();
        disk.ensure(NOW).unwrap();
        assert_eq!(
            disk.changed(&before),
            ["apiserver.crt", "apiserver.key", "kubelet-server.crt", "kubelet-server.key"]
        );
    }

    #[test]
    fn a_clock_before_the_authority_is_an_error_and_changes_nothing() {
        let disk = Disk::new();
        disk.ensure(NOW).unwrap();
        let before = disk.files();
        let error = disk.ensure(time::macros::datetime!(1970-01-01 00:00 UTC)).err().unwrap();
        assert!(matches!(error, PkiError::Clock { .. }), "{error}");
        assert_eq!(disk.changed(&before), Vec::<String>::new());
    }

    #[test]
    fn wherever_the_power_fails_the_next_boot_finishes() {
        let disk = Disk::new();
        disk.ensure(NOW).unwrap();
        let whole = disk.files();
        for lost in whole.keys() {
            std::fs::remove_file(disk.config.paths.pki.join(lost)).unwrap();
            disk.ensure(NOW).unwrap();
            let names: Vec<String> = disk.files().into_keys().collect();
            assert_eq!(names, whole.keys().cloned().collect::<Vec<_>>(), "without {lost}");
            let settled = disk.files();
            disk.ensure(NOW).unwrap();
            assert_eq!(disk.changed(&settled), Vec::<String>::new(), "without {lost}");
        }
    }

    #[test]
    fn the_administrators_kubeconfig_can_be_carried_away() {
        let disk = Disk::new();
        let credentials = disk.ensure(NOW).unwrap();
        let kubeconfig = Kubeconfig::from_yaml(credentials.admin_kubeconfig()).unwrap();
        assert_eq!(kubeconfig.clusters[0].cluster.as_ref().unwrap().server.as_deref(), Some("https://10.0.2.15:6443"));
        assert!(kubeconfig.auth_infos[0].auth_info.as_ref().unwrap().client_key_data.is_some());
        assert!(!credentials.admin_kubeconfig().contains(&*disk.config.paths.pki.to_string_lossy()));
    }

    #[tokio::test]
    async fn every_identity_has_a_kubeconfig_of_which_a_client_can_be_made() {
        let disk = Disk::new();
        let credentials = disk.ensure(OffsetDateTime::now_utc()).unwrap();
        for identity in MADE {
            credentials.client(identity).await.unwrap();
        }
        let error = credentials.client(Identity::Storage).await.err().unwrap();
        assert!(matches!(error, ClientError::Kubeconfig { .. } | ClientError::Client { .. }), "{error}");
        assert!(credentials.kubeconfig(Identity::Storage).exists());
    }
}
