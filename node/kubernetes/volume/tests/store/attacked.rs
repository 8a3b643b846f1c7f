//! Processes that still have a directory of a deleted volume open keep changing it while it is removed.

use std::collections::VecDeque;
use std::fs::{self, File, Permissions};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use dir::Ensured;
use ktest_support::process::Child;
use ktest_support::unmount;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::Mode as FileMode;
use nix::unistd::{Gid, Uid, UnlinkatFlags, linkat, setgid, setgroups, setuid, unlinkat};
use units::{Bytes, Inodes};
use volume::{ActError, Error, Mode, Request, Store, VolumeId, Volumes as _};

use crate::node::{Node, SIZE, files, sized};

/// Deadline of removals that take a second or two. Regression: they did not end.
const LIMIT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attack {
    Create,
    Link,
    Rename,
    Move,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum User {
    Root,
    Ordinary,
}

const FILES: usize = 300;
/// One attacker for each CPU.
const ATTACKERS: usize = 2;
const DIRECTORIES: usize = 8;

/// Request with space for the files that the attackers create before the volume is deleted.
fn request(name: &str) -> Request {
    sized(name, Mode::Filesystem { inodes: Inodes::new(1 << 15) }, SIZE)
}

/// Processes that attack until they are stopped.
struct Attackers(Vec<Child>);

impl Attackers {
    /// Each attacker has the directory open, and `one` and `two` in it.
    fn start(root: &File, one: &File, two: &File, user: User, attack: Attack) -> Self {
        Self(
            (0..ATTACKERS)
                .map(|number| {
                    Child::start(|| {
                        // A forked copy of a process with threads must not print: another thread may have held the
                        // lock.
                        if user == User::Ordinary && become_ordinary().is_err() {
                            return;
                        }
                        match attack {
                            Attack::Create => create(root, number),
                            Attack::Link => link(root, number),
                            Attack::Rename => rename(root, number),
                            Attack::Move => move_directories(one, two, number),
                        }
                    })
                })
                .collect(),
        )
    }

    fn stop(&mut self) {
        self.0.drain(..).for_each(Child::kill);
    }
}

impl Drop for Attackers {
    fn drop(&mut self) {
        self.stop();
    }
}

fn become_ordinary() -> Result<(), Errno> {
    setgroups(&[])?;
    setgid(Gid::from_raw(1000))?;
    setuid(Uid::from_raw(1000))
}

fn create(root: &File, number: usize) {
    for next in 0_u64.. {
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY;
        drop(openat(root, format!("x{number}-{next}").as_str(), flags, FileMode::S_IRWXU));
    }
}

/// Creates up to 30 names for one inode, each linked from one of the others.
fn link(root: &File, number: usize) {
    let mut names = VecDeque::from([format!("f{}", FILES - 1 - number)]);
    for next in 0_u64.. {
        let name = format!("x{number}-{next}");
        let made = names.iter().rev().find_map(|former| {
            match linkat(root, former.as_str(), root, name.as_str(), AtFlags::empty()) {
                Ok(()) => Some(true),
                Err(Errno::ENOENT) => None,
                Err(errno) => {
                    if errno == Errno::ENOSPC {
                        // The directory needs a block more than its limit allows.
                        let _ = unlinkat(root, former.as_str(), UnlinkatFlags::NoRemoveDir);
                    }
                    Some(false)
                }
            }
        });
        if made == Some(true) {
            names.push_back(name);
        }
        if names.len() > 30 {
            names.pop_front();
        }
    }
}

fn rename(root: &File, number: usize) {
    let mut names: Vec<String> = (0..8).map(|file| format!("f{}", FILES - 1 - 8 * number - file)).collect();
    let count = names.len();
    for next in 0_usize.. {
        let name = format!("x{number}-{next}");
        let former = &mut names[next % count];
        if renameat(root, former.as_str(), root, name.as_str()).is_ok() {
            *former = name;
        }
    }
}

fn move_directories(one: &File, two: &File, number: usize) {
    let mut next = 0_u64;
    let mut names: Vec<String> = (0..DIRECTORIES).map(|name| format!("d{number}-{name}")).collect();
    for (from, to) in [(one, two), (two, one)].into_iter().cycle() {
        for former in &mut names {
            next += 1;
            let name = format!("x{number}-{next}");
            if renameat(from, former.as_str(), to, name.as_str()).is_ok() {
                *former = name;
            }
        }
    }
}

/// Runs the work, which must end within [`LIMIT`]. Otherwise the attack is stopped, so that the work ends, and the test
/// fails.
fn in_time<T: Send>(attackers: &mut Attackers, what: &str, work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let (sender, done) = mpsc::channel();
        let worker = scope.spawn(move || {
            let result = work();
            let _ = sender.send(());
            result
        });
        let waited = done.recv_timeout(LIMIT);
        if waited == Err(RecvTimeoutError::Timeout) {
            attackers.stop();
        }
        let result = worker.join().expect("the work does not panic");
        assert_ne!(waited, Err(RecvTimeoutError::Timeout), "{what} did not end in {LIMIT:?}");
        result
    })
}

/// Runs as many passes as the volume's size needs.
fn discard(store: &Store, attackers: &mut Attackers, id: &VolumeId) -> Result<Ensured<()>, Error> {
    in_time(attackers, &format!("the removal of {id}"), || {
        loop {
            match store.discard(id) {
                Err(error) if error.is_shrinking() => {}
                ended => break ended,
            }
        }
    })
}

/// Whether nothing of the volume has a name. The quota counts its directory for as long as an attacker has that open.
fn is_emptied(removed: &Result<Ensured<()>, Error>) -> bool {
    matches!(removed, Err(Error::Act { source: ActError::Clear(_), .. }))
}

/// Deletes a volume under an attack, and removes the rest after the attack. Returns the result of the removal under the
/// attack.
fn attacked(node: &Node, user: User, attack: Attack) -> Result<Ensured<()>, Error> {
    let name = format!("pvc-{user:?}-{attack:?}").to_lowercase();
    let (id, _) = node.made(&request(&name));
    let path = node.path("live", &id);
    for file in 0..FILES {
        fs::write(path.join(format!("f{file}")), b"").unwrap();
    }
    let below = ["one", "two"].map(|name| {
        fs::create_dir(path.join(name)).unwrap();
        File::open(path.join(name)).unwrap()
    });
    for number in 0..ATTACKERS * DIRECTORIES {
        let name = format!("one/d{}-{}", number / DIRECTORIES, number % DIRECTORIES);
        fs::create_dir(path.join(&name)).unwrap();
        fs::write(path.join(name).join("file"), b"").unwrap();
    }
    if user == User::Ordinary {
        let owned = ["", "one", "two"].into_iter().map(|name| path.join(name));
        let files = (0..FILES).map(|file| path.join(format!("f{file}")));
        owned.chain(files).for_each(|path| chown(path, Some(1000), Some(1000)).unwrap());
    }
    let root = File::open(&path).unwrap();
    let mut attackers = Attackers::start(&root, &below[0], &below[1], user, attack);
    begun(&path, attack);

    node.store.retire(&id).unwrap();
    let removed = discard(&node.store, &mut attackers, &id);
    // A volume under attack does not delay another one.
    let (other, _) = node.made(&files(&format!("{name}-other")));
    node.store.retire(&other).unwrap();
    assert_eq!(discard(&node.store, &mut attackers, &other).unwrap(), Ensured::Created(()));
    assert_eq!(node.traces(&other), [""; 0]);

    attackers.stop();
    drop((root, below));
    let end = Instant::now() + LIMIT;
    let last = loop {
        match node.store.discard(&id) {
            Err(Error::Unfinished { .. }) if Instant::now() < end => {}
            last => break last,
        }
    };
    assert_eq!(last.unwrap(), Ensured::Created(()), "{user:?} {attack:?}");
    assert_eq!(node.traces(&id), [""; 0]);
    let trash = node.path("trash", &id).parent().unwrap().to_owned();
    assert!(fs::read_dir(trash).unwrap().next().is_none(), "{user:?} {attack:?}");
    removed
}

/// Waits until the attackers have changed something.
fn begun(path: &Path, attack: Attack) {
    let path = if attack == Attack::Move { path.join("two") } else { path.to_owned() };
    let end = Instant::now() + LIMIT;
    let is_changed = || {
        let mut names = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name());
        names.any(|name| name.to_string_lossy().starts_with('x'))
    };
    while !is_changed() {
        assert!(Instant::now() < end, "{attack:?} has not begun after {LIMIT:?}");
        thread::yield_now();
    }
}

/// Regression: the removal listed the directory again and again, for ever.
#[test]
fn a_volume_is_removed_while_an_ordinary_user_changes_it() {
    let node = Node::new();
    for attack in [Attack::Create, Attack::Link, Attack::Rename] {
        let removed = attacked(&node, User::Ordinary, attack);
        assert!(is_emptied(&removed), "{attack:?}: {removed:?}");
    }
}

/// Root passes every mode. Only the limits prevent that it creates files.
#[test]
fn a_removal_ends_or_yields_while_root_changes_the_volume() {
    let node = Node::new();
    for attack in [Attack::Create, Attack::Link, Attack::Rename, Attack::Move] {
        let removed = attacked(&node, User::Root, attack);
        match attack {
            Attack::Create => assert!(is_emptied(&removed), "{attack:?}: {removed:?}"),
            Attack::Link | Attack::Rename | Attack::Move => {
                let yielded = matches!(removed, Err(Error::Unfinished { .. }));
                assert!(yielded || is_emptied(&removed), "{attack:?}: {removed:?}");
            }
        }
    }
}

#[test]
fn a_volume_larger_than_one_pass_is_removed_in_some() {
    let (node, id, _) = Node::with_volume(&request("pvc-1"));
    let path = node.path("live", &id);
    (0..2500).for_each(|file| drop(File::create(path.join(file.to_string())).unwrap()));
    node.store.retire(&id).unwrap();
    let Err(first @ Error::Unfinished { freed, left, .. }) = node.store.discard(&id) else { panic!("one pass") };
    assert!(first.is_shrinking(), "{first}");
    assert!(freed > Inodes::new(2000) && left > Inodes::new(400), "{first}");
    assert_eq!(node.store.retired().unwrap(), std::slice::from_ref(&id));
    // Another process continues the removal.
    let node = node.restarted();
    assert_eq!(node.store.discard(&id).unwrap(), Ensured::Created(()));
    assert_eq!(node.traces(&id), [""; 0]);
}

fn owner_and_mode(node: &Node, place: &str, id: &VolumeId) -> (u32, u32, u32) {
    let found = fs::metadata(node.path(place, id)).unwrap();
    (found.uid(), found.gid(), found.mode() & 0o7777)
}

#[test]
fn a_volume_whose_removal_has_begun_is_restored_with_its_limits_and_usable() {
    let (node, id, record) = Node::with_volume(&files("pvc-1"));
    let whole = node.limits(record.project);
    // The mount prevents the end of the removal.
    let point = node.path("live", &id).join("point");
    fs::create_dir(&point).unwrap();
    mount(Some("tmpfs"), &point, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    chown(node.path("live", &id), Some(1000), Some(1000)).unwrap();
    node.store.retire(&id).unwrap();
    assert!(node.store.discard(&id).is_err());
    unmount(&node.path("trash", &id).join("point")).unwrap();
    let node = node.restarted();
    assert_eq!(owner_and_mode(&node, "trash", &id), (0, 0, 0o700));
    let confined = fsquota::Limits { bytes: Some(Bytes::new(4096)), inodes: Some(Inodes::new(1)) };
    assert_eq!(node.limits(record.project), confined);

    assert_eq!(node.store.restore(&id).unwrap(), Ensured::Created(()));
    assert_eq!(node.limits(record.project), whole);
    assert_eq!(owner_and_mode(&node, "live", &id), (0, 0, 0o777));
    let opened = node.store.open_volume(&id).unwrap();
    let made = openat(opened.dir().as_fd(), "file", OFlag::O_CREAT | OFlag::O_WRONLY, FileMode::S_IRWXU);
    drop(made.unwrap());
    drop(opened);
    node.remove(&id);
}

#[test]
fn a_volume_whose_removal_has_not_begun_is_restored_with_its_owner_and_mode() {
    let (node, id, record) = Node::with_volume(&files("pvc-1"));
    let whole = node.limits(record.project);
    for (owner, mode) in [(1000, 0o2750), (0, 0o700)] {
        chown(node.path("live", &id), Some(owner), Some(owner)).unwrap();
        fs::set_permissions(node.path("live", &id), Permissions::from_mode(mode)).unwrap();
        node.store.retire(&id).unwrap();
        node.store.restore(&id).unwrap();
        assert_eq!(owner_and_mode(&node, "live", &id), (owner, owner, mode));
        assert_eq!(node.limits(record.project), whole);
    }
}
