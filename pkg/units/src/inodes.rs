//! [`Inodes`].

use std::fmt;
use std::iter::Sum;

use serde::{Deserialize, Serialize};

/// A number of inodes: files, directories, symbolic links, devices and so on.
///
/// `Display` prints `512 inodes`. Serde writes a plain number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Inodes(u64);

impl Inodes {
    /// 0 inodes.
    pub const ZERO: Self = Self(0);

    /// Wraps a number of inodes.
    pub const fn new(inodes: u64) -> Self {
        Self(inodes)
    }

    /// The number of inodes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The sum; `None` on overflow.
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// The difference; `None` if `other` is larger than `self`.
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

    /// The difference, at least 0.
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
    /// Saturates at `u64::MAX`.
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
    fn the_unit_is_singular_for_one_inode() {
        assert_eq!(Inodes::new(1).to_string(), "1 inode");
        assert_eq!(Inodes::new(512).to_string(), "512 inodes");
    }

    #[test]
    fn arithmetic_reports_or_saturates_overflow() {
        assert_eq!(Inodes::new(3).checked_sub(Inodes::new(4)), None);
        assert_eq!(Inodes::new(3).saturating_sub(Inodes::new(4)), Inodes::ZERO);
        assert_eq!(Inodes::new(u64::MAX).checked_add(Inodes::new(1)), None);
    }
}
