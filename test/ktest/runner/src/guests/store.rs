//! The directory of states.

use std::env;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, access};

use super::key::Key;

const VARIABLE: &str = "GRANARY_GUESTS";
/// The node's certificates and leases are valid for longer.
const LIFETIME: Duration = Duration::from_secs(12 * 3600);
/// Allocated bytes of all states together: about six Ready nodes.
const LIMIT: u64 = 12 << 30;
/// Bytes that must be free to create a state: the memory and the disk of a node.
const LEAST_FREE: u64 = 4 << 30;
const LOCK: &str = "lock";
/// A state that is being created, or that a killed process left behind.
const UNFINISHED: &str = "unfinished";

#[derive(Clone, Debug)]
pub struct Guests {
    dir: PathBuf,
    limit: u64,
    least_free: u64,
    lifetime: Duration,
}

/// A state that is in use: it is not deleted before this value is dropped.
#[derive(Debug)]
pub struct Guest {
    dir: PathBuf,
    _shared: File,
}

impl Guest {
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError<E: std::error::Error + 'static> {
    #[error("cannot use the saved guests in {path}; delete them, or boot every guest with --config=cold")]
    Directory { path: PathBuf, source: io::Error },
    #[error("cannot create the saved guest {name}")]
    Create { name: String, source: E },
}

impl Guests {
    /// The directory that the environment names, if it can be used.
    pub fn of_machine() -> Option<Self> {
        Self::at(PathBuf::from(env::var_os(VARIABLE)?))
    }

    fn at(dir: PathBuf) -> Option<Self> {
        let usable = dir.is_dir() && access(&dir, AccessFlags::W_OK | AccessFlags::X_OK).is_ok();
        usable.then_some(Self { dir, limit: LIMIT, least_free: LEAST_FREE, lifetime: LIFETIME })
    }

    /// The state with this key. If it is missing or expired, `create` creates it in an empty directory. Waits while
    /// another process creates the same state. `None` if the disk is too full.
    pub fn get<E: std::error::Error + 'static>(
        &self,
        key: &Key,
        create: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<Option<Guest>, StoreError<E>> {
        let name = key.directory();
        let dir = self.dir.join(&name);
        let failed = |source| StoreError::Directory { path: self.dir.clone(), source };
        let lock = self.lock_file(&name).map_err(failed)?;
        lock.lock_shared().map_err(failed)?;
        if !self.is_valid(&dir) {
            // Readers of an expired state end first. Another process may have created the state meanwhile.
            lock.unlock().and_then(|()| lock.lock()).map_err(failed)?;
            if !self.is_valid(&dir) {
                let unfinished = self.dir.join(format!("{name}.{UNFINISHED}"));
                remove(&dir).and_then(|()| remove(&unfinished)).and_then(|()| self.free_space()).map_err(failed)?;
                if !self.has_space().map_err(failed)? {
                    eprintln!("warning: less than 4 GiB are free in {}; the guest boots", self.dir.display());
                    return Ok(None);
                }
                fs::create_dir(&unfinished).map_err(failed)?;
                if let Err(source) = create(&unfinished) {
                    // If it remains, the process that creates the next state deletes it.
                    _ = remove(&unfinished);
                    return Err(StoreError::Create { name, source });
                }
                fs::rename(&unfinished, &dir).map_err(failed)?;
            }
            // The lock file's time is that of the last use. The most recent state is deleted last, so it still
            // exists below.
            lock.set_modified(SystemTime::now()).map_err(failed)?;
            lock.unlock().and_then(|()| lock.lock_shared()).map_err(failed)?;
            fs::metadata(&dir).map_err(failed)?;
        }
        lock.set_modified(SystemTime::now()).map_err(failed)?;
        Ok(Some(Guest { dir, _shared: lock }))
    }

    fn lock_file(&self, name: &str) -> io::Result<File> {
        File::options().create(true).truncate(false).write(true).open(self.dir.join(format!("{name}.{LOCK}")))
    }

    fn is_valid(&self, dir: &Path) -> bool {
        let created = fs::metadata(dir).and_then(|metadata| metadata.modified());
        // A time in the future counts as expired.
        created.is_ok_and(|created| created.elapsed().is_ok_and(|age| age < self.lifetime))
    }

    fn has_space(&self) -> io::Result<bool> {
        let space = statvfs(&self.dir)?;
        Ok(space.blocks_available() * space.fragment_size() >= self.least_free)
    }

    /// Deletes expired and unfinished states, then the least recently used ones until the rest takes at most half of
    /// the limit: the new state needs the other half. States in use stay.
    fn free_space(&self) -> io::Result<()> {
        let mut states = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            let is_state = path.extension().is_none_or(|extension| extension == UNFINISHED);
            if is_state && path.is_dir() {
                let used = fs::metadata(path.with_extension(LOCK)).and_then(|lock| lock.modified());
                states.push((used.unwrap_or(SystemTime::UNIX_EPOCH), allocated(&path)?, path));
            }
        }
        states.sort();
        let mut total: u64 = states.iter().map(|(_, size, _)| size).sum();
        for (_, size, path) in states {
            if path.extension().is_none() && self.is_valid(&path) && total <= self.limit / 2 {
                continue;
            }
            // A process that creates or uses a state holds its lock.
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            match self.lock_file(&name)?.try_lock() {
                Ok(()) => {
                    remove(&path)?;
                    total = total.saturating_sub(size);
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        Ok(())
    }
}

fn allocated(dir: &Path) -> io::Result<u64> {
    let sizes = || -> io::Result<u64> {
        fs::read_dir(dir)?.map(|entry| entry?.metadata().map(|metadata| metadata.blocks() * 512)).sum()
    };
    match sizes() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        sizes => sizes,
    }
}

fn remove(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use super::*;

    const BIG: usize = 1 << 20;

    struct Machine {
        dir: tempfile::TempDir,
        created: AtomicU32,
    }

    impl Machine {
        fn new() -> Self {
            Self { dir: tempfile::tempdir().unwrap(), created: AtomicU32::new(0) }
        }

        fn guests(&self) -> Guests {
            Guests { least_free: 0, ..Guests::at(self.dir.path().to_owned()).unwrap() }
        }

        fn get(&self, guests: &Guests, name: &str) -> Guest {
            let got = guests.get(&key(name), |dir| {
                self.created.fetch_add(1, Ordering::Relaxed);
                fs::write(dir.join("memory"), vec![1; BIG]).unwrap();
                Ok::<(), Infallible>(())
            });
            got.unwrap().unwrap()
        }

        fn created(&self) -> u32 {
            self.created.load(Ordering::Relaxed)
        }
    }

    fn key(name: &str) -> Key {
        let mut key = Key::new("guest").unwrap();
        key.add(name);
        key
    }

    #[test]
    fn a_state_is_created_once() {
        let machine = Machine::new();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| machine.get(&machine.guests(), "one"));
            }
        });
        assert_eq!(machine.created(), 1);
        assert_eq!(fs::read(machine.get(&machine.guests(), "one").dir().join("memory")).unwrap().len(), BIG);
    }

    #[test]
    fn an_expired_state_is_created_again() {
        let machine = Machine::new();
        drop(machine.get(&machine.guests(), "one"));
        let short = Guests { lifetime: Duration::ZERO, ..machine.guests() };
        drop(machine.get(&short, "one"));
        assert_eq!(machine.created(), 2);
    }

    #[test]
    fn the_least_recently_used_states_are_deleted_first() {
        let machine = Machine::new();
        let guests = Guests { limit: 4 * BIG as u64 + 4096, ..machine.guests() };
        let old = ["one", "two", "three"].map(|name| machine.get(&guests, name));
        let [one, two, three] = old.map(|guest| guest.dir().to_owned());
        // Without the lock of a reader, whose file time would be now.
        let lock = |dir: &Path, age| {
            let file = File::options().write(true).open(dir.with_extension(LOCK)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
        };
        for (dir, age) in [(&one, 10), (&two, 30), (&three, 20)] {
            lock(dir, age);
        }
        drop(machine.get(&guests, "four"));
        assert_eq!([one.exists(), two.exists(), three.exists()], [true, false, true]);
    }

    #[test]
    fn a_state_in_use_is_kept() {
        let machine = Machine::new();
        let guests = Guests { limit: 0, ..machine.guests() };
        let used = machine.get(&guests, "one");
        drop(machine.get(&guests, "two"));
        assert!(used.dir().exists());
        drop(used);
        drop(machine.get(&guests, "three"));
        assert_eq!(
            fs::read_dir(machine.dir.path()).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_dir()).count(),
            1
        );
    }

    #[test]
    fn a_failed_creation_leaves_no_state() {
        let machine = Machine::new();
        let error = machine.guests().get(&key("one"), |dir| {
            fs::write(dir.join("memory"), "").unwrap();
            Err(io::Error::other("the guest did not boot"))
        });
        assert!(matches!(error, Err(StoreError::Create { .. })), "{error:?}");
        drop(machine.get(&machine.guests(), "one"));
        assert_eq!(machine.created(), 1);
    }

    #[test]
    fn an_unfinished_state_is_deleted_unless_it_is_locked() {
        let machine = Machine::new();
        let left = |name: &str| {
            let dir = machine.dir.path().join(key(name).directory()).with_extension(UNFINISHED);
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join("memory"), "half").unwrap();
            dir
        };
        let [dead, live, own] = ["dead", "live", "own"].map(left);
        let creator = machine.guests().lock_file(&key("live").directory()).unwrap();
        creator.lock().unwrap();
        let state = machine.get(&machine.guests(), "own");
        assert_eq!(fs::read(state.dir().join("memory")).unwrap().len(), BIG);
        assert_eq!([dead, live, own].map(|dir| dir.exists()), [false, true, false]);
    }

    #[test]
    fn nothing_is_created_on_a_disk_that_is_too_full() {
        let machine = Machine::new();
        let guests = Guests { least_free: u64::MAX, ..machine.guests() };
        let state = guests.get(&key("one"), |_| Err(io::Error::other("created")));
        assert!(matches!(state, Ok(None)), "{state:?}");
    }

    #[test]
    fn a_directory_that_is_missing_is_not_used() {
        assert!(Guests::at("/absent".into()).is_none());
        assert!(Guests::at("".into()).is_none());
    }
}
