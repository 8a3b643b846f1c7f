//! The directory of certificates, keys and kubeconfigs, and its content. Waits for the disk.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use dir::{Dir, Name};
use nix::sys::stat::Mode;
use rcgen::KeyPair;
use time::OffsetDateTime;
use tracing::{info, warn};

use crate::pki::certificate::{Ca, Pair, Stale, Validity, Wanted};
use crate::pki::identity::Identity;
use crate::pki::kubeconfig;

/// Copy of the key that signs tokens of service accounts, for kube-controller-manager: a key file belongs to one user.
pub(crate) const CONTROLLERS_SIGNING_KEY: &str = "controller-manager-sa";

pub(crate) const ENCRYPTION: &str = "encryption.json";

pub(crate) const SECRET: Mode = Mode::S_IRUSR.union(Mode::S_IWUSR);
pub(crate) const PUBLIC: Mode = SECRET.union(Mode::S_IRGRP).union(Mode::S_IROTH);

#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    #[error("cannot create {path}")]
    Directory { path: PathBuf, source: io::Error },
    #[error("cannot store certificates")]
    Disk(#[from] dir::Error),
    #[error(
        "the data disk is that of a worker, which has joined the cluster of another node: write worker into the \
         configuration, or use an empty data disk for a new cluster"
    )]
    Worker,
    #[error(
        "the data disk is that of a control plane, with its cluster: write controlPlane into the configuration, or use an \
         empty data disk for a worker"
    )]
    ControlPlane,
    /// The clock is behind, or was ahead when the CA was created. Neither is a reason to replace the CA.
    #[error(
        "the cluster's CA is valid from {from}, and the machine's clock is at {now}: set the clock if it is behind; if it \
         is correct, it was ahead at the first boot of this disk: start the node after {from}, or use an empty data disk \
         for a new cluster"
    )]
    Clock { from: OffsetDateTime, now: OffsetDateTime },
    #[error(
        "cannot use the cluster's CA in {pki}; restore ca.crt and ca.key from a backup of the disk: the \
         node does not start without them, because all workers and kubeconfigs accept this CA only"
    )]
    Ca { pki: PathBuf, source: Stale },
    #[error(
        "cannot use {path}, the certificate of the cluster's CA; restart the node, which fetches it from the control \
         plane"
    )]
    Trust { path: PathBuf, source: Stale },
    #[error(
        "cannot use {path}, the keys of the cluster's Secrets: it is missing or damaged; restore it from a backup of the disk \
         or of its directory pki: no Secret can be read without it, and the node does not create another file"
    )]
    SecretsKey { path: PathBuf },
    #[error(
        "{path} lacks the key with the digest {digest}, with which Secrets in etcd are encrypted; restore it from a newer \
         backup of the disk or of its directory pki, or, if etcd's data is from the same time as pki or is removed, remove {used}, \
         which lists the key"
    )]
    OtherSecretsKey { path: PathBuf, digest: String, used: PathBuf },
    #[error("cannot read random numbers from /dev/urandom")]
    Random(#[source] io::Error),
    #[error("cannot remove {path}, which the old CA signed")]
    Remove { path: PathBuf, source: io::Error },
    #[error("cannot create the certificate {name}")]
    Certificate { name: &'static str, source: rcgen::Error },
    #[error("cannot sign the certificate of {user}; remove its request from controlPlane.administratorRequests")]
    Administrator { user: String, source: rcgen::Error },
}

pub(crate) fn file(pki: &Path, name: &str, extension: &str) -> PathBuf {
    pki.join(format!("{name}.{extension}"))
}

/// Deletes the client certificates that the kubelet requested itself, so that it starts with the certificate of this
/// node's CA. The kubelet would prefer them, although another CA signed them. Durable when this returns.
fn forget_kubelets_own(kubelet_pki: &Path) -> Result<(), PkiError> {
    let path = kubelet_pki.join("kubelet-client-current.pem");
    match fs::remove_file(&path).and_then(|()| File::open(kubelet_pki)?.sync_all()) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(PkiError::Remove { path, source }),
        _ => Ok(()),
    }
}

pub(crate) struct Store {
    dir: Dir,
}

impl Store {
    pub(crate) fn create(pki: &Path) -> Result<Self, PkiError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(pki);
        made.map_err(|source| PkiError::Directory { path: pki.to_path_buf(), source })?;
        Self::open(pki)
    }

    pub(crate) fn kubeconfigs(&self, pki: &Path, server: &str, identities: &[Identity]) -> Result<(), PkiError> {
        for identity in identities {
            let path = |extension| file(pki, identity.name(), extension);
            let local = kubeconfig::with_files(server, &file(pki, "ca", "crt"), &path("crt"), &path("key"));
            self.write(&format!("{}.kubeconfig", identity.name()), &local, SECRET)?;
        }
        Ok(())
    }

    pub(crate) fn open(pki: &Path) -> Result<Self, PkiError> {
        Ok(Self { dir: Dir::open(pki)? })
    }

    /// Only a control plane has signing keys. One of the two exists even if the other was lost.
    fn is_a_control_planes(&self) -> Result<bool, PkiError> {
        Ok(self.read("ca.key")?.is_some() || self.read("sa.key")?.is_some())
    }

    pub(crate) fn is_not_a_workers(&self) -> Result<(), PkiError> {
        let is = !self.is_a_control_planes()? && self.read_pair(Identity::Kubelet.name())?.is_some();
        if is { Err(PkiError::Worker) } else { Ok(()) }
    }

    pub(crate) fn is_not_a_control_planes(&self) -> Result<(), PkiError> {
        if self.is_a_control_planes()? { Err(PkiError::ControlPlane) } else { Ok(()) }
    }

    /// Creates the CA at the first boot. An expiring CA gets a new certificate for the same key, whose digest workers
    /// accept. A lost CA is not replaced, so that it can be restored.
    pub(crate) fn ca(&self, pki: &Path, kubelet_pki: &Path, now: OffsetDateTime) -> Result<(), PkiError> {
        let unmade = |source| PkiError::Certificate { name: "ca", source };
        let found = self.read_pair("ca")?.ok_or(Stale::Absent).and_then(|pair| Ca::open(&pair));
        let lost = match found {
            Ok((ca, validity)) => {
                return match validity.check(now, validity.shortly_before_its_end()) {
                    Ok(()) => Ok(()),
                    Err(Stale::NotYet) => Err(PkiError::Clock { from: validity.from(), now }),
                    Err(stale) => {
                        self.write("ca.crt", &ca.renew(validity, now).map_err(unmade)?, PUBLIC)?;
                        info!(reason = %stale, "certificate of the CA renewed with the same key");
                        Ok(())
                    }
                };
            }
            Err(stale) => stale,
        };
        // `sa.key` is created after the CA. If it is missing, a power cut interrupted the first boot, and the cluster
        // has nothing to lose.
        if self.dir.read(&name_of("sa.key"))?.is_some() {
            return Err(PkiError::Ca { pki: pki.to_path_buf(), source: lost });
        }
        if lost != Stale::Absent {
            warn!(reason = %lost, "CA and all certificates replaced");
        }
        let (_, pair) = Ca::make(now).map_err(unmade)?;
        // The deletion must precede the new CA: once the CA is on the disk, the next boot has nothing to do here.
        forget_kubelets_own(kubelet_pki)?;
        self.write_pair("ca", &pair)?;
        info!(name = "ca", reason = %lost, "certificate created");
        Ok(())
    }

    pub(crate) fn issue(
        &self,
        ca: &Ca,
        wanted: &Wanted,
        stale: Stale,
        now: OffsetDateTime,
    ) -> Result<Validity, PkiError> {
        let name = wanted.name;
        let pair = ca.issue(wanted, now).map_err(|source| PkiError::Certificate { name, source })?;
        self.write_pair(name, &pair)?;
        info!(name, reason = %stale, "certificate created");
        Ok(Validity::of_new_leaf(now))
    }

    /// The keys that sign tokens of service accounts. Only an unreadable key is replaced, which invalidates every
    /// token.
    pub(crate) fn service_accounts(&self) -> Result<(), PkiError> {
        let found = self.read("sa.key")?.and_then(|pem| KeyPair::from_pem(&pem).ok());
        let key = match found {
            Some(key) => key,
            None => {
                let key = KeyPair::generate().map_err(|source| PkiError::Certificate { name: "sa", source })?;
                self.write("sa.key", &key.serialize_pem(), SECRET)?;
                info!(name = "sa", "signing key created");
                key
            }
        };
        self.write(&format!("{CONTROLLERS_SIGNING_KEY}.key"), &key.serialize_pem(), SECRET)?;
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

    /// Invalid UTF-8 is treated as a missing file.
    pub(crate) fn read(&self, name: &str) -> Result<Option<String>, PkiError> {
        Ok(self.dir.read(&name_of(name))?.and_then(|content| String::from_utf8(content).ok()))
    }

    pub(crate) fn read_bytes(&self, name: &str) -> Result<Option<Vec<u8>>, PkiError> {
        Ok(self.dir.read(&name_of(name))?)
    }

    pub(crate) fn write(&self, name: &str, content: &str, mode: Mode) -> Result<(), PkiError> {
        if self.read(name)?.as_deref() == Some(content) {
            return Ok(());
        }
        Ok(self.dir.write(&name_of(name), content.as_bytes(), mode)?)
    }
}

#[expect(clippy::expect_used, reason = "names are made of literals of this crate")]
pub(crate) fn name_of(name: &str) -> Name {
    Name::try_from(name).expect("a file name without a slash")
}
