//! Decisions of a recovery. Pure.

use std::time::Duration;

use units::Bytes;

use crate::headroom;

/// Pause between two defragmentations that free little, because etcd answers no request during a defragmentation.
pub(super) const PAUSE: Duration = Duration::from_mins(10);

/// etcd's database and its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Database {
    /// Size of the database file, with free pages. The quota limits this size.
    pub(super) size: Bytes,
    /// Size without free pages.
    pub(super) in_use: Bytes,
    pub(super) quota: Bytes,
    /// Free space in the directory.
    pub(super) available: Bytes,
}

/// The last defragmentation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Defragmented {
    pub(super) ago: Duration,
    /// [`Database::in_use`] after it.
    pub(super) in_use: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Recovered,
    /// etcd accepts writes again, but not many.
    NearlyFull,
    /// etcd would reject each write with a value, and raise the alarm again.
    Full,
}

impl Database {
    /// Space below the quota. A database with less is nearly full.
    fn share(&self) -> Bytes {
        Bytes::new(self.quota.get() / 8)
    }

    fn is_nearly_full(&self) -> bool {
        self.quota.saturating_sub(self.size) < self.share()
    }

    /// Whether etcd's directory has space for the copy that a defragmentation creates, and for etcd's log at the same
    /// time.
    fn copy_fits(&self) -> bool {
        self.in_use.saturating_add(headroom::SIZE) <= self.available
    }
}

/// Whether to defragment a compacted database. Only a defragmentation shrinks the file.
pub(super) fn needs_defragmentation(database: &Database, last: Option<Defragmented>) -> bool {
    let frees_much = database.size.saturating_sub(database.in_use) >= database.share();
    let is_due = |last: Defragmented| {
        // Objects were deleted since a defragmentation that was not enough.
        let is_smaller = database.size >= database.quota && database.in_use < last.in_use;
        last.ago >= PAUSE || frees_much || is_smaller
    };
    database.is_nearly_full() && database.copy_fits() && last.is_none_or(is_due)
}

/// The outcome for a compacted and, if possible, defragmented database. The alarm is disarmed except with
/// [`Outcome::Full`].
///
/// A small space is enough, because a user who wants to delete objects needs some writes: an object with finalizers,
/// and a pod with a grace period, is written once more before it is deleted.
pub(super) fn outcome(database: &Database) -> Outcome {
    if database.size >= database.quota {
        Outcome::Full
    } else if database.is_nearly_full() {
        Outcome::NearlyFull
    } else {
        Outcome::Recovered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn mib(number: u64) -> Bytes {
        Bytes::new(number << 20)
    }

    /// A database with a quota of 80 MiB.
    fn database(size: Bytes, in_use: Bytes) -> Database {
        Database { size, in_use, quota: mib(80), available: mib(1000) }
    }

    fn last(ago: Duration, in_use: Bytes) -> Option<Defragmented> {
        Some(Defragmented { ago, in_use })
    }

    #[test]
    fn a_full_database_is_defragmented_if_its_copy_has_space() {
        let full = database(mib(80), mib(60));
        assert!(needs_defragmentation(&full, None));
        assert!(needs_defragmentation(&Database { available: mib(68), ..full }, None));
        assert!(!needs_defragmentation(&Database { available: mib(67), ..full }, None), "etcd's log needs the space");
        assert!(!needs_defragmentation(&database(mib(60), mib(1)), None), "it has space for writes");
    }

    #[test]
    fn a_defragmentation_that_frees_little_is_repeated_after_a_pause() {
        let full = database(mib(79), mib(78));
        let recent = Duration::from_secs(30);
        assert!(!needs_defragmentation(&full, last(recent, mib(78))));
        assert!(needs_defragmentation(&full, last(PAUSE, mib(78))));
        assert!(needs_defragmentation(&database(mib(79), mib(69)), last(recent, mib(69))), "it frees 10 MiB");
    }

    #[test]
    fn a_deletion_is_reason_for_another_defragmentation() {
        let recent = Duration::from_secs(30);
        assert!(!needs_defragmentation(&database(mib(81), mib(80)), last(recent, mib(80))));
        assert!(needs_defragmentation(&database(mib(81), mib(79)), last(recent, mib(80))));
        assert!(!needs_defragmentation(&database(mib(79), mib(77)), last(recent, mib(78))), "it accepts writes");
    }

    /// etcd rejects a write if the size and the cost of the write reach the quota.
    #[test]
    fn the_alarm_stays_only_if_no_write_fits() {
        assert_eq!(outcome(&database(mib(81), mib(80))), Outcome::Full);
        assert_eq!(outcome(&database(mib(80), mib(80))), Outcome::Full);
        assert_eq!(outcome(&database(Bytes::new((80 << 20) - 1), mib(79))), Outcome::NearlyFull);
        assert_eq!(outcome(&database(mib(71), mib(71))), Outcome::NearlyFull);
        assert_eq!(outcome(&database(mib(70), mib(70))), Outcome::Recovered);
    }
}
