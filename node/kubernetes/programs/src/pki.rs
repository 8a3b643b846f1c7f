//! Certificates, keys and kubeconfigs on the data disk.
//!
//! At each start, and while the node runs, the node renews certificates that expire within 30 days, do not fit the
//! configuration any more, or were damaged by a power cut. Only a start renews the CA's certificate, with the same key,
//! so that the certificates that the CA signed stay valid. The node does not replace a CA that was lost after the first
//! boot: no program would accept the existing certificates.
//!
//! The Kubernetes programs read changed files within five minutes (client-go's `transport`, serving certificates of the
//! API server and the kubelet), so a renewal restarts none of them. Clients that [`Credentials::client`] returns keep
//! their certificates.

pub(crate) mod certificate;
pub(crate) mod expiry;
pub(crate) mod front_proxy;
pub(crate) mod identity;
pub(crate) mod kubeconfig;
pub(crate) mod public;
pub(crate) mod renewal;
pub(crate) mod requested;
pub(crate) mod store;
pub(crate) mod wanted;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use cluster::{API_PORT, AdministratorRequest, Token};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError};
use time::OffsetDateTime;
use tokio::sync::watch;
use tracing::error;

use crate::Config;
use crate::keyring::{Keyring, StoredSecrets};
use crate::pki::certificate::{Ca, Signer, Stale, Validity, Wanted};
use crate::pki::expiry::{Expiries, Expiry, Lasting};
use crate::pki::identity::Identity;
use crate::pki::public::PublicCertificates;
use crate::pki::renewal::Renewal;
use crate::pki::store::{ENCRYPTION, PUBLIC, PkiError, Store, file};

pub struct Credentials {
    pki: PathBuf,
    /// All certificates that this node signs, except the CA's. Empty on a worker.
    wanted: Vec<Wanted>,
    server: String,
    admin: Mutex<String>,
    /// Administrators whose certificates are published. Empty on a worker.
    administrators: Vec<AdministratorRequest>,
    public: Mutex<PublicCertificates>,
    /// New certificates of failed passes, which no [`Renewal`] has named yet.
    made: Mutex<BTreeSet<&'static str>>,
    requested: Expiries,
    secrets: Option<StoredSecrets>,
}

impl Credentials {
    /// Creates missing keys and certificates, and renews those that expire or do not fit the configuration. Waits for
    /// the disk.
    pub fn ensure(config: &Config, now: OffsetDateTime) -> Result<Self, PkiError> {
        let pki = config.paths.pki.clone();
        let store = Store::create(&pki)?;
        store.is_not_a_workers()?;
        // Errors of the keyring must precede all changes.
        let keyring = Keyring::find(&store, config)?;
        store.ca(&pki, &config.paths.kubelet_pki, now)?;
        store.service_accounts()?;
        let secrets = Some(keyring.ensure(&store, config)?);
        store.kubeconfigs(&pki, &format!("https://127.0.0.1:{API_PORT}"), &Identity::ALL)?;
        let clients = Identity::ALL.map(|identity| identity.wanted(&config.node));
        let wanted = wanted::of_programs(config).into_iter().chain(clients).collect();
        let server = format!("https://{}:{API_PORT}", config.address);
        let (admin, public, requested) = (Mutex::default(), Mutex::default(), Expiries::default());
        let administrators = config.settings.administrators.clone();
        let made = Mutex::default();
        let credentials = Self { pki, wanted, server, admin, administrators, public, made, requested, secrets };
        credentials.renew(now)?;
        Ok(credentials)
    }

    /// Credentials of a node that joins the cluster with the API server `server` (`HOST:PORT`) and the CA certificate
    /// `ca` (PEM). The node signs no certificates, but requests them, see [`Requested`](crate::Requested). Waits for
    /// the disk.
    pub fn joining(config: &Config, server: &str, ca: &str) -> Result<Self, PkiError> {
        let pki = config.paths.pki.clone();
        let store = Store::create(&pki)?;
        store.is_not_a_control_planes()?;
        store.write("ca.crt", ca, PUBLIC)?;
        let server = format!("https://{server}");
        store.kubeconfigs(&pki, &server, &[Identity::Kubelet, Identity::Storage, Identity::Dns])?;
        let (admin, public, requested) = (Mutex::default(), Mutex::default(), Expiries::default());
        let (wanted, administrators) = (Vec::new(), Vec::new());
        let made = Mutex::default();
        Ok(Self { pki, wanted, server, admin, administrators, public, made, requested, secrets: None })
    }

    /// CA certificate (PEM) of the cluster that the node has joined; `None` if the node has not joined a cluster. Waits
    /// for the disk.
    pub fn joined(config: &Config) -> Result<Option<String>, PkiError> {
        let store = Store::create(&config.paths.pki)?;
        store.is_not_a_control_planes()?;
        // The node stores the CA's certificate at discovery, before it has joined.
        let kubelets = store.read_pair(Identity::Kubelet.name())?;
        Ok(store.read("ca.crt")?.filter(|_| kubelets.is_some()))
    }

    /// Renews the certificates that are due at `now`, while the node runs. The CA's certificate stays: an error in the
    /// log asks for a restart of the node in time. A worker renews nothing here, and only reports the expiry of its
    /// CA's certificate. Waits for the disk.
    pub fn renew(&self, now: OffsetDateTime) -> Result<Renewal, PkiError> {
        let store = Store::open(&self.pki)?;
        if self.wanted.is_empty() {
            let found = store.read("ca.crt")?.ok_or(Stale::Absent);
            let found = found.and_then(|ca| certificate::validity(&ca));
            let validity = found.map_err(|source| PkiError::Trust { path: self.certificate("ca"), source })?;
            // The control plane reports a clock that is behind.
            let _ = check_ca(validity, now);
            let expiries = vec![Expiry { name: "ca", at: validity.to() }];
            return Ok(Renewal { made: Vec::new(), expiries, lasting: None });
        }
        let found = store.read_pair("ca")?.ok_or(Stale::Absent).and_then(|pair| Ca::open(&pair));
        let (ca, validity) = found.map_err(|source| PkiError::Ca { pki: self.pki.clone(), source })?;
        if check_ca(validity, now) == Err(Stale::NotYet) {
            return Err(PkiError::Clock { from: validity.from(), now });
        }

        let mut found = BTreeMap::new();
        for wanted in &self.wanted {
            let checked = match wanted.signer {
                Signer::Cluster => {
                    let pair = store.read_pair(wanted.name)?.ok_or(Stale::Absent);
                    pair.and_then(|pair| ca.verify(wanted, &pair))
                }
                Signer::FrontProxy => front_proxy::verify(&store, wanted)?,
            };
            found.insert(wanted.name, checked);
        }
        let plan = renewal::plan(&found, now);
        for wanted in &self.wanted {
            if let Some(stale) = plan.due.get(wanted.name) {
                let issued = match wanted.signer {
                    Signer::Cluster => store.issue(&ca, wanted, *stale, now)?,
                    Signer::FrontProxy => front_proxy::issue(&store, wanted, *stale, now)?,
                };
                found.insert(wanted.name, Ok(issued));
                // Clients of this certificate have to connect again, even if this pass fails at the next certificate.
                self.made.lock().unwrap_or_else(PoisonError::into_inner).insert(wanted.name);
            }
        }
        if let Some(pair) = store.read_pair(Identity::Admin.name())? {
            let text = kubeconfig::with_contents(&self.server, ca.certificate(), &pair);
            *self.admin.lock().unwrap_or_else(PoisonError::into_inner) = text;
        }
        let mut public = self.public.lock().unwrap_or_else(PoisonError::into_inner);
        *public = public.renewed(&ca, &self.administrators, now)?;
        drop(public);

        found.insert("ca", Ok(validity));
        let expiry = |(&name, validity): (&&'static str, &Validity)| Expiry { name, at: validity.to() };
        let expiries =
            found.iter().filter_map(|(name, found)| Some((name, found.as_ref().ok()?))).map(expiry).collect();
        found.remove("ca");
        let renewal = renewal::plan(&found, now).next.unwrap_or(now);
        let made = std::mem::take(&mut *self.made.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(Renewal { made: made.into_iter().collect(), expiries, lasting: Some(Lasting { renewal }) })
    }

    /// Expiry of the certificates that the node requests ([`Requested`](crate::Requested)), by name. A certificate
    /// appears after its first check.
    pub fn requested(&self) -> watch::Receiver<Vec<Expiry>> {
        self.requested.subscribe()
    }

    pub(crate) fn publish(&self, expiry: Expiry) {
        self.requested.publish(expiry);
    }

    pub fn kubeconfig(&self, identity: Identity) -> PathBuf {
        file(&self.pki, identity.name(), "kubeconfig")
    }

    /// An administrator's kubeconfig for the node's address, with the private key in the file. Valid as long as the
    /// certificate of [`Identity::Admin`].
    pub fn admin_kubeconfig(&self) -> String {
        self.admin.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Certificates that every client may read. Empty on a worker.
    pub fn public(&self) -> PublicCertificates {
        self.public.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub async fn client(&self, identity: Identity) -> Result<kube::Client, ClientError> {
        self.client_as(identity, None).await
    }

    /// A client that authenticates with the bootstrap token, without a certificate.
    pub(crate) async fn client_with(&self, token: &Token) -> Result<kube::Client, ClientError> {
        let user = AuthInfo { token: Some(token.reveal().into()), ..AuthInfo::default() };
        self.client_as(Identity::Kubelet, Some(user)).await
    }

    /// A client with the kubeconfig of an identity, and optionally other credentials.
    async fn client_as(&self, identity: Identity, user: Option<AuthInfo>) -> Result<kube::Client, ClientError> {
        let path = self.kubeconfig(identity);
        let read = async {
            let mut kubeconfig = Kubeconfig::read_from(&path)?;
            if let Some(user) = user {
                for named in &mut kubeconfig.auth_infos {
                    named.auth_info = Some(user.clone());
                }
            }
            kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await
        };
        let config = read.await.map_err(|source| ClientError::Kubeconfig { path: path.clone(), source })?;
        apiclient::client(config).map_err(|source| ClientError::Client { path, source: Box::new(source) })
    }

    /// Record of the stored form of Secrets in etcd. `None` on a worker.
    pub fn secrets(&self) -> Option<&StoredSecrets> {
        self.secrets.as_ref()
    }

    pub(crate) fn certificate(&self, name: &str) -> PathBuf {
        file(&self.pki, name, "crt")
    }

    pub(crate) fn key(&self, name: &str) -> PathBuf {
        file(&self.pki, name, "key")
    }

    pub(crate) fn encryption(&self) -> PathBuf {
        self.pki.join(ENCRYPTION)
    }

    pub(crate) fn public_key(&self, name: &str) -> PathBuf {
        file(&self.pki, name, "pub")
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("cannot use {path}")]
    Kubeconfig { path: PathBuf, source: KubeconfigError },
    #[error("cannot create a client from {path}")]
    Client { path: PathBuf, source: Box<kube::Error> },
}

/// Only a start of the control plane renews the CA's certificate, so an expiring one is an error in the log.
fn check_ca(ca: Validity, now: OffsetDateTime) -> Result<(), Stale> {
    let lasts = ca.check(now, ca.shortly_before_its_end());
    if let Err(reason @ (Stale::Expiring | Stale::Expired)) = lasts {
        error!(
            expires = %ca.to(),
            %reason,
            "the certificate of the cluster's CA expires; restart the control plane's node, which renews it"
        );
    }
    lasts
}

#[cfg(test)]
mod tests {
    mod cut;
    mod secrets;

    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use time::Duration;

    use super::*;
    use crate::pki::certificate::Pair;

    const NOW: OffsetDateTime = time::macros::datetime!(2026-03-01 12:00 UTC);
    /// Time at which leaf certificates are renewed, and the CA's is not.
    const LATER: OffsetDateTime = time::macros::datetime!(2027-02-04 12:00 UTC);

    type Files = BTreeMap<String, String>;

    struct Disk {
        config: Config,
        scratch: tempfile::TempDir,
    }

    impl Disk {
        fn new() -> Self {
            let scratch = tempfile::tempdir().unwrap();
            let config = crate::config::example_in(scratch.path());
            Self { config, scratch }
        }

        /// A disk with all files.
        fn ensured() -> (Self, Files) {
            let disk = Self::new();
            disk.ensure(NOW).unwrap();
            let files = disk.files();
            (disk, files)
        }

        fn ensure(&self, now: OffsetDateTime) -> Result<Credentials, PkiError> {
            Credentials::ensure(&self.config, now)
        }

        fn files(&self) -> Files {
            fs::read_dir(self.scratch.path().join("pki"))
                .unwrap()
                .map(|entry| entry.unwrap())
                .map(|entry| (entry.file_name().into_string().unwrap(), fs::read_to_string(entry.path()).unwrap()))
                .collect()
        }

        fn changed(&self, before: &Files) -> Vec<String> {
            self.files()
                .into_iter()
                .filter(|(name, text)| before.get(name) != Some(text))
                .map(|(name, _)| name)
                .collect()
        }
    }

    #[test]
    fn the_disk_of_another_role_is_left_as_it_is() {
        let disk = Disk::new();
        assert_eq!(Credentials::joined(&disk.config).unwrap(), None);
        let ca = Ca::make(NOW).unwrap().1.certificate;
        Credentials::joining(&disk.config, "192.0.2.1:6443", &ca).unwrap();
        assert_eq!(Credentials::joined(&disk.config).unwrap(), None, "it has only found its cluster");
        let store = Store::open(&disk.config.paths.pki).unwrap();
        store.write_pair("kubelet", &Pair { certificate: "certificate".into(), key: "key".into() }).unwrap();
        assert_eq!(Credentials::joined(&disk.config).unwrap().as_ref(), Some(&ca));
        let before = disk.files();
        assert!(matches!(disk.ensure(NOW), Err(PkiError::Worker)));
        assert_eq!(disk.files(), before);

        let (disk, before) = Disk::ensured();
        assert!(matches!(Credentials::joined(&disk.config), Err(PkiError::ControlPlane)));
        let joining = Credentials::joining(&disk.config, "192.0.2.1:6443", &ca);
        assert!(matches!(joining, Err(PkiError::ControlPlane)));
        assert_eq!(disk.files(), before);
    }

    /// Regression: after the expiry of the CA, the next check was always due, and the worker checked without a pause.
    #[test]
    fn a_node_that_has_joined_only_reports_the_end_of_its_ca() {
        let disk = Disk::new();
        let ca = Ca::make(NOW).unwrap().1.certificate;
        let credentials = Credentials::joining(&disk.config, "192.0.2.1:6443", &ca).unwrap();
        let at = NOW + Duration::days(3650);
        for days in [0, 3640, 3660] {
            let renewal = credentials.renew(NOW + Duration::days(days)).unwrap();
            let expiries = vec![Expiry { name: "ca", at }];
            assert_eq!(renewal, Renewal { made: Vec::new(), expiries, lasting: None }, "{days}");
        }
    }

    #[test]
    fn only_certificates_and_the_public_key_can_be_read_by_others() {
        let (disk, _) = Disk::ensured();
        assert_eq!(fs::metadata(&disk.config.paths.pki).unwrap().permissions().mode() & 0o777, 0o700);
        for name in disk.files().keys() {
            let mode = fs::metadata(disk.config.paths.pki.join(name)).unwrap().permissions().mode() & 0o777;
            let public = Path::new(name).extension().is_some_and(|extension| extension == "crt" || extension == "pub");
            assert_eq!(mode, if public { 0o644 } else { 0o600 }, "{name}");
        }
    }

    #[test]
    fn near_their_end_the_leaves_are_renewed_and_the_ca_stays() {
        let (disk, before) = Disk::ensured();
        disk.ensure(LATER).unwrap();
        let changed = disk.changed(&before);
        // Each pair, and the CA of the front proxy.
        assert_eq!(changed.len(), 2 * (Identity::ALL.len() + 6) + 1, "{changed:?}");
        assert!(!changed.iter().any(|name| name.starts_with("ca.") || name.starts_with("sa.")), "{changed:?}");
    }

    #[test]
    fn a_running_node_renews_what_is_due_and_returns_the_next_time() {
        let disk = Disk::new();
        let credentials = disk.ensure(NOW).unwrap();
        let (before, kubeconfig) = (disk.files(), credentials.admin_kubeconfig());
        let early = credentials.renew(NOW + Duration::days(300)).unwrap();
        assert_eq!((&early.made, early.expiries.len()), (&Vec::new(), Identity::ALL.len() + 7));
        assert_eq!(early.lasting, Some(Lasting { renewal: NOW + Duration::days(335) }));
        assert_eq!(disk.changed(&before), Vec::<String>::new());
        assert_eq!(credentials.admin_kubeconfig(), kubeconfig);

        let later = NOW + Duration::days(340);
        let renewed = credentials.renew(later).unwrap();
        assert_eq!(renewed.made.len(), Identity::ALL.len() + 6, "{renewed:?}");
        assert_eq!(renewed.lasting, Some(Lasting { renewal: later + Duration::days(335) }));
        assert_eq!(renewed.expiries.iter().find(|expiry| expiry.name == "ca").unwrap().at, NOW + Duration::days(3650));
        assert_ne!(credentials.admin_kubeconfig(), kubeconfig);
        assert_eq!(credentials.renew(later).unwrap().made, Vec::<&str>::new());
    }

    /// Regression: the administrator's client kept its certificate until it had expired.
    #[test]
    fn the_renewals_of_a_failed_pass_are_in_the_next_result() {
        let disk = Disk::new();
        let credentials = disk.ensure(NOW).unwrap();
        // The directory prevents the replacement of the last certificate.
        let name = Identity::SnapshotController.name();
        let obstacle = disk.config.paths.pki.join(format!(".{name}.crt.new"));
        fs::create_dir(&obstacle).unwrap();
        let later = NOW + Duration::days(340);
        credentials.renew(later).unwrap_err();
        fs::remove_dir(obstacle).unwrap();
        let made = credentials.renew(later).unwrap().made;
        assert_eq!(made.len(), Identity::ALL.len() + 6, "{made:?}");
        assert_eq!(credentials.renew(later).unwrap().made, Vec::<&str>::new());
    }

    #[test]
    fn the_ca_of_a_running_node_stays_until_its_end() {
        let disk = Disk::new();
        let credentials = disk.ensure(NOW).unwrap();
        let before = disk.files();
        credentials.renew(NOW + Duration::days(3640)).unwrap();
        assert!(!disk.changed(&before).iter().any(|name| name.starts_with("ca.")));
        let error = credentials.renew(NOW - Duration::days(3)).err().unwrap();
        assert!(matches!(error, PkiError::Clock { .. }), "{error}");
    }

    /// Regression: the running node's error asked for a restart, and the start replaced the CA.
    #[test]
    fn a_lost_ca_is_restored_from_a_copy_and_never_replaced() {
        let disk = Disk::new();
        let credentials = disk.ensure(NOW).unwrap();
        let (pki, before) = (&disk.config.paths.pki, disk.files());
        let remedy = format!("in {}; restore ca.crt and ca.key from a backup", pki.display());
        for (names, left) in [
            (&["ca.crt"][..], None),
            (&["ca.key"], None),
            (&["ca.crt", "ca.key"], None),
            (&["ca.crt"], Some("rubbish")),
            (&["ca.crt"], Some(before["apiserver.crt"].as_str())),
        ] {
            for path in names.iter().map(|name| pki.join(name)) {
                left.map_or_else(|| fs::remove_file(&path), |left| fs::write(&path, left)).unwrap();
            }
            let lost = disk.files();
            for error in [credentials.renew(NOW).err(), disk.ensure(NOW).err()] {
                let error = error.unwrap().to_string();
                assert!(error.contains(&remedy), "{names:?}: {error}");
            }
            assert_eq!(disk.files(), lost, "{names:?}: nothing is created");
            names.iter().for_each(|name| fs::write(pki.join(name), &before[*name]).unwrap());
            disk.ensure(NOW + Duration::days(1)).unwrap();
            assert_eq!(disk.changed(&before), Vec::<String>::new());
        }
    }

    #[test]
    fn a_node_that_has_joined_names_the_file_of_its_ca_that_is_lost() {
        let disk = Disk::new();
        let ca = Ca::make(NOW).unwrap().1.certificate;
        let credentials = Credentials::joining(&disk.config, "192.0.2.1:6443", &ca).unwrap();
        let path = disk.config.paths.pki.join("ca.crt");
        fs::write(&path, "rubbish").unwrap();
        let error = credentials.renew(NOW).err().unwrap();
        assert!(matches!(error, PkiError::Trust { source: Stale::Unreadable, .. }), "{error:?}");
        assert!(error.to_string().contains(&format!("{}, ", path.display())), "{error}");
    }

    fn kubelets_own(disk: &mut Disk) -> PathBuf {
        disk.config.paths.kubelet_pki = disk.scratch.path().join("kubelet-pki");
        disk.config.paths.kubelet_pki.join("kubelet-client-current.pem")
    }

    #[test]
    fn a_new_ca_ends_the_certificates_that_kubelet_asked_for() {
        let mut disk = Disk::new();
        let current = kubelets_own(&mut disk);
        disk.ensure(NOW).unwrap();
        fs::create_dir(&disk.config.paths.kubelet_pki).unwrap();
        fs::write(&current, "signed by the first").unwrap();
        for days in [340, 3640] {
            disk.ensure(NOW + Duration::days(days)).unwrap();
            assert!(current.exists(), "{days}");
        }
        // etcd's directory is removed too, because the database would need the key of its Secrets.
        for directory in [&disk.config.paths.pki, &disk.config.paths.etcd] {
            fs::remove_dir_all(directory).unwrap();
        }
        disk.ensure(NOW).unwrap();
        assert!(!current.exists());
    }

    /// Regression: a power cut between the two steps left the kubelet with a certificate that the API server rejected
    /// at every later boot.
    #[test]
    fn a_new_ca_waits_until_kubelets_own_certificate_is_gone() {
        let mut disk = Disk::new();
        let current = kubelets_own(&mut disk);
        // The kubelet's certificate is a directory here. Its removal fails, which interrupts the start at this step.
        fs::create_dir_all(&current).unwrap();
        let error = disk.ensure(NOW).err().unwrap();
        assert!(matches!(error, PkiError::Remove { .. }), "{error}");
        assert_eq!(disk.files(), BTreeMap::new());

        fs::remove_dir(&current).unwrap();
        fs::write(&current, "signed by the first").unwrap();
        disk.ensure(NOW).unwrap();
        assert!(!current.exists() && disk.files().contains_key("ca.crt"));
    }

    /// Workers accept the CA by the digest of its key: with another key, all workers would be lost.
    #[test]
    fn a_ca_at_its_end_gets_a_new_certificate_for_its_key() {
        let servers = ["apiserver", "etcd", "kubelet-server"];
        let of_servers = servers.iter().flat_map(|name| [format!("{name}.crt"), format!("{name}.key")]);
        let mut wanted: Vec<String> = of_servers.chain(["ca.crt".to_owned()]).collect();
        wanted.sort_unstable();
        let (disk, _) = Disk::ensured();
        disk.ensure(NOW + Duration::days(3600)).unwrap();
        let before = disk.files();
        disk.ensure(NOW + Duration::days(3640)).unwrap();
        assert_eq!(disk.changed(&before), wanted, "servers show the new one, the rest stays");

        // A clock that is years ahead, and is then corrected.
        disk.ensure(NOW + Duration::days(9000)).unwrap();
        let ca = disk.files()["ca.crt"].clone();
        disk.ensure(NOW).unwrap();
        let store = Store::open(&disk.config.paths.pki).unwrap();
        let (loaded, _) = Ca::open(&store.read_pair("ca").unwrap().unwrap()).unwrap();
        let kubelets = store.read_pair("kubelet").unwrap().unwrap();
        assert_eq!(loaded.check(&Identity::Kubelet.wanted("granary"), &kubelets, NOW), Ok(()));
        assert_eq!((disk.files()["ca.crt"].clone(), disk.files()["ca.key"].clone()), (ca, before["ca.key"].clone()));
    }

    #[test]
    fn a_new_address_renews_only_the_servers_that_have_it() {
        let (mut disk, before) = Disk::ensured();
        disk.config.address = [10, 0, 2, 99].into();
        disk.ensure(NOW).unwrap();
        assert_eq!(
            disk.changed(&before),
            ["apiserver.crt", "apiserver.key", "kubelet-server.crt", "kubelet-server.key"]
        );
    }

    #[test]
    fn a_clock_before_the_ca_is_an_error_and_changes_nothing() {
        let (disk, before) = Disk::ensured();
        let error = disk.ensure(time::macros::datetime!(1970-01-01 00:00 UTC)).err().unwrap();
        assert!(matches!(error, PkiError::Clock { .. }), "{error}");
        assert_eq!(disk.changed(&before), Vec::<String>::new());
    }

    /// Regression: the error asked to set the clock, which was correct.
    #[test]
    fn a_clock_that_was_ahead_at_first_is_named_as_cause() {
        let disk = Disk::new();
        disk.ensure(NOW + Duration::days(5)).unwrap();
        let before = disk.files();
        let from = NOW + Duration::days(4);
        let error = disk.ensure(NOW).err().unwrap().to_string();
        assert!(error.contains(&format!("is valid from {from}, and the machine's clock is at {NOW}: ")), "{error}");
        assert!(
            error.contains(&format!("ahead at the first boot of this disk: start the node after {from}")),
            "{error}"
        );
        disk.ensure(from).unwrap();
        assert_eq!(disk.changed(&before), Vec::<String>::new());
    }

    #[test]
    fn the_administrators_kubeconfig_can_be_carried_away() {
        let disk = Disk::new();
        let credentials = disk.ensure(NOW).unwrap();
        let kubeconfig = Kubeconfig::from_yaml(&credentials.admin_kubeconfig()).unwrap();
        assert_eq!(kubeconfig.clusters[0].cluster.as_ref().unwrap().server.as_deref(), Some("https://10.0.2.15:6443"));
        assert!(kubeconfig.auth_infos[0].auth_info.as_ref().unwrap().client_key_data.is_some());
        assert!(!credentials.admin_kubeconfig().contains(&*disk.config.paths.pki.to_string_lossy()));
    }

    #[tokio::test]
    async fn every_identity_has_a_kubeconfig_for_a_client() {
        let disk = Disk::new();
        let credentials = disk.ensure(OffsetDateTime::now_utc()).unwrap();
        for identity in Identity::ALL {
            credentials.client(identity).await.unwrap();
        }
    }
}
