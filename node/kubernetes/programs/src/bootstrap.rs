//! Bootstrap tokens: what a machine shows to join the cluster as one certain node.
//!
//! A token is a Secret of Kubernetes' own kind (`bootstrap.kubernetes.io/token`), which the API server accepts until it
//! expires or is deleted; an annotation says which node it is for. Documented by Kubernetes: "Authenticating with
//! Bootstrap Tokens".

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read as _};
use std::str::FromStr;

use k8s_openapi::api::core::v1::Secret;
use serde::ser::Error as _;
use serde_json::json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Where the Secrets of tokens are.
pub const BOOTSTRAP_NAMESPACE: &str = "kube-system";

/// The type of the Secrets of tokens.
pub const BOOTSTRAP_TYPE: &str = "bootstrap.kubernetes.io/token";

/// On the Secret of a token: the name of the node that may join with it.
pub const BOOTSTRAP_NODE_ANNOTATION: &str = "node.granary.dev/name";

/// The name of the Secret of the token with this ID.
pub fn bootstrap_secret_name(id: &str) -> String {
    format!("bootstrap-token-{id}")
}

/// A bootstrap token, `ID.SECRET`. Its secret part is shown by [`Token::reveal`] only.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    id: String,
    secret: String,
}

/// No bootstrap token. What it is instead is not shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is no bootstrap token: it has 6 and 16 of the characters a-z and 0-9, with a dot between")]
pub struct NotAToken;

const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
const ID: usize = 6;
const SECRET: usize = 16;

impl Token {
    /// A new one, of the kernel's random numbers.
    ///
    /// # Errors
    /// `/dev/urandom` cannot be read.
    pub fn generate() -> io::Result<Self> {
        let mut source = BufReader::new(File::open("/dev/urandom")?).bytes();
        Ok(Self { id: letters(&mut source, ID)?, secret: letters(&mut source, SECRET)? })
    }

    /// The part that is no secret.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The whole token, to be sent or handed over.
    pub fn reveal(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }

    /// The Secret that has the API server accept it until `expires`, for the node of this name.
    ///
    /// # Errors
    /// A time outside of RFC 3339's years.
    pub fn secret(&self, node: &str, expires: OffsetDateTime) -> Result<Secret, serde_json::Error> {
        let expires = expires.replace_nanosecond(0).unwrap_or(expires).format(&Rfc3339);
        let expires = expires.map_err(serde_json::Error::custom)?;
        serde_json::from_value(json!({
            "metadata": {
                "name": bootstrap_secret_name(&self.id),
                "namespace": BOOTSTRAP_NAMESPACE,
                "annotations": {BOOTSTRAP_NODE_ANNOTATION: node},
            },
            "type": BOOTSTRAP_TYPE,
            "stringData": {
                "token-id": self.id,
                "token-secret": self.secret,
                "expiration": expires,
                "usage-bootstrap-authentication": "true",
            },
        }))
    }
}

/// Letters that all come up equally often: bytes beyond the last multiple of their number are left out.
fn letters(source: &mut impl Iterator<Item = io::Result<u8>>, count: usize) -> io::Result<String> {
    let fair = u8::MAX - u8::MAX % 36;
    source
        .filter_map(|byte| match byte {
            Ok(byte) if byte < fair => Some(Ok(char::from(LETTERS[usize::from(byte % 36)]))),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        })
        .take(count)
        .collect()
}

impl FromStr for Token {
    type Err = NotAToken;

    fn from_str(text: &str) -> Result<Self, NotAToken> {
        let (id, secret) = text.split_once('.').ok_or(NotAToken)?;
        let fits = |part: &str, length: usize| part.len() == length && part.bytes().all(|byte| LETTERS.contains(&byte));
        if !fits(id, ID) || !fits(secret, SECRET) {
            return Err(NotAToken);
        }
        Ok(Self { id: id.to_owned(), secret: secret.to_owned() })
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({}.…)", self.id)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_new_token_is_one_and_another_each_time() {
        let tokens = [Token::generate().unwrap(), Token::generate().unwrap()];
        for token in &tokens {
            assert_eq!(token.reveal().parse(), Ok(token.clone()));
        }
        assert_ne!(tokens[0], tokens[1]);
    }

    #[test]
    fn only_the_id_is_shown() {
        let token: Token = "abcdef.0123456789abcdef".parse().unwrap();
        assert_eq!(format!("{token:?}"), "Token(abcdef.…)");
    }

    #[test]
    fn the_secret_says_for_whom_and_until_when() {
        let token: Token = "abcdef.0123456789abcdef".parse().unwrap();
        let secret = token.secret("two", OffsetDateTime::UNIX_EPOCH).unwrap();
        assert_eq!(secret.metadata.name.as_deref(), Some("bootstrap-token-abcdef"));
        assert_eq!(secret.metadata.annotations.unwrap()[BOOTSTRAP_NODE_ANNOTATION], "two");
        assert_eq!(secret.string_data.unwrap()["expiration"], "1970-01-01T00:00:00Z");
    }

    #[test]
    fn every_letter_comes_up_equally_often() {
        let mut all = Vec::from_iter(0..=u8::MAX);
        all.retain(|byte| *byte < 252);
        let text = letters(&mut all.into_iter().map(Ok), 252).unwrap();
        for letter in LETTERS {
            assert_eq!(text.bytes().filter(|found| found == letter).count(), 7);
        }
        assert_eq!(letters(&mut [255, 254, 253, 252, 0].into_iter().map(Ok), 1).unwrap(), "a");
    }

    proptest! {
        #[test]
        fn what_is_no_token_is_refused_without_being_shown(text in "[a-z0-9.A-Z]{0,30}") {
            match text.parse::<Token>() {
                Ok(token) => prop_assert_eq!(token.reveal(), text),
                Err(error) => prop_assert!(text.len() < 4 || !error.to_string().contains(&text)),
            }
        }
    }
}
