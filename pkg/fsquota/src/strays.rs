//! What lies in a directory and is not counted to its project.

use std::ffi::{CString, OsStr};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use nix::dir::Entry;
use units::Inodes;

use crate::directory::{Directory, Entries};
use crate::error::{FsError, WalkError};
use crate::project::ProjectId;
use crate::sys::{self, Inode};

/// How many directories deep the walk goes: it keeps two descriptors for each.
const DEEPEST: usize = 128;

/// Walks a directory for what is not counted to `project`, which it should belong to: in the initial
/// user namespace the owner of a file can change that.
///
/// Looks at every inode of the directory, the directory itself first, in O(inodes) time; memory and
/// descriptors grow with the depth only; [`Strays::at_most`] bounds the time. Nothing but directories is opened, whatever there is. It does
/// not follow symbolic links and does not leave the mount. What is made, moved or removed meanwhile may
/// or may not be seen.
///
/// # Errors
/// [`FsError`]: not a directory, not an XFS.
///
/// `XFS_IOC_BULKSTAT`, Linux 5.4; needs `CAP_SYS_ADMIN`.
///
/// ```no_run
/// # let (dir, project) = (std::fs::File::open("/data/a")?, fsquota::ProjectId::new(1).unwrap());
/// for found in fsquota::strays(&dir, project)? {
///     match found {
///         Ok(stray) => println!("{}: {}", stray.path.display(), stray.drift),
///         Err(error) => eprintln!("{error}"),
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn strays(dir: impl AsFd, project: ProjectId) -> Result<Strays, FsError> {
    let top = Directory::reopen(dir.as_fd())?;
    Ok(Strays { project, state: State::Top(top), levels: Vec::new(), left: None })
}

/// An inode that is not counted to the project, or a directory that does not pass it on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// Its name, from the directory on; empty for the directory itself.
    pub path: PathBuf,
    /// What is wrong with it.
    pub drift: Drift,
}

/// How an inode differs from what it got when it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drift {
    /// It is counted to no project.
    NoProject,
    /// It is counted to another project.
    OtherProject(ProjectId),
    /// A directory of the project without the inherit flag: what is made in it is counted to none.
    NotInherited,
}

impl std::fmt::Display for Drift {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoProject => f.write_str("has no project"),
            Self::OtherProject(project) => write!(f, "has project {project}"),
            Self::NotInherited => f.write_str("does not pass its project on"),
        }
    }
}

impl Drift {
    fn of(inode: &Inode, expected: ProjectId) -> Option<Self> {
        match ProjectId::new(inode.project) {
            None => Some(Self::NoProject),
            Some(found) if found != expected => Some(Self::OtherProject(found)),
            Some(_) if inode.is_directory() && !inode.inherits() => Some(Self::NotInherited),
            Some(_) => None,
        }
    }
}

/// The walk of [`strays`]. After an error about one entry it goes on with the next.
#[derive(Debug)]
pub struct Strays {
    project: ProjectId,
    state: State,
    levels: Vec<Level>,
    left: Option<u64>,
}

/// What is next.
#[derive(Debug)]
enum State {
    /// The directory itself.
    Top(Directory),
    /// To enter this directory of the lowest level.
    Below(CString),
    /// The next entry of the lowest level.
    Beside,
}

/// A directory whose entries are being looked at.
#[derive(Debug)]
struct Level {
    name: CString,
    dir: Directory,
    entries: Entries,
}

impl Iterator for Strays {
    type Item = Result<Stray, WalkError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let found = match std::mem::replace(&mut self.state, State::Beside) {
                State::Top(dir) => self.top(dir),
                State::Below(name) => self.enter(name).map(|()| None),
                State::Beside => {
                    let level = self.levels.last_mut()?;
                    match level.entries.next() {
                        Some(Ok(entry)) => self.look(&entry),
                        Some(Err(error)) => {
                            let failed = self.failed(None, error);
                            self.levels.pop();
                            Err(failed)
                        }
                        None => {
                            self.levels.pop();
                            Ok(None)
                        }
                    }
                }
            };
            if let Some(found) = found.transpose() {
                return Some(found);
            }
        }
    }
}

impl std::iter::FusedIterator for Strays {}

impl Strays {
    /// Ends after so many inodes, the directory itself not counted: other processes may add inodes faster than the walk
    /// looks at them.
    #[must_use]
    pub fn at_most(self, inodes: Inodes) -> Self {
        Self { left: Some(inodes.get()), ..self }
    }

    fn top(&mut self, dir: Directory) -> Result<Option<Stray>, WalkError> {
        let inode = inode(&dir, dir.number()).map_err(|error| self.failed(None, error))?;
        self.push(CString::default(), dir)?;
        let drift = inode.and_then(|inode| Drift::of(&inode, self.project));
        Ok(drift.map(|drift| Stray { path: PathBuf::new(), drift }))
    }

    fn look(&mut self, entry: &Entry) -> Result<Option<Stray>, WalkError> {
        let name = entry.file_name();
        if let Some(left) = &mut self.left {
            match left.checked_sub(1) {
                Some(less) => *left = less,
                None => self.levels.clear(),
            }
        }
        let Some(level) = self.levels.last() else { return Ok(None) };
        let found = inode(&level.dir, entry.ino()).map_err(|error| self.failed(Some(name.to_bytes()), error))?;
        // Deleted since the directory was read.
        let Some(inode) = found else { return Ok(None) };
        if inode.is_directory() {
            self.state = State::Below(name.to_owned());
        }
        let drift = Drift::of(&inode, self.project);
        Ok(drift.map(|drift| Stray { path: self.path(Some(name.to_bytes())), drift }))
    }

    fn enter(&mut self, name: CString) -> Result<(), WalkError> {
        let Some(level) = self.levels.last() else { return Ok(()) };
        // The first level is the directory itself.
        if self.levels.len() > DEEPEST {
            return Err(WalkError::TooDeep { path: self.path(Some(name.to_bytes())), limit: DEEPEST });
        }
        match level.dir.enter(&name) {
            Ok(Some(dir)) => self.push(name, dir),
            Ok(None) => Ok(()),
            Err(error) => Err(self.failed(Some(name.to_bytes()), error)),
        }
    }

    fn push(&mut self, name: CString, dir: Directory) -> Result<(), WalkError> {
        match dir.entries() {
            Ok(entries) => {
                self.levels.push(Level { name, dir, entries });
                Ok(())
            }
            Err(error) => Err(self.failed(Some(name.to_bytes()), error)),
        }
    }

    fn failed(&self, name: Option<&[u8]>, source: FsError) -> WalkError {
        WalkError::Entry { path: self.path(name), source }
    }

    /// The path of the lowest level, or of something in it.
    fn path(&self, name: Option<&[u8]>) -> PathBuf {
        let levels = self.levels.iter().skip(1).map(|level| level.name.to_bytes());
        levels.chain(name).map(OsStr::from_bytes).collect()
    }
}

/// By number: a device, a socket or a pipe cannot be opened to look at it, or that has effects.
fn inode(dir: &Directory, number: u64) -> Result<Option<Inode>, FsError> {
    sys::inode(dir.as_fd(), number).map_err(FsError::system("XFS_IOC_BULKSTAT"))
}
