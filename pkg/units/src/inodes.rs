//! [`Inodes`].

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::quantity::quantity;

/// A number of inodes: files, directories, symbolic links, devices and so on.
///
/// `Display` prints `512 inodes`. Serde writes a plain number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Inodes(u64);

quantity!(Inodes, "inodes");

impl fmt::Display for Inodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, if self.0 == 1 { "inode" } else { "inodes" })
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
