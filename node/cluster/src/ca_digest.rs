use std::fmt;
use std::str::FromStr;

/// SHA-256 of the public key of a CA (its SubjectPublicKeyInfo, DER), written `sha256:` and 64 hexadecimal digits, as
/// kubeadm does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CaDigest([u8; 32]);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the digest of a CA: write it as sha256: and 64 hexadecimal digits")]
pub struct DigestError(String);

impl From<[u8; 32]> for CaDigest {
    fn from(sha256: [u8; 32]) -> Self {
        Self(sha256)
    }
}

impl FromStr for CaDigest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let error = || DigestError(text.to_owned());
        let digits = text.strip_prefix("sha256:").filter(|digits| digits.len() == 64).ok_or_else(error)?;
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks(2)) {
            let &[high, low] = pair else { return Err(error()) };
            *byte = digit(high).zip(digit(low)).map(|(high, low)| high << 4 | low).ok_or_else(error)?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for CaDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for CaDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_digest_is_parsed_from_its_text(bytes: [u8; 32]) {
            let digest = CaDigest(bytes);
            prop_assert_eq!(digest.to_string().parse(), Ok(digest));
        }

        #[test]
        fn the_error_contains_the_text(text in "(sha256:)?[0-9a-fA-Fxé:]{0,70}") {
            match text.parse::<CaDigest>() {
                Ok(digest) => prop_assert_eq!(digest.to_string(), text.to_lowercase()),
                Err(error) => prop_assert_eq!(error, DigestError(text)),
            }
        }
    }
}
