//! What stands beside each volume and makes the disk self-describing.

use std::fmt;

use fsquota::ProjectId;
use serde::{Deserialize, Serialize};
use units::{Bytes, Inodes};

/// The claim that a volume was made for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The claim's UID: a claim of the same name that was made anew is another one.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// How pods see the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// A directory with a quota.
    Filesystem,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Filesystem => "filesystem",
        })
    }
}

/// How far the volume got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The API server may not know of it: it is undone if the claim is gone.
    Staged,
    /// Its PV exists, or existed: nothing but the PV's deletion removes it.
    Announced,
}

/// All that is known of a volume without the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// For whom it was made.
    pub claim: Claim,
    /// The claim's storage class.
    pub class: String,
    /// Directory or image.
    pub mode: Mode,
    /// What the PV promises.
    pub size: Bytes,
    /// How many files it may hold.
    pub inodes: Inodes,
    /// The project whose quota limits it.
    pub project: ProjectId,
    /// How far it got.
    pub state: State,
}

/// Why a file holds no [`Record`].
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A newer release wrote it.
    #[error("the record has version {0}, this release reads version {VERSION}; start the newer release again")]
    Version(u32),
    /// It is damaged, or not ours.
    #[error("the record cannot be read")]
    Syntax(#[source] serde_json::Error),
}

const VERSION: u32 = 1;

/// Only this is read before the version is known.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// Version 1 of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    version: u32,
    claim: Claim,
    class: String,
    mode: Mode,
    size_bytes: Bytes,
    inodes: Inodes,
    project: ProjectId,
    state: State,
}

impl Record {
    /// Parses the content of a record's file.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn parse(content: &[u8]) -> Result<Self, RecordError> {
        let Versioned { version } = serde_json::from_slice(content).map_err(RecordError::Syntax)?;
        if version != VERSION {
            return Err(RecordError::Version(version));
        }
        let Stored { version: _, claim, class, mode, size_bytes, inodes, project, state } =
            serde_json::from_slice(content).map_err(RecordError::Syntax)?;
        Ok(Self { claim, class, mode, size: size_bytes, inodes, project, state })
    }

    /// The content of the record's file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let Self { claim, class, mode, size, inodes, project, state } = self.clone();
        let stored = Stored { version: VERSION, claim, class, mode, size_bytes: size, inodes, project, state };
        // Strings, numbers and unit variants: nothing in it can fail to be JSON.
        let mut content = serde_json::to_vec(&stored).unwrap_or_default();
        content.push(b'\n');
        content
    }

    /// What the volume may take from the disk at most: its blocks, and 512 bytes for each inode, which XFS does not
    /// charge to the quota of blocks.
    pub fn promised(&self) -> Bytes {
        promised(self.size, self.inodes)
    }
}

/// See [`Record::promised`].
pub(crate) fn promised(size: Bytes, inodes: Inodes) -> Bytes {
    size.saturating_add(Bytes::new(inodes.get().saturating_mul(512)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record() -> impl Strategy<Value = Record> {
        let claim =
            ("[ -~]{0,9}", "[a-z]{1,9}", ".{0,9}").prop_map(|(uid, namespace, name)| Claim { uid, namespace, name });
        let state = prop_oneof![Just(State::Staged), Just(State::Announced)];
        (claim, ".{0,9}", any::<u64>(), any::<u64>(), 1..u32::MAX, state).prop_map(
            |(claim, class, size, inodes, project, state)| Record {
                claim,
                class,
                mode: Mode::Filesystem,
                size: Bytes::new(size),
                inodes: Inodes::new(inodes),
                project: ProjectId::new(project).expect("in range"),
                state,
            },
        )
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(record in record()) {
            prop_assert_eq!(Record::parse(&record.to_bytes()).unwrap(), record);
        }

        #[test]
        fn damaged_records_are_errors_and_no_panic(record in record(), cut in 0usize..400, flip in 0usize..400) {
            let whole = record.to_bytes();
            let cut = cut.min(whole.len().saturating_sub(2)); // less than the closing brace
            prop_assert!(Record::parse(&whole[..cut]).is_err());
            let mut damaged = whole.clone();
            let at = flip % whole.len();
            damaged[at] ^= 0x80;
            let _ = Record::parse(&damaged);
        }
    }

    #[test]
    fn the_file_of_version_1_stays_readable() {
        let content = br#"{"version":1,"claim":{"uid":"u","namespace":"n","name":"c"},"class":"local",
            "mode":"filesystem","size_bytes":4096,"inodes":64,"project":7,"state":"announced"}"#;
        let record = Record::parse(content).unwrap();
        assert_eq!(record.state, State::Announced);
        assert_eq!(record.project.get(), 7);
        assert_eq!(record.promised(), Bytes::new(4096 + 64 * 512));
    }

    #[test]
    fn another_version_is_named_whatever_else_it_holds() {
        let error = Record::parse(br#"{"version":2,"new":true}"#).unwrap_err();
        assert!(matches!(error, RecordError::Version(2)));
        assert!(matches!(Record::parse(b"").unwrap_err(), RecordError::Syntax(_)));
    }

    #[test]
    fn project_zero_is_no_project() {
        let content = br#"{"version":1,"claim":{"uid":"u","namespace":"n","name":"c"},"class":"local",
            "mode":"filesystem","size_bytes":4096,"inodes":64,"project":0,"state":"staged"}"#;
        assert!(matches!(Record::parse(content).unwrap_err(), RecordError::Syntax(_)));
    }
}
