use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read as _};
use std::str::FromStr;

const CHARACTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
const ID: usize = 6;
const SECRET: usize = 16;

/// A bootstrap token of Kubernetes, `ID.SECRET`, with which a machine joins the cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    id: String,
    secret: String,
}

/// The text is not a [`Token`]. The error does not contain the text, because it may be a part of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a bootstrap token, which is 6 and 16 of the characters a-z and 0-9 with a dot between them")]
pub struct TokenError;

impl Token {
    pub fn generate() -> io::Result<Self> {
        let mut source = BufReader::new(File::open("/dev/urandom")?).bytes();
        Ok(Self { id: characters(&mut source, ID)?, secret: characters(&mut source, SECRET)? })
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn secret(&self) -> &str {
        &self.secret
    }

    pub fn reveal(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }
}

/// Skips bytes beyond the last multiple of 36, so that all characters have the same probability.
fn characters(source: &mut impl Iterator<Item = io::Result<u8>>, count: usize) -> io::Result<String> {
    let fair = u8::MAX - u8::MAX % 36;
    source
        .filter(|byte| byte.as_ref().map_or(true, |byte| *byte < fair))
        .map(|byte| byte.map(|byte| char::from(CHARACTERS[usize::from(byte % 36)])))
        .take(count)
        .collect()
}

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let (id, secret) = text.split_once('.').ok_or(TokenError)?;
        let is_part = |part: &str, length| part.len() == length && part.bytes().all(|byte| CHARACTERS.contains(&byte));
        if !is_part(id, ID) || !is_part(secret, SECRET) {
            return Err(TokenError);
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
    fn each_generated_token_is_valid_and_different() {
        let tokens = [Token::generate().unwrap(), Token::generate().unwrap()];
        for token in &tokens {
            assert_eq!(token.reveal().parse(), Ok(token.clone()));
        }
        assert_ne!(tokens[0], tokens[1]);
    }

    #[test]
    fn debug_output_contains_only_the_id() {
        let token: Token = "abcdef.0123456789abcdef".parse().unwrap();
        assert_eq!(format!("{token:?}"), "Token(abcdef.…)");
    }

    #[test]
    fn all_characters_have_the_same_probability() {
        let text = characters(&mut (0..252).map(Ok), 252).unwrap();
        for character in CHARACTERS {
            assert_eq!(text.bytes().filter(|found| found == character).count(), 7);
        }
        assert_eq!(characters(&mut [255, 254, 253, 252, 0].into_iter().map(Ok), 1).unwrap(), "a");
    }

    proptest! {
        #[test]
        fn the_error_does_not_contain_the_text(text in "[a-z0-9.A-Z]{0,30}") {
            match text.parse::<Token>() {
                Ok(token) => prop_assert_eq!(token.reveal(), text),
                Err(error) => prop_assert!(text.len() < 4 || !error.to_string().contains(&text)),
            }
        }
    }
}
