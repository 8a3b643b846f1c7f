//! [`ProjectId`].

use std::fmt;
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

/// ID of a project, 1 to 2^32−2.
///
/// For the kernel, 0 means "no project" and 2^32−1 "invalid". Serde writes a plain number and validates it when
/// reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct ProjectId(NonZeroU32);

impl ProjectId {
    /// The smallest ID.
    pub const FIRST: Self = Self(NonZeroU32::MIN);

    /// The largest ID.
    pub const MAX: Self = Self(NonZeroU32::new(u32::MAX - 1).unwrap());

    /// Wraps an ID; `None` if it is out of range.
    pub const fn new(id: u32) -> Option<Self> {
        match NonZeroU32::new(id) {
            Some(id) if id.get() != u32::MAX => Some(Self(id)),
            _ => None,
        }
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

impl fmt::Display for ProjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<ProjectId> for u32 {
    fn from(id: ProjectId) -> Self {
        id.get()
    }
}

/// A number that is not a project ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not a project ID; IDs range from 1 to 4294967294")]
pub struct InvalidProjectId(u32);

impl TryFrom<u32> for ProjectId {
    type Error = InvalidProjectId;

    fn try_from(id: u32) -> Result<Self, InvalidProjectId> {
        Self::new(id).ok_or(InvalidProjectId(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_numbers_are_not_project_ids() {
        assert_eq!(ProjectId::new(0), None);
        assert_eq!(ProjectId::new(u32::MAX), None);
        assert_eq!(ProjectId::new(1).map(ProjectId::get), Some(1));
        assert_eq!(ProjectId::new(u32::MAX - 1), Some(ProjectId::MAX));
    }

    #[test]
    fn deserialization_validates_the_id() {
        assert_eq!(serde_json::to_string(&ProjectId::new(7).unwrap()).unwrap(), "7");
        assert_eq!(serde_json::from_str::<ProjectId>("7").unwrap().get(), 7);
        for bad in ["0", "4294967295", "-1", "4294967296"] {
            assert!(serde_json::from_str::<ProjectId>(bad).is_err(), "{bad}");
        }
    }
}
