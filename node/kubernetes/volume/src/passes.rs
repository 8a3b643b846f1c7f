//! Passes over a volume, and the pauses between them. Pure.

use std::time::Duration;

use dir::Ensured;

use crate::Error;

/// Fewest inodes that a pass of a removal must free, so that the next pass follows without a pause.
const FEWEST: u64 = 20;

/// State of a copy that another call continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copying {
    /// Blocks are left to copy. The next call needs no pause.
    InPart,
    /// No block is left to copy, and the source exceeds its own size, until its pods write less ([`SourcePauses`]).
    Waits,
}

/// State of a snapshot, or of those of a group, after a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken<T> {
    pub snapshots: T,
    /// `None`: the snapshots are announced, and share no block or are thin.
    pub copying: Option<Copying>,
}

impl<T: PartialEq> Taken<T> {
    /// Compares the records before and after a call. After a change of a record, the next call does not wait.
    pub fn since(before: Option<T>, snapshots: T, copying: Option<Copying>) -> Ensured<Self> {
        if copying == Some(Copying::InPart) || before.as_ref() != Some(&snapshots) {
            return Ensured::Created(Self { snapshots, copying: copying.and(Some(Copying::InPart)) });
        }
        Ensured::Unchanged(Self { snapshots, copying })
    }
}

/// Pauses before the passes over a copy that waits for its source ([`Copying::Waits`]). Each is twice as long as the
/// one before it, up to a limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct SourcePauses(Option<Duration>);

impl SourcePauses {
    const FIRST: Duration = Duration::from_millis(500);
    const LONGEST: Duration = Duration::from_secs(4);

    /// The pause before the next pass.
    pub fn pause(&mut self) -> Duration {
        let pause = self.0.map_or(Self::FIRST, |former| Self::LONGEST.min(former * 2));
        self.0 = Some(pause);
        pause
    }
}

/// Counts the idle passes of a removal: those that free fewer than 20 inodes ([`Error::is_shrinking`]). Only the
/// removal of the last name of a file frees its inode, and a tenant can give a file any number of names. If other
/// processes add names, a removal ends its idle passes with a pause, or an error.
#[derive(Clone, Copy, Debug, Default)]
pub struct IdlePasses(u32);

impl IdlePasses {
    /// Number of idle passes in one call, or between two pauses.
    pub const LIMIT: u32 = 512;

    /// Whether the next pass follows at once after a pass with this error. The last idle pass returns false, and
    /// restarts the count.
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

impl Error {
    /// Whether a removal needs more passes only because the volume is large. The next pass need not wait.
    pub const fn is_shrinking(&self) -> bool {
        match self {
            // No process can create an inode during the removal, so the number of such passes is bounded. A pass frees
            // fewer inodes if processes link and rename, or if files have many names.
            Self::Unfinished { freed, .. } => freed.get() >= FEWEST,
            _ => false,
        }
    }

    /// Whether the next call continues a copy.
    pub const fn copying(&self) -> Option<Copying> {
        let Self::Copying { left, .. } = self else { return None };
        Some(if left.get() == 0 { Copying::Waits } else { Copying::InPart })
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
    fn the_pauses_of_a_copy_grow_up_to_four_seconds() {
        let mut pauses = SourcePauses::default();
        assert_eq!([(); 6].map(|()| pauses.pause().as_millis()), [500, 1000, 2000, 4000, 4000, 4000]);
    }

    #[test]
    fn a_copy_with_blocks_left_needs_no_pause() {
        let copying = |left| Error::Copying { id: "pvc-1".parse().expect("an identifier"), left };
        assert_eq!(copying(Bytes::ZERO).copying(), Some(Copying::Waits));
        assert_eq!(copying(Bytes::MIB).copying(), Some(Copying::InPart));
        assert_eq!(unfinished(0).copying(), None);
    }

    #[test]
    fn a_removal_ends_after_the_last_idle_pass_in_succession() {
        let (mut idle, few, many) = (IdlePasses::default(), unfinished(19), unfinished(20));
        assert_eq!((1..=IdlePasses::LIMIT).find(|_| !idle.continues(&few)), Some(IdlePasses::LIMIT));
        assert!((1..IdlePasses::LIMIT).all(|_| idle.continues(&few)), "it begins again");
        assert!(idle.continues(&many));
        assert!((1..IdlePasses::LIMIT).all(|_| idle.continues(&few)), "a pass was not idle");
        let id = "pvc-1".parse().expect("an identifier");
        assert!(!idle.continues(&Error::Copying { id, left: Bytes::ZERO }));
    }
}
