//! [`Census`]: resources that a node uses in its kernel, on its disk and in its cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File};
use std::mem;
use std::path::{Path, PathBuf};

use fsquota::{Limits, Usage};
use nix::sys::statvfs::fstatvfs;
use nix::unistd::syncfs;

use crate::Failure;
use crate::server::{CAPACITIES, Server};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Descriptor,
    Thread,
    Mount,
    LoopDevice,
    Project,
    File,
    Byte,
    /// Free space that is published.
    Capacity,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Census(BTreeMap<(Kind, String), u64>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) kind: Kind,
    name: String,
    before: u64,
    now: u64,
}

/// Idle connections to the API server stay in the client's pool for some time.
const POOL: u64 = 32;

/// B-trees and inode chunks that XFS keeps for later use.
const SLACK: u64 = 1 << 20;

impl Kind {
    /// Whether only an increase is a leak. A restarted process may not have opened all of its descriptors yet.
    const fn is_of_process(self) -> bool {
        matches!(self, Self::Descriptor | Self::Thread)
    }

    fn allowance(self, name: &str) -> u64 {
        match self {
            Self::Descriptor if name == "socket" => POOL,
            // The socket is missing only while the registration socket is created again: no kubelet answers in this
            // test.
            Self::Descriptor if name.ends_with("/plugins_registry") => 1,
            Self::Byte => SLACK,
            _ => 0,
        }
    }
}

impl Census {
    pub(crate) fn take(process: u32, root: &Path, server: &Server) -> Result<Self, Failure> {
        let mut census = Self::default();
        let mut mounts = BTreeSet::new();
        for entry in mount::table()? {
            census.add(Kind::Mount, entry.point.display());
            mounts.insert(entry.point);
        }
        for device in loopdev::list()? {
            census.add(Kind::LoopDevice, format_args!("{} on {}", device.number, device.status.backing));
        }
        for entry in fs::read_dir(format!("/proc/{process}/fd"))?.flatten() {
            // The descriptor was closed after the listing.
            let Ok(link) = fs::read_link(entry.path()) else { continue };
            let link = link.display().to_string();
            census.add(Kind::Descriptor, link.split_once(":[").map_or(&*link, |(kind, _)| kind));
        }
        for _ in fs::read_dir(format!("/proc/{process}/task"))?.flatten() {
            census.add(Kind::Thread, "thread");
        }
        let disk = File::open(root)?;
        for quota in fsquota::report(&disk)? {
            let quota = quota?;
            if quota.limits != Limits::default() || quota.used != Usage::default() {
                census.add(Kind::Project, quota.id);
            }
        }
        census.walk(root, &mounts)?;
        // XFS frees the blocks of removed files after their transactions.
        syncfs(&disk)?;
        let space = fstatvfs(&disk)?;
        let used = (space.blocks() - space.blocks_free()) * space.fragment_size();
        census.0.insert((Kind::Byte, "used".to_owned()), used);
        for capacity in server.all(CAPACITIES) {
            census.add(Kind::Capacity, format_args!("{} of {}", capacity["capacity"], capacity["metadata"]["name"]));
        }
        Ok(census)
    }

    /// Counts files without entering mounts, which contain the files of volumes.
    fn walk(&mut self, directory: &Path, mounts: &BTreeSet<PathBuf>) -> Result<(), Failure> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let path = entry.path();
            self.add(Kind::File, path.display());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) && !mounts.contains(&path) {
                self.walk(&path, mounts)?;
            }
        }
        Ok(())
    }

    /// Replaces this census by a later one of the same process. Periodic work briefly uses descriptors and threads, so
    /// the lower count of both is kept. Returns whether a count changed.
    pub(crate) fn lower(&mut self, now: Self) -> bool {
        let before = mem::replace(self, now);
        self.0.retain(|key, count| {
            if key.0.is_of_process() {
                *count = before.0.get(key).copied().unwrap_or_default().min(*count);
            }
            *count > 0
        });
        *self != before
    }

    fn add(&mut self, kind: Kind, name: impl fmt::Display) {
        *self.0.entry((kind, name.to_string())).or_default() += 1;
    }

    pub(crate) fn leaks(&self, now: &Self) -> Vec<Difference> {
        let keys: BTreeSet<_> = self.0.keys().chain(now.0.keys()).collect();
        let count = |census: &Self, key| census.0.get(key).copied().unwrap_or(0);
        let differences = keys.into_iter().map(|key| (key, count(self, key), count(now, key)));
        let leaks = differences.filter(|((kind, name), before, now)| {
            let is_more = *now > before + kind.allowance(name);
            is_more || !kind.is_of_process() && before - before.min(now) > kind.allowance(name)
        });
        leaks.map(|((kind, name), before, now)| Difference { kind: *kind, name: name.clone(), before, now }).collect()
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, name, before, now } = self;
        write!(f, "{kind:?} {name}: {before} before, {now} now")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn census(counts: &[(Kind, &str, u64)]) -> Census {
        Census(counts.iter().map(|(kind, name, count)| ((*kind, (*name).to_owned()), *count)).collect())
    }

    #[test]
    fn a_process_may_have_fewer_and_the_disk_may_not() {
        let before = census(&[(Kind::Thread, "thread", 9), (Kind::Mount, "/a", 1)]);
        assert_eq!(before.leaks(&census(&[(Kind::Thread, "thread", 7), (Kind::Mount, "/a", 1)])), []);
        let leaks = before.leaks(&census(&[(Kind::Thread, "thread", 10)]));
        let texts: Vec<_> = leaks.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["Thread thread: 9 before, 10 now", "Mount /a: 1 before, 0 now"]);
    }

    #[test]
    fn the_least_threads_are_kept() {
        let mut low = census(&[(Kind::Thread, "thread", 4), (Kind::Descriptor, "/a", 1), (Kind::Byte, "used", 5)]);
        assert!(low.lower(census(&[
            (Kind::Thread, "thread", 3),
            (Kind::Descriptor, "/b", 1),
            (Kind::Byte, "used", 9)
        ])));
        let expected = census(&[(Kind::Thread, "thread", 3), (Kind::Byte, "used", 9)]);
        assert_eq!(low, expected);
        assert!(!low.lower(census(&[(Kind::Thread, "thread", 5), (Kind::Byte, "used", 9)])));
        assert_eq!(low, expected);
    }

    #[test]
    fn only_more_than_the_allowance_is_a_leak() {
        let before = census(&[(Kind::Byte, "used", 10 * SLACK), (Kind::Descriptor, "socket", 4)]);
        let at = |bytes, sockets| census(&[(Kind::Byte, "used", bytes), (Kind::Descriptor, "socket", sockets)]);
        assert_eq!(before.leaks(&at(11 * SLACK, 4 + POOL)), []);
        assert_eq!(before.leaks(&at(11 * SLACK + 1, 5 + POOL)).len(), 2);
        assert_eq!(before.leaks(&at(8 * SLACK, 0)).len(), 1);
    }
}
