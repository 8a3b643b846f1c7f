//! Passes of a removal that free no inode.

use crate::Error;

/// Counts the passes over a volume that free no inode. Only the last name of a file frees it, and a tenant can give it any
/// number of them. Processes that add names get a pause, or an error.
#[derive(Clone, Copy, Debug, Default)]
pub struct IdlePasses(u32);

impl IdlePasses {
    /// Of one call, or between two pauses.
    pub const LIMIT: u32 = 512;

    /// Whether the next pass follows at once after a pass with this error. After the last idle one it does not, and the count begins
    /// again.
    pub fn continues(&mut self, error: &Error) -> bool {
        match error {
            error if error.is_shrinking() => {
                self.0 = 0;
                true
            }
            Error::Unfinished { .. } => {
                self.0 = (self.0 + 1) % Self::LIMIT;
                self.0 != 0
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use units::{Bytes, Inodes};

    use super::*;

    fn unfinished(freed: u64) -> Error {
        let id = "pvc-1".parse().expect("an identifier");
        Error::Unfinished { id, freed: Inodes::new(freed), left: Inodes::new(1) }
    }

    #[test]
    fn a_removal_ends_after_the_last_idle_pass_in_succession() {
        let (mut idle, none, many) = (IdlePasses::default(), unfinished(0), unfinished(2048));
        assert_eq!((1..=IdlePasses::LIMIT).find(|_| !idle.continues(&none)), Some(IdlePasses::LIMIT));
        assert!((1..IdlePasses::LIMIT).all(|_| idle.continues(&none)), "it begins again");
        assert!(idle.continues(&many));
        assert!((1..IdlePasses::LIMIT).all(|_| idle.continues(&none)), "a pass has freed inodes");
        let id = "pvc-1".parse().expect("an identifier");
        assert!(!idle.continues(&Error::Copying { id, left: Bytes::ZERO }));
    }
}
