//! [`Inodes`].

use std::fmt;
use std::iter::Sum;

use serde::{Deserialize, Serialize};

/// A number of inodes: files, directories, links, and everything else that has a name and a mode.
///
/// Its text says what it counts (`512 inodes`). Serialized it is the plain number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Inodes(u64);

impl Inodes {
    /// None.
    pub const ZERO: Self = Self(0);

    /// So many inodes.
    pub const fn new(inodes: u64) -> Self {
        Self(inodes)
    }

    /// The plain number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The sum; `None` if it does not fit.
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// What is left of `self`; `None` if `other` is more.
    pub const fn checked_sub(self, other: Self) -> Option<Self> {
        match self.0.checked_sub(other.0) {
            Some(rest) => Some(Self(rest)),
            None => None,
        }
    }

    /// The sum, at most `u64::MAX`.
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// What is left of `self`, at least none.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Inodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, if self.0 == 1 { "inode" } else { "inodes" })
    }
}

impl Sum for Inodes {
    /// Saturates.
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::ZERO, Self::saturating_add)
    }
}

impl<'a> Sum<&'a Self> for Inodes {
    fn sum<I: Iterator<Item = &'a Self>>(counts: I) -> Self {
        counts.copied().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_says_what_is_counted() {
        assert_eq!(Inodes::new(1).to_string(), "1 inode");
        assert_eq!(Inodes::new(512).to_string(), "512 inodes");
    }

    #[test]
    fn more_than_there_is_cannot_be_taken_away() {
        assert_eq!(Inodes::new(3).checked_sub(Inodes::new(4)), None);
        assert_eq!(Inodes::new(3).saturating_sub(Inodes::new(4)), Inodes::ZERO);
        assert_eq!(Inodes::new(u64::MAX).checked_add(Inodes::new(1)), None);
    }
}
