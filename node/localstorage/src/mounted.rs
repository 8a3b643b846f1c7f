//! [`Mounted`].

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use dir::{Dir, Ensured, Mode, Name};
use mount::Attributes;
use nix::sys::stat::fchmod;

use crate::budget::Budget;
use crate::error::{MountError, OpenError};
use crate::projects::budget;
use crate::tree::{Data, Entry, Tree};

/// A directory tree that exists until it is unmounted: its file system is mounted with the right flags, and has all
/// directories.
#[derive(Debug)]
pub struct Mounted<T> {
    tree: T,
    root: Dir,
}

impl<T: Tree> Mounted<T> {
    /// Checks the mount at the tree's root, and creates the missing directories. Calls `made` for each directory before
    /// its content is created. Durable when this returns.
    pub(crate) fn complete(
        tree: T,
        mut made: impl FnMut(&Dir, Entry<'_>) -> Result<(), MountError>,
    ) -> Result<Self, MountError> {
        let root = open(tree.path())?;
        inert(&root, tree.path())?;
        fchmod(&root, T::MODE).map_err(|source| MountError::Mode { path: tree.path().to_owned(), source })?;
        let mut entries = Vec::new();
        tree.visit(&mut |entry| entries.push(entry));
        for entry in entries.into_iter().filter(|entry| entry.directory) {
            made(&make(&root, tree.path(), entry.path, entry.mode)?, entry)?;
        }
        root.syncfs().map_err(|source| MountError::Directory { step: "sync", path: tree.path().to_owned(), source })?;
        Ok(Self { tree, root })
    }

    /// Opens a directory of the tree.
    ///
    /// # Errors
    /// [`OpenError`]: the directory was removed, or another file system is mounted on it.
    pub fn open<D: Tree>(&self, which: impl FnOnce(&T) -> &D) -> Result<Dir, OpenError> {
        self.open_path(which(&self.tree).path())
    }

    fn open_path(&self, path: &Path) -> Result<Dir, OpenError> {
        let opened = match below(self.tree.path(), path) {
            Some(below) => self.root.open_beneath(below),
            None => self.root.try_clone(),
        };
        opened.map_err(|source| OpenError { path: path.to_owned(), source })
    }

    pub fn root(&self) -> &Dir {
        &self.root
    }
}

impl Mounted<Data> {
    pub fn budget(&self) -> Result<Budget, MountError> {
        budget(&self.root, self.tree.path())
    }

    /// Opens the directories of all parts.
    ///
    /// # Errors
    /// Errors of [`Mounted::open`].
    pub fn open_parts(&self) -> Result<Vec<Dir>, OpenError> {
        let mut paths = Vec::new();
        self.tree.visit(&mut |entry| paths.extend(entry.part.map(|_| entry.path)));
        paths.into_iter().map(|path| self.open_path(path)).collect()
    }
}

impl<T> Deref for Mounted<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.tree
    }
}

impl<T> AsFd for Mounted<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }
}

/// Path relative to the root of a tree; `None` for the root itself.
pub(crate) fn below<'path>(root: &Path, path: &'path Path) -> Option<&'path Path> {
    path.strip_prefix(root).ok().filter(|below| !below.as_os_str().is_empty())
}

pub(crate) fn open(path: &Path) -> Result<Dir, MountError> {
    Dir::open(path).map_err(|source| MountError::Directory { step: "open", path: path.to_owned(), source })
}

pub(crate) fn mounted(dir: &Dir, path: &Path) -> Result<Option<Attributes>, MountError> {
    let place = mount::at(dir).map_err(|source| MountError::Look { path: path.to_owned(), source })?;
    Ok(place.mounted)
}

fn inert(root: &Dir, path: &Path) -> Result<(), MountError> {
    if mounted(root, path)? == Some(Attributes::INERT) {
        Ok(())
    } else {
        Err(MountError::Flags { path: path.to_owned() })
    }
}

/// Creates a missing directory of a tree. Its parent must exist.
pub(crate) fn make(root: &Dir, tree: &Path, path: &Path, mode: Mode) -> Result<Dir, MountError> {
    let failed = |source| MountError::Directory { step: "make", path: path.to_owned(), source };
    let name = Name::try_from(path.file_name().unwrap_or_default())
        .map_err(|source| MountError::Name { path: path.to_owned(), source })?;
    match path.parent().and_then(|parent| below(tree, parent)) {
        Some(parent) => root.open_beneath(parent).map_err(failed)?.ensure_dir(&name, mode),
        None => root.ensure_dir(&name, mode),
    }
    .map_err(failed)
    .map(Ensured::into_inner)
}
