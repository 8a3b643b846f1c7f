//! The name of a volume.

use std::fmt;
use std::str::FromStr;

use dir::{Dir, Name};
use serde::{Deserialize, Serialize};

/// The longest identifier, in bytes: a letter, 128 others, and the last.
const MAX_LEN: usize = 130;

/// CSI volume handle and PV name, `[a-z][a-z0-9.-]{0,128}[a-z0-9]`: always one safe path component.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VolumeId(Name);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid volume ID {text:?}: it must match [a-z][a-z0-9.-]{{0,128}}[a-z0-9]")]
pub struct VolumeIdError {
    text: String,
}

impl VolumeId {
    /// The name of the directory, image and record that belong to the volume.
    pub const fn name(&self) -> &Name {
        &self.0
    }

    pub fn as_str(&self) -> &str {
        // Only `FromStr` creates an ID, from text.
        self.0.to_str().unwrap_or_default()
    }
}

/// Entries of a directory of the store that are named like volumes, without the temporary names of interrupted runs
/// (`.ID.new`, `.ID.1`).
pub(crate) fn volumes_in(dir: &Dir) -> Result<Vec<VolumeId>, dir::Error> {
    let volume = |name: Name| name.to_str().and_then(|text| text.parse().ok());
    Ok(dir.names()?.into_iter().filter_map(volume).collect())
}

impl FromStr for VolumeId {
    type Err = VolumeIdError;

    fn from_str(text: &str) -> Result<Self, VolumeIdError> {
        let error = || VolumeIdError { text: text.chars().take(MAX_LEN + 1).collect() };
        let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        match text.as_bytes() {
            [first, middle @ .., last]
                if text.len() <= MAX_LEN
                    && first.is_ascii_lowercase()
                    && alphanumeric(last)
                    && middle.iter().all(|byte| alphanumeric(byte) || matches!(byte, b'.' | b'-')) =>
            {
                Name::try_from(text).map(Self).map_err(|_| error())
            }
            _ => Err(error()),
        }
    }
}

impl TryFrom<String> for VolumeId {
    type Error = VolumeIdError;

    fn try_from(text: String) -> Result<Self, VolumeIdError> {
        text.parse()
    }
}

impl From<VolumeId> for String {
    fn from(id: VolumeId) -> Self {
        id.as_str().to_owned()
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_name_of_a_claims_volume_is_accepted() {
        let text = "pvc-0b6f2f6e-9c1f-4d4e-8d0a-6f1f2a3b4c5d";
        assert_eq!(text.parse::<VolumeId>().unwrap().to_string(), text);
    }

    #[test]
    fn a_name_that_leaves_or_hides_in_the_directory_is_rejected() {
        for text in ["", "a", "..", ".a", "a/b", "a/../b", "a.", "-a", "A1", "1a", "a_b", "a\0b", "ä1", "a\n"] {
            assert!(text.parse::<VolumeId>().is_err(), "{text:?}");
        }
        assert!("a".repeat(130).parse::<VolumeId>().is_ok());
        assert!("a".repeat(131).parse::<VolumeId>().is_err());
    }

    proptest! {
        #[test]
        fn an_accepted_identifier_keeps_its_text(text in "[a-z][a-z0-9.-]{0,128}[a-z0-9]") {
            let id: VolumeId = text.parse()?;
            prop_assert_eq!(id.as_str(), text.as_str());
            prop_assert_eq!(id.name().to_str(), Some(text.as_str()));
        }

        #[test]
        fn any_other_text_is_rejected(text in "[a-z.-]{0,2}[^a-z0-9.-][a-z.-]{0,2}") {
            prop_assert!(text.parse::<VolumeId>().is_err());
        }
    }
}
