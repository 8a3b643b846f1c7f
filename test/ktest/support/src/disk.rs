//! The scratch disks of the guest, shared by the tests of one program.

use std::array;
use std::env;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

/// Environment variable in which the guest's init lists the disks of `ktest`, in the order of the attribute `disks`.
const VARIABLE: &str = "KTEST_DISKS";

static POOL: LazyLock<Pool> = LazyLock::new(|| Pool::new(parse(&env::var(VARIABLE).unwrap_or_default())));

/// A scratch disk that no other test of this program uses meanwhile. It may contain data of earlier tests.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
}

impl Disk {
    /// Takes a disk until the value is dropped. Waits while all disks are taken. Two tests that take one disk after the
    /// other can deadlock: see [`Disk::take_several`].
    pub fn take() -> Self {
        let [disk] = Self::take_several();
        disk
    }

    /// Takes several disks at once. Waits until enough disks are free.
    pub fn take_several<const COUNT: usize>() -> [Self; COUNT] {
        POOL.take().map(|path| Self { path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        POOL.give_back(self.path.clone());
    }
}

/// Disks that the calling thread holds, in the order in which it took them.
pub(crate) fn held() -> Vec<PathBuf> {
    POOL.held_by(thread::current().id())
}

fn parse(list: &str) -> Vec<PathBuf> {
    list.split(',').filter(|path| !path.is_empty()).map(PathBuf::from).collect()
}

struct Pool {
    total: usize,
    disks: Mutex<Disks>,
    returned: Condvar,
}

struct Disks {
    free: Vec<PathBuf>,
    taken: Vec<(ThreadId, PathBuf)>,
}

impl Pool {
    fn new(mut disks: Vec<PathBuf>) -> Self {
        disks.reverse();
        let total = disks.len();
        Self { total, disks: Mutex::new(Disks { free: disks, taken: Vec::new() }), returned: Condvar::new() }
    }

    fn take<const COUNT: usize>(&self) -> [PathBuf; COUNT] {
        assert!(self.total > 0, "{VARIABLE} names no disk: give the ktest an attribute like disks = [\"1G\"]");
        assert!(self.total >= COUNT, "the test takes {COUNT} disks at once, `disks` of the ktest has {}", self.total);
        let mut disks = self.lock();
        while disks.free.len() < COUNT {
            disks = self.returned.wait(disks).unwrap_or_else(PoisonError::into_inner);
        }
        array::from_fn(|_| {
            let path = disks.free.pop().unwrap_or_default();
            disks.taken.push((thread::current().id(), path.clone()));
            path
        })
    }

    fn give_back(&self, path: PathBuf) {
        let mut disks = self.lock();
        disks.taken.retain(|(_, taken)| *taken != path);
        disks.free.push(path);
        // Wakes all waiting threads: the first one may need more than this disk.
        self.returned.notify_all();
    }

    fn held_by(&self, thread: ThreadId) -> Vec<PathBuf> {
        self.lock().taken.iter().filter(|(by, _)| *by == thread).map(|(_, path)| path.clone()).collect()
    }

    /// Poisoning is ignored: no code panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, Disks> {
        self.disks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn disks_are_taken_in_their_order() {
        let pool = Pool::new(parse("/dev/vda,/dev/vdb"));
        assert_eq!(pool.take(), [Path::new("/dev/vda")]);
        assert_eq!(pool.take(), [Path::new("/dev/vdb")]);
    }

    #[test]
    fn several_disks_are_taken_together() {
        let pool = Pool::new(parse("/dev/vda,/dev/vdb,/dev/vdc"));
        let [first] = pool.take();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| pool.take::<3>());
            let other = scope.spawn(|| pool.take::<2>().map(|path| pool.give_back(path)));
            other.join().unwrap();
            pool.give_back(first);
            assert_eq!(waiting.join().unwrap().len(), 3);
        });
    }

    #[test]
    fn a_test_waits_for_a_free_disk() {
        let pool = Pool::new(parse("/dev/vda"));
        let [taken] = pool.take();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| pool.take());
            pool.give_back(taken);
            assert_eq!(waiting.join().unwrap(), [Path::new("/dev/vda")]);
        });
    }

    #[test]
    fn a_thread_holds_what_it_took_and_did_not_give_back() {
        let pool = Pool::new(parse("/dev/vda,/dev/vdb,/dev/vdc"));
        let [first, second] = pool.take();
        let [other] = thread::scope(|scope| scope.spawn(|| pool.take()).join().unwrap());
        let me = thread::current().id();
        assert_eq!(pool.held_by(me), [first.clone(), second.clone()]);
        pool.give_back(other);
        pool.give_back(first);
        assert_eq!(pool.held_by(me), [second]);
    }

    #[test]
    #[should_panic(expected = "names no disk")]
    fn without_disks_there_is_no_wait() {
        Pool::new(parse("")).take::<1>();
    }

    #[test]
    #[should_panic(expected = "takes 2 disks at once")]
    fn too_many_disks_are_not_waited_for() {
        Pool::new(parse("/dev/vda")).take::<2>();
    }
}
