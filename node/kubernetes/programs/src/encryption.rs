//! The keys that encrypt Secrets in etcd, and the API server's EncryptionConfiguration. No I/O.
//!
//! The API server writes with the first key of the first provider and reads with all of them.

use std::fmt::Write as _;

use cluster::{SecretKey, SecretStorage};
use k8s_openapi::ByteString;
use serde_json::json;
use sha2::{Digest as _, Sha256};

/// Bytes of a key of the provider `secretbox` (XSalsa20 and Poly1305).
pub(crate) const SIZE: usize = 32;

pub(crate) struct Key {
    number: SecretKey,
    bytes: [u8; SIZE],
}

impl Key {
    pub(crate) const fn new(number: SecretKey, bytes: [u8; SIZE]) -> Self {
        Self { number, bytes }
    }

    pub(crate) const fn number(&self) -> SecretKey {
        self.number
    }

    fn name(&self) -> String {
        format!("key{}", self.number)
    }

    pub(crate) fn digest(&self) -> String {
        let digest = Sha256::new().chain_update(b"granary key of secrets\0").chain_update(self.bytes).finalize();
        digest[..8].iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    fn base64(&self) -> String {
        json!(ByteString(self.bytes.to_vec())).as_str().unwrap_or_default().to_owned()
    }

    /// `keyNUMBER BASE64`. The first key has no name, because an earlier release had only one key.
    fn parse(line: &str) -> Option<Self> {
        let (number, base64) = match line.split_once(' ') {
            None => (SecretKey::default(), line),
            Some((name, base64)) => (SecretKey::new(name.strip_prefix("key")?.parse().ok()?)?, base64),
        };
        let ByteString(bytes) = serde_json::from_value(base64.into()).ok()?;
        Some(Self { number, bytes: bytes.try_into().ok()? })
    }
}

/// Content of `secrets.key`: one line per key, the newest first.
#[derive(Default)]
pub(crate) struct Keys(Vec<Key>);

impl Keys {
    /// `None` if a line is damaged or the text is empty.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let keys: Vec<_> = str::from_utf8(text).ok()?.lines().map(Key::parse).collect::<Option<_>>()?;
        let ordered = keys.is_sorted_by(|newer, older| newer.number > older.number);
        (ordered && !keys.is_empty()).then_some(Self(keys))
    }

    pub(crate) fn text(&self) -> String {
        let line = |key: &Key| match key.number {
            first if first == SecretKey::default() => key.base64(),
            _ => format!("{} {}", key.name(), key.base64()),
        };
        self.0.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    pub(crate) fn newest(&self) -> Option<&Key> {
        self.0.first()
    }

    pub(crate) fn digests(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(Key::digest)
    }

    /// Adds the key with which the API server writes after its next start.
    pub(crate) fn add(&mut self, newest: Key) {
        self.0.insert(0, newest);
    }

    /// Removes all keys but the newest; no Secret may be encrypted with the others. Returns their names.
    pub(crate) fn remove_old(&mut self) -> Vec<String> {
        self.0.drain(self.0.len().min(1)..).map(|key| key.name()).collect()
    }

    /// Identifies the stored form of a Secret that is written now.
    pub(crate) fn form(&self, storage: SecretStorage) -> String {
        match (storage, self.newest()) {
            (SecretStorage::Encrypted, Some(key)) => key.digest(),
            _ => "plain".to_owned(),
        }
    }

    pub(crate) fn configuration(&self, storage: SecretStorage) -> String {
        let keys: Vec<_> = self.0.iter().map(|key| json!({"name": key.name(), "secret": key.base64()})).collect();
        let encrypted = json!({"secretbox": {"keys": keys}});
        let plain = json!({"identity": {}});
        let providers = match storage {
            SecretStorage::Encrypted => [encrypted, plain],
            SecretStorage::Plain => [plain, encrypted],
        };
        json!({
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "EncryptionConfiguration",
            "resources": [{"resources": ["secrets"], "providers": providers}],
        })
        .to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn key(number: u32, byte: u8) -> Key {
        Key::new(SecretKey::new(number).unwrap(), [byte; SIZE])
    }

    #[test]
    fn the_newest_key_writes_and_all_keys_read() {
        let mut keys = Keys(vec![key(1, 7)]);
        assert_eq!(keys.text(), "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=", "as in a release with one key");
        let former = keys.form(SecretStorage::Encrypted);
        keys.add(key(3, 8));
        assert_ne!(keys.form(SecretStorage::Encrypted), former);
        let read: Value = serde_json::from_str(&keys.configuration(SecretStorage::Encrypted)).unwrap();
        let names = read["resources"][0]["providers"][0]["secretbox"]["keys"].as_array().unwrap();
        assert_eq!(names.iter().map(|key| key["name"].as_str().unwrap()).collect::<Vec<_>>(), ["key3", "key1"]);
        assert_eq!(keys.remove_old(), ["key1"]);
        assert_eq!(keys.remove_old(), [""; 0]);
        assert_eq!(keys.newest().unwrap().number(), SecretKey::new(3).unwrap());
    }

    #[test]
    fn a_damaged_file_has_no_keys() {
        let good = Keys(vec![key(2, 9), key(1, 7)]).text();
        assert!(Keys::parse(format!("{good}\n").as_bytes()).is_some());
        let lines: Vec<_> = good.lines().collect();
        let reversed = format!("{}\n{}", lines[1], lines[0]);
        let twice = format!("{good}\n{}", lines[1]);
        let other_name = good.replace("key2", "kex2");
        for damaged in
            ["", "\n", "c2hvcnQ=", "key0 BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=", &reversed, &twice, &other_name]
        {
            assert!(Keys::parse(damaged.as_bytes()).is_none(), "{damaged}");
        }
        assert!(Keys::parse(b"\xff").is_none());
    }

    proptest! {
        #[test]
        fn a_written_file_is_read_again(numbers in prop::collection::btree_set(1_u32.., 1..4), byte in any::<u8>()) {
            let keys = Keys(numbers.into_iter().rev().map(|number| key(number, byte)).collect());
            let read = Keys::parse(keys.text().as_bytes()).unwrap();
            prop_assert_eq!(read.configuration(SecretStorage::Encrypted), keys.configuration(SecretStorage::Encrypted));
        }

        #[test]
        fn any_text_is_read_or_rejected(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Keys::parse(&text);
        }
    }
}
