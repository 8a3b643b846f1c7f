//! A pod that writes to a filesystem volume, and that the store freezes by its cgroup. This module is not a part of the
//! other fixtures, because only some programs depend on `freezer`. It must be at the root of its program.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ktest_support::{Writer, eventually, mount_cgroups, numbers, this_program};
use volume::{FrozenPods, PodFreezer, Store, VolumeId};

const HIERARCHY: &str = "/tmp/cgroup";
pub const CGROUP: &str = "/tmp/cgroup/pod";
const FILES: [&str; 4] = ["0", "1", "2", "3"];

/// Entry point of the guard, if this program was started as one.
#[test]
#[ignore = "started by the tests"]
fn the_guard() {
    freezer::guard();
}

/// Entry point of the writer, if this program was started as one.
#[test]
#[ignore = "started by the tests"]
fn the_writer() {
    Writer::run(|_, _| ());
}

/// A process in a cgroup that writes numbers to four files of a volume. It is killed when the value is dropped, which
/// comes before the end of the disk.
pub struct Pod {
    top: PathBuf,
    freezer: Arc<dyn PodFreezer>,
    _writer: Writer,
}

impl Pod {
    /// Mounts the hierarchy of cgroups, and starts the process. One test of a program can do that.
    pub fn start(top: &Path) -> Self {
        mount_cgroups(Path::new(HIERARCHY));
        let writer = Writer::start("cgroup::the_writer", Path::new(CGROUP), top, &FILES);
        Self { top: top.to_owned(), freezer: Arc::new(Cgroup), _writer: writer }
    }

    /// Lets the store freeze the pod, for as long as the pod exists.
    pub fn register(&self, store: &Store) {
        store.freeze_by(Arc::downgrade(&self.freezer));
    }

    /// The last number in a copy of the volume. Checks that the copy has one instant in all files.
    pub fn number_in(copy: &Path) -> u64 {
        let found = numbers(copy, &FILES).expect("all files have a number");
        // The writer writes each number after the one before it.
        assert!(found.is_sorted_by(|one, next| one >= next) && found[0] - found[3] <= 1, "{found:?}");
        found[0]
    }

    /// Waits until the process has written a larger number to all files.
    pub fn writes_after(&self, number: u64) {
        eventually("the pod runs again", || numbers(&self.top, &FILES).is_some_and(|numbers| numbers[3] > number));
    }
}

/// Freezer that stops the pod by its cgroup.
#[derive(Debug)]
struct Cgroup;

struct Frozen(freezer::Frozen);

impl PodFreezer for Cgroup {
    fn freeze(&self, _: &[VolumeId], budget: Duration) -> Result<Box<dyn FrozenPods>, Box<dyn Error + Send + Sync>> {
        Ok(Box::new(Frozen(freezer::freeze(this_program("cgroup::the_guard"), &[CGROUP], budget)?)))
    }
}

impl FrozenPods for Frozen {
    fn deadline(&self) -> Option<Instant> {
        Some(self.0.deadline())
    }

    fn thaw(self: Box<Self>) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(self.0.thaw().map(drop)?)
    }
}
