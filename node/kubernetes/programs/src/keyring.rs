//! The keys of Secrets on the data disk, and the record of the keys that etcd needs. Waits for the disk.
//!
//! | file | content |
//! |---|---|
//! | `pki/secrets.key` | the keys |
//! | `pki/encryption.json` | the API server's EncryptionConfiguration, generated from the keys |
//! | `etcd/secrets-keys` | digests of the keys with which Secrets in etcd may be encrypted |
//! | `etcd/member/secrets-form` | the form in which all Secrets are stored; missing while some may have another form |
//!
//! A restore of a snapshot replaces the database's directory and therefore removes `secrets-form`: Secrets of the
//! snapshot may have any form.

use std::fs::{DirBuilder, File};
use std::io::Read as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

use dir::Dir;
use tracing::info;

use crate::Config;
use crate::encryption::{Key, Keys, SIZE};
use crate::pki::store::{ENCRYPTION, PkiError, SECRET, Store, file, name_of};

const KEYS: &str = "secrets.key";
const USED: &str = "secrets-keys";
const MEMBER: &str = "member";
const FORM: &str = "secrets-form";

pub(crate) struct Keyring {
    keys: Keys,
}

impl Keyring {
    /// Reads the keys. Changes nothing.
    pub(crate) fn find(store: &Store, config: &Config) -> Result<Self, PkiError> {
        let path = || file(&config.paths.pki, "secrets", "key");
        let used = match Dir::open(&config.paths.etcd) {
            Ok(etcd) => etcd.read(&name_of(USED))?,
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error.into()),
        };
        let keys = match store.read_bytes(KEYS)? {
            Some(text) => Keys::parse(&text).ok_or_else(|| PkiError::SecretsKey { path: path() })?,
            // Both files are written after the key, so the key existed and is lost.
            None if used.is_some() || store.read_bytes(ENCRYPTION)?.is_some() => {
                return Err(PkiError::SecretsKey { path: path() });
            }
            None => Keys::default(),
        };
        let used = used.unwrap_or_default();
        let missing = String::from_utf8_lossy(&used);
        let missing = missing.lines().find(|digest| !keys.digests().any(|found| found == *digest));
        match missing {
            Some(digest) => Err(PkiError::OtherSecretsKey {
                path: path(),
                digest: digest.to_owned(),
                used: config.paths.etcd.join(USED),
            }),
            None => Ok(Self { keys }),
        }
    }

    /// Creates the key with the configured number if the newest key has a smaller number. Removes older keys after all
    /// Secrets are stored in the current form. A power cut may end the work after each step: `secrets.key` always has
    /// each key that `secrets-keys` lists.
    pub(crate) fn ensure(self, store: &Store, config: &Config) -> Result<StoredSecrets, PkiError> {
        let Self { mut keys } = self;
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&config.paths.etcd);
        made.map_err(|source| PkiError::Directory { path: config.paths.etcd.clone(), source })?;
        let etcd = Dir::open(&config.paths.etcd)?;
        if keys.newest().is_none_or(|newest| newest.number() < config.settings.secret_key) {
            let key = Key::new(config.settings.secret_key, random()?);
            info!(
                name = "secrets", number = %config.settings.secret_key, digest = key.digest(),
                "encryption key created"
            );
            keys.add(key);
            // The key must be durable before the first Secret is encrypted with it.
            store.write(KEYS, &keys.text(), SECRET)?;
        }
        let stored = StoredSecrets { etcd: config.paths.etcd.clone(), form: keys.form(config.settings.secret_storage) };
        if stored.is_complete()? {
            let removed = keys.remove_old();
            if !removed.is_empty() {
                info!(?removed, "old encryption keys removed: no Secret is encrypted with them");
            }
        } else {
            stored.forget()?;
        }
        let used = keys.digests().collect::<Vec<_>>().join("\n");
        if etcd.read(&name_of(USED))?.as_deref() != Some(used.as_bytes()) {
            etcd.write(&name_of(USED), used.as_bytes(), SECRET)?;
        }
        store.write(KEYS, &keys.text(), SECRET)?;
        store.write(ENCRYPTION, &keys.configuration(config.settings.secret_storage), SECRET)?;
        Ok(stored)
    }
}

fn random() -> Result<[u8; SIZE], PkiError> {
    let mut bytes = [0; SIZE];
    File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes)).map_err(PkiError::Random)?;
    Ok(bytes)
}

/// Durable record that all Secrets in etcd are stored in the current form. Waits for the disk.
#[derive(Clone, Debug)]
pub struct StoredSecrets {
    etcd: PathBuf,
    form: String,
}

impl StoredSecrets {
    pub fn is_complete(&self) -> Result<bool, PkiError> {
        let Some(member) = self.member()? else { return Ok(false) };
        Ok(member.read(&name_of(FORM))?.as_deref() == Some(self.form.as_bytes()))
    }

    pub fn complete(&self) -> Result<(), PkiError> {
        let member = Dir::open(&self.etcd)?.open_dir(&name_of(MEMBER))?;
        Ok(member.write(&name_of(FORM), self.form.as_bytes(), SECRET)?)
    }

    /// Removes the record. Must precede the first Secret in another form.
    fn forget(&self) -> Result<(), PkiError> {
        let Some(member) = self.member()? else { return Ok(()) };
        match member.remove_file(&name_of(FORM)) {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(member.sync()?),
        }
    }

    /// Directory of etcd's database; `None` before etcd's first start.
    fn member(&self) -> Result<Option<Dir>, PkiError> {
        match Dir::open(&self.etcd).and_then(|etcd| etcd.open_dir(&name_of(MEMBER))) {
            Ok(member) => Ok(Some(member)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}
