//! Curve25519 keys in WireGuard's text form.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dir::{Dir, Ensured, Name};
use nix::sys::stat::Mode;

const FILE: &str = "clusternet.key";

const MODE: Mode = Mode::S_IRUSR.union(Mode::S_IWUSR);

const LENGTH: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum ParseKeyError {
    #[error("a key must have 44 characters of base64, the last of them `=`")]
    Form,
    /// All bytes are zero, for example because the file was overwritten.
    #[error("a key must not be zero")]
    Zero,
}

/// The private key cannot be read or created. The error contains no part of the key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("cannot read the private key of the mesh")]
    Read(#[source] dir::Error),
    /// The file is not replaced, because other nodes identify the node by the key that it contained.
    #[error("file {FILE} does not contain a private key; restore it, or remove it to create a new key")]
    Invalid(#[source] ParseKeyError),
    #[error("cannot generate a private key")]
    Random(#[source] getrandom::Error),
    #[error("cannot write the private key of the mesh")]
    Write(#[source] dir::Error),
}

/// Public key that identifies a node to other nodes. The text form is that of wg(8).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; LENGTH]);

/// The private key of a node. The key cannot be cloned or printed; only the kernel and the file receive it.
pub struct PrivateKey([u8; LENGTH]);

impl PublicKey {
    pub fn new(bytes: [u8; LENGTH]) -> Result<Self, ParseKeyError> {
        if bytes == [0; LENGTH] { Err(ParseKeyError::Zero) } else { Ok(Self(bytes)) }
    }

    pub(crate) const fn bytes(self) -> [u8; LENGTH] {
        self.0
    }
}

impl FromStr for PublicKey {
    type Err = ParseKeyError;

    fn from_str(text: &str) -> Result<Self, ParseKeyError> {
        Self::new(decode(text)?)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl PrivateKey {
    /// Reads the key from this directory. If the file is missing, creates a key durably, readable by root only. Never
    /// replaces an invalid file.
    pub fn ensure(dir: &Dir) -> Result<Ensured<Self>, KeyError> {
        let name = Name::try_from(FILE).expect("a valid file name");
        if let Some(found) = dir.read(&name).map_err(KeyError::Read)? {
            return Self::from_file(&found).map(Ensured::Unchanged).map_err(KeyError::Invalid);
        }
        let mut bytes = [0; LENGTH];
        getrandom::fill(&mut bytes).map_err(KeyError::Random)?;
        let key = Self::clamped(bytes);
        let text = STANDARD.encode(key.0) + "\n";
        dir.write(&name, text.as_bytes(), MODE).map_err(KeyError::Write)?;
        Ok(Ensured::Created(key))
    }

    fn from_file(content: &[u8]) -> Result<Self, ParseKeyError> {
        let text = std::str::from_utf8(content).map_err(|_| ParseKeyError::Form)?;
        let bytes = decode(text.strip_suffix('\n').unwrap_or(text))?;
        // The kernel interprets a zero key as a request to remove the key.
        if bytes == [0; LENGTH] { Err(ParseKeyError::Zero) } else { Ok(Self::clamped(bytes)) }
    }

    /// Clamps the key as X25519 does (RFC 7748, section 5), and as the kernel returns it.
    const fn clamped(mut bytes: [u8; LENGTH]) -> Self {
        bytes[0] &= 0b1111_1000;
        bytes[LENGTH - 1] = bytes[LENGTH - 1] & 0b0111_1111 | 0b0100_0000;
        Self(bytes)
    }

    pub(crate) const fn bytes(&self) -> &[u8; LENGTH] {
        &self.0
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey")
    }
}

fn decode(text: &str) -> Result<[u8; LENGTH], ParseKeyError> {
    let bytes = STANDARD.decode(text).map_err(|_| ParseKeyError::Form)?;
    bytes.try_into().map_err(|_| ParseKeyError::Form)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::*;

    fn scratch() -> (TempDir, Dir, std::path::PathBuf) {
        let scratch = tempfile::tempdir().unwrap();
        let dir = Dir::open(scratch.path()).unwrap();
        let file = scratch.path().join(FILE);
        (scratch, dir, file)
    }

    #[test]
    fn a_new_key_is_private_and_is_read_again() {
        let (_scratch, dir, file) = scratch();
        let Ok(Ensured::Created(new)) = PrivateKey::ensure(&dir) else { panic!("no new key") };
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o600);
        let text = fs::read_to_string(&file).unwrap();
        assert_eq!((text.len(), text.ends_with("=\n")), (45, true));
        let Ok(Ensured::Unchanged(found)) = PrivateKey::ensure(&dir) else { panic!("no key found") };
        assert_eq!(found.bytes(), new.bytes());
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
    }

    #[test]
    fn new_keys_are_different() {
        let [(_one, one, _), (_two, two, _)] = [scratch(), scratch()];
        let key = |dir| PrivateKey::ensure(dir).unwrap().into_inner();
        assert_ne!(key(&one).bytes(), key(&two).bytes());
    }

    #[test]
    fn an_invalid_key_file_is_an_error_and_remains() {
        let (_scratch, dir, file) = scratch();
        let zero = STANDARD.encode([0; LENGTH]);
        for (content, why) in [
            (&b""[..], ParseKeyError::Form),
            (b"\n", ParseKeyError::Form),
            (b"not a key", ParseKeyError::Form),
            (&[0; 45], ParseKeyError::Form),
            (&[0xff; 44], ParseKeyError::Form),
            (zero.as_bytes(), ParseKeyError::Zero),
        ] {
            fs::write(&file, content).unwrap();
            match PrivateKey::ensure(&dir) {
                Err(KeyError::Invalid(found)) => assert_eq!(found, why, "{content:?}"),
                other => panic!("{content:?}: {other:?}"),
            }
            assert_eq!(fs::read(&file).unwrap(), content);
        }
    }

    #[test]
    fn a_directory_instead_of_the_key_file_is_an_error() {
        let (_scratch, dir, file) = scratch();
        fs::create_dir(&file).unwrap();
        assert!(matches!(PrivateKey::ensure(&dir), Err(KeyError::Read(_))));
    }

    #[test]
    fn a_key_of_the_wg_tool_is_parsed() {
        let key: PublicKey = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=".parse().unwrap();
        assert_eq!(key.bytes()[..4], [0xc5, 0x32, 0x01, 0x03]);
        assert_eq!(key.to_string(), "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=");
        let private = PrivateKey::from_file(b"yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\n").unwrap();
        assert_eq!(private.bytes()[0], 0xc8);
    }

    proptest! {
        #[test]
        fn parsing_reverses_display(bytes: [u8; LENGTH]) {
            prop_assume!(bytes != [0; LENGTH]);
            let key = PublicKey::new(bytes).unwrap();
            prop_assert_eq!(key.to_string().parse(), Ok(key));
        }

        #[test]
        fn each_key_has_exactly_one_text(text in "[A-Za-z0-9+/]{42}[A-Za-z0-9+/][A-Za-z0-9+/= ]") {
            if let Ok(key) = text.parse::<PublicKey>() {
                prop_assert_eq!(key.to_string(), text);
            }
        }

        #[test]
        fn parsing_never_panics(text: String, content: Vec<u8>) {
            let _ = text.parse::<PublicKey>();
            let _ = PrivateKey::from_file(&content);
        }

        #[test]
        fn debug_output_omits_the_private_key(bytes: [u8; LENGTH]) {
            let key = PrivateKey::clamped(bytes);
            prop_assert_eq!(format!("{key:?}"), "PrivateKey");
            prop_assert_eq!((key.0[0] & 7, key.0[31] >> 6), (0, 1));
        }
    }
}
