//! Records of the inodes that were cloned, by which a pass finds those that have not changed since.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::stat::FileStat;

/// Maximum number of records of a clone. A record has 32 bytes, and a table of this size takes 17 MB.
const MAX_RECORDS: usize = 450_000;

/// Maximum number of records of several clones together.
const MAX_TOGETHER: usize = 2 * MAX_RECORDS;

/// Minimum age of a time of change by which an inode is compared. The kernel updates times of change with the
/// resolution of its timer, at least once in 10 ms: a file that has just changed may change again without a new time.
const SETTLING: Duration = Duration::from_millis(100);

/// Seconds and nanoseconds.
type Time = (i64, i64);

/// Records by inode number in the target. While a clone exists, no inode number of the target is used again, because
/// removed entries are moved to the scratch directory.
#[derive(Debug)]
pub(super) struct Records {
    table: Mutex<HashMap<u64, Record>>,
    limit: usize,
}

impl Default for Records {
    fn default() -> Self {
        Self { table: Mutex::default(), limit: MAX_RECORDS }
    }
}

#[derive(Clone, Copy, Debug)]
struct Record {
    /// Inode number in the source.
    source: u64,
    /// Time of change of the source before it was cloned, if it is older than [`SETTLING`]. A later change of the
    /// content (also through a mapping), the attributes or the links sets a later time.
    changed: Option<(i64, u32)>,
}

impl Records {
    /// Records of one of several clones that exist at once.
    pub(super) fn of_one(clones: usize) -> Self {
        Self { limit: (MAX_TOGETHER / clones.max(1)).min(MAX_RECORDS), ..Self::default() }
    }

    /// Whether `target` is the clone of this inode.
    pub(super) fn is_clone_of(&self, target: u64, source: &FileStat) -> bool {
        self.lock().get(&target).is_some_and(|record| record.source == source.st_ino)
    }

    /// Whether `target` is the clone of this inode, and the inode has not changed since.
    pub(super) fn is_equal(&self, target: u64, source: &FileStat) -> bool {
        let found = self.lock().get(&target).copied();
        found.is_some_and(|record| {
            record.source == source.st_ino && record.changed.is_some() && record.changed == Some(time_of_change(source))
        })
    }

    /// Records that `target` is a clone of `source`, whose attributes were read before it was cloned, in a pass that
    /// began at `begin`.
    pub(super) fn insert(&self, target: u64, source: &FileStat, begin: Time) {
        let changed = is_settled((source.st_ctime, source.st_ctime_nsec), begin).then(|| time_of_change(source));
        let record = Record { source: source.st_ino, changed };
        let mut records = self.lock();
        if records.len() < self.limit || records.contains_key(&target) {
            records.insert(target, record);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Record>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn time_of_change(stat: &FileStat) -> (i64, u32) {
    (stat.st_ctime, u32::try_from(stat.st_ctime_nsec).unwrap_or(u32::MAX))
}

fn is_settled(changed: Time, begin: Time) -> bool {
    let nanoseconds = |(seconds, nanoseconds): Time| i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
    nanoseconds(changed).saturating_add_unsigned(SETTLING.as_nanos()) < nanoseconds(begin)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use nix::sys::stat::fstat;

    use super::*;

    fn stat(inode: u64, changed: Time) -> FileStat {
        let mut stat = fstat(File::open("/").unwrap()).unwrap();
        (stat.st_ino, stat.st_ctime, stat.st_ctime_nsec) = (inode, changed.0, changed.1);
        stat
    }

    #[test]
    fn an_inode_is_equal_until_its_time_of_change_differs() {
        let records = Records::default();
        let source = stat(7, (100, 5));
        assert!(!records.is_clone_of(1, &source) && !records.is_equal(1, &source));
        records.insert(1, &source, (200, 0));
        assert!(records.is_clone_of(1, &source) && records.is_equal(1, &source));
        for changed in [stat(7, (100, 6)), stat(7, (99, 5))] {
            assert!(records.is_clone_of(1, &changed) && !records.is_equal(1, &changed));
        }
        assert!(!records.is_clone_of(1, &stat(8, (100, 5))) && !records.is_equal(2, &source));
    }

    #[test]
    fn an_inode_that_has_just_changed_may_change_again_unnoticed() {
        let records = Records::default();
        for (begin, expected) in
            [((100, 0), false), ((100, 50_000_000), false), ((99, 0), false), ((100, 200_000_000), true)]
        {
            let source = stat(7, (100, 0));
            records.insert(1, &source, begin);
            assert_eq!(records.is_equal(1, &source), expected, "{begin:?}");
            assert!(records.is_clone_of(1, &source));
        }
    }

    #[test]
    fn the_table_is_bounded() {
        let (records, source) = (Records::default(), stat(7, (100, 0)));
        for target in 0..MAX_RECORDS as u64 + 10 {
            records.insert(target, &source, (200, 0));
        }
        assert_eq!(records.lock().len(), MAX_RECORDS);
        let shared = Records::of_one(30);
        for target in 0..MAX_TOGETHER as u64 / 30 + 10 {
            shared.insert(target, &source, (200, 0));
        }
        assert_eq!(shared.lock().len(), MAX_TOGETHER / 30);
        assert_eq!([0, 1, 2].map(|clones| Records::of_one(clones).limit), [MAX_RECORDS; 3]);
        // A full table replaces records that it has.
        records.insert(3, &stat(8, (100, 0)), (200, 0));
        assert!(records.is_equal(3, &stat(8, (100, 0))));
    }
}
