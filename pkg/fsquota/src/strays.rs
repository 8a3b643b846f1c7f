//! [`strays`].

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

/// Maximum depth of the walk; it keeps two descriptors per level.
const DEEPEST: usize = 128;

/// Walks a directory and returns the inodes that are not counted to `project`. In the initial user namespace, the owner
/// of a file can change its project.
///
/// Reads every inode below the directory and the directory itself: O(inodes) time, limited by [`Strays::at_most`];
/// memory and descriptors grow with the depth only. Opens only directories, follows no symbolic links and enters no
/// other mounts. May or may not return files that are created, moved or removed during the walk.
///
/// # Errors
/// [`FsError`]: `dir` is not a directory or not on an XFS.
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
    Ok(Strays { project, step: Step::Top(top), levels: Vec::new(), left: None })
}

/// An inode that is not counted to the project, or a directory whose new files would not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// Path relative to the directory; empty for the directory itself.
    pub path: PathBuf,
    /// The difference.
    pub drift: Drift,
}

/// How the project of an inode differs from that of its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drift {
    /// The inode has no project.
    NoProject,
    /// The inode has another project.
    OtherProject(ProjectId),
    /// A directory of the project without the inherit flag: new files in it have no project.
    NotInherited,
}

impl std::fmt::Display for Drift {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoProject => f.write_str("has no project"),
            Self::OtherProject(project) => write!(f, "has project {project}"),
            Self::NotInherited => f.write_str("is a directory without the inherit flag"),
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

/// The walk of [`strays`]. Continues with the next entry after an error.
#[derive(Debug)]
pub struct Strays {
    project: ProjectId,
    step: Step,
    levels: Vec<Level>,
    left: Option<u64>,
}

/// The next step.
#[derive(Debug)]
enum Step {
    /// Check the directory itself.
    Top(Directory),
    /// Enter this subdirectory of the current level.
    Below(CString),
    /// Read the next entry of the current level.
    Beside,
}

/// A directory whose entries are being read.
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
            let found = match std::mem::replace(&mut self.step, Step::Beside) {
                Step::Top(dir) => self.top(dir),
                Step::Below(name) => self.enter(name).map(|()| None),
                Step::Beside => {
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
    /// Ends the walk after `inodes` inodes, not counting the directory itself: other processes may create inodes faster
    /// than the walk reads them.
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
        // The inode was deleted after the directory was read.
        let Some(inode) = found else { return Ok(None) };
        if inode.is_directory() {
            self.step = Step::Below(name.to_owned());
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

    /// Path of the current level, or of an entry in it.
    fn path(&self, name: Option<&[u8]>) -> PathBuf {
        let levels = self.levels.iter().skip(1).map(|level| level.name.to_bytes());
        levels.chain(name).map(OsStr::from_bytes).collect()
    }
}

/// Reads attributes by inode number: opening a device, a socket or a pipe fails or has side effects.
fn inode(dir: &Directory, number: u64) -> Result<Option<Inode>, FsError> {
    sys::inode(dir.as_fd(), number).map_err(FsError::system("XFS_IOC_BULKSTAT"))
}
