//! The scratch disks of the guest, shared by the tests of one program.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

/// The guest's init lists the disks of `ktest` here, in the order of the attribute `disks`.
const VARIABLE: &str = "KTEST_DISKS";

static POOL: LazyLock<Pool> = LazyLock::new(|| Pool::new(parse(&env::var(VARIABLE).unwrap_or_default())));

/// A scratch disk that no other test of this program uses meanwhile. What is on it is left over from
/// tests before.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
}

impl Disk {
    /// Takes a disk, waits until one is free if all are taken. It is given back on drop.
    ///
    /// A test that takes several disks can wait for ever for one that does the same: give `ktest` enough
    /// disks for all threads, or run its tests one by one.
    ///
    /// # Panics
    /// If the guest has no scratch disk at all.
    pub fn take() -> Self {
        Self { path: POOL.take() }
    }

    /// Its device, such as `/dev/vda`.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        POOL.give_back(self.path.clone());
    }
}

fn parse(list: &str) -> Vec<PathBuf> {
    list.split(',').filter(|path| !path.is_empty()).map(PathBuf::from).collect()
}

struct Pool {
    total: usize,
    free: Mutex<Vec<PathBuf>>,
    returned: Condvar,
}

impl Pool {
    fn new(mut disks: Vec<PathBuf>) -> Self {
        disks.reverse();
        Self { total: disks.len(), free: Mutex::new(disks), returned: Condvar::new() }
    }

    fn take(&self) -> PathBuf {
        assert!(self.total > 0, "{VARIABLE} names no disk: give the ktest an attribute like disks = [\"1G\"]");
        let mut free = self.lock();
        loop {
            match free.pop() {
                Some(path) => return path,
                None => free = self.returned.wait(free).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn give_back(&self, path: PathBuf) {
        self.lock().push(path);
        self.returned.notify_one();
    }

    /// A test that panics does not hold the lock.
    fn lock(&self) -> MutexGuard<'_, Vec<PathBuf>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn disks_are_taken_in_their_order() {
        let pool = Pool::new(parse("/dev/vda,/dev/vdb"));
        assert_eq!(pool.take(), Path::new("/dev/vda"));
        assert_eq!(pool.take(), Path::new("/dev/vdb"));
    }

    #[test]
    fn who_finds_no_free_disk_waits_for_one() {
        let pool = Pool::new(parse("/dev/vda"));
        let taken = pool.take();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| pool.take());
            pool.give_back(taken);
            assert_eq!(waiting.join().unwrap(), Path::new("/dev/vda"));
        });
    }

    #[test]
    #[should_panic(expected = "names no disk")]
    fn without_disks_nobody_waits() {
        Pool::new(parse("")).take();
    }
}
