//! The directory of the volumes: on somebody else's machine, so that it is looked at before it is used.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dir::{Dir, Mode, Name, OFlag};
use nix::errno::Errno;
use nix::sys::statvfs::fstatvfs;
use units::Bytes;
use volume::{Neighbours, Settings, Store};

use crate::arguments::{Place, Users};

/// What is below the directory.
const VOLUMES: &str = "volumes";
const LOCK: &str = "lock";

const PRIVATE_DIRECTORY: Mode = Mode::S_IRWXU;
const PRIVATE_FILE: Mode = Mode::S_IRUSR.union(Mode::S_IWUSR);

/// Why the directory cannot hold volumes. Nothing of volumes was written.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// It is not there.
    #[error("cannot open {}; make it on the node, on an XFS that is mounted with prjquota", path.display())]
    Open {
        /// The directory.
        path: PathBuf,
        /// Why not.
        #[source]
        source: dir::Error,
    },
    /// Its file system has no project quotas.
    #[error("{} cannot hold volumes with limits", path.display())]
    Quota {
        /// The directory.
        path: PathBuf,
        /// What is missing, with the remedy.
        #[source]
        source: fsquota::FsError,
    },
    /// The kernel does not tell where it is mounted.
    #[error("cannot see how {} is mounted", path.display())]
    Look {
        /// The directory.
        path: PathBuf,
        /// Why not.
        #[source]
        source: mount::LookError,
    },
    /// Nor what is mounted at all.
    #[error("cannot see what is mounted")]
    Table(#[from] mount::TableError),
    /// Others use the file system, or the one that should be there is not mounted.
    #[error(
        "{} is a directory of a file system that others use: mount an XFS of its own there (is it missing?), or say \
         --file-system=shared",
        path.display()
    )]
    NotOwn {
        /// The directory.
        path: PathBuf,
    },
    /// The size of its file system.
    #[error("cannot read the size of the file system of {}", path.display())]
    Size {
        /// The directory.
        path: PathBuf,
        /// Why not.
        #[source]
        source: Errno,
    },
    /// What is made in it.
    #[error("cannot make {name} in {}", path.display())]
    Make {
        /// The directory.
        path: PathBuf,
        /// A name in it.
        name: &'static str,
        /// Why not.
        #[source]
        source: dir::Error,
    },
    /// Another process makes volumes there: two would promise the same space.
    #[error("another process uses {}; one at a time may", path.display())]
    Busy {
        /// The directory.
        path: PathBuf,
    },
    /// The lock cannot be taken for another reason.
    #[error("cannot lock {}", path.display())]
    Lock {
        /// The directory.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// What is there already.
    #[error("cannot use the volumes in {}", path.display())]
    Volumes {
        /// The directory.
        path: PathBuf,
        /// Why not.
        #[source]
        source: volume::StartError,
    },
}

/// A directory that can hold volumes and that this process alone uses. Nothing of volumes was written.
#[derive(Debug)]
pub struct Locked {
    directory: Dir,
    path: PathBuf,
    lock: File,
}

/// A directory that is this process' alone, with its volumes.
#[derive(Debug)]
pub struct Directory {
    store: Arc<Store>,
    /// Locked as long as it is open.
    _lock: File,
}

impl Directory {
    /// Looks whether the directory can hold volumes, takes it, and opens what is in it.
    ///
    /// # Errors
    /// [`DirectoryError`], with what to do.
    pub fn open(place: &Place) -> Result<Self, DirectoryError> {
        Locked::take(place)?.open(place)
    }

    /// The volumes.
    pub fn volumes(&self) -> Arc<Store> {
        Arc::clone(&self.store)
    }
}

impl Locked {
    /// Looks whether the directory can hold volumes, and takes it.
    ///
    /// # Errors
    /// [`DirectoryError`], with what to do.
    pub fn take(place: &Place) -> Result<Self, DirectoryError> {
        let path = place.directory.as_path();
        let of = || path.to_owned();
        let directory = Dir::open(path).map_err(|source| DirectoryError::Open { path: of(), source })?;
        fsquota::require(&directory).map_err(|source| DirectoryError::Quota { path: of(), source })?;
        if place.file_system == Users::Own && !is_whole(&directory, path)? {
            return Err(DirectoryError::NotOwn { path: of() });
        }
        let lock = lock(&directory, path)?;
        Ok(Self { directory, path: path.to_owned(), lock })
    }

    /// Opens what is in it.
    ///
    /// # Errors
    /// [`DirectoryError`], with what to do.
    pub fn open(self, place: &Place) -> Result<Directory, DirectoryError> {
        let Self { directory, path, lock } = self;
        let of = || path.clone();
        let stat = fstatvfs(&directory).map_err(|source| DirectoryError::Size { path: of(), source })?;
        let size = Bytes::new(stat.blocks().saturating_mul(stat.fragment_size()));
        let volumes = directory
            .ensure_dir(&name(VOLUMES), PRIVATE_DIRECTORY)
            .map_err(|source| DirectoryError::Make { path: of(), name: VOLUMES, source })?
            .into_inner();
        let settings = Settings {
            reserve: place.reserved(size),
            overcommit: place.overcommit,
            neighbours: Neighbours::Strangers,
            ..Settings::default()
        };
        let store = Store::open(&volumes, settings).map_err(|source| DirectoryError::Volumes { path: of(), source })?;
        Ok(Directory { store: Arc::new(store), _lock: lock })
    }
}

/// Whether the directory is the root of its file system: in a pod every directory of the node is a mount, so that being
/// one says nothing.
fn is_whole(directory: &Dir, path: &Path) -> Result<bool, DirectoryError> {
    let place = mount::at(directory).map_err(|source| DirectoryError::Look { path: path.to_owned(), source })?;
    // The root of the mount, not of the file system, if the mount is of a directory.
    let whole = |entry: &mount::Entry| entry.mount == place.mount && entry.root == Path::new("/");
    Ok(place.mounted.is_some() && mount::table()?.iter().any(whole))
}

fn lock(directory: &Dir, path: &Path) -> Result<File, DirectoryError> {
    let of = || path.to_owned();
    let file = directory
        .open_file(&name(LOCK), OFlag::O_RDWR | OFlag::O_CREAT, PRIVATE_FILE)
        .map_err(|source| DirectoryError::Make { path: of(), name: LOCK, source })?;
    let file = File::from(file);
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(DirectoryError::Busy { path: of() }),
        Err(TryLockError::Error(source)) => Err(DirectoryError::Lock { path: of(), source }),
    }
}

fn name(text: &'static str) -> Name {
    Name::try_from(text).expect("the directory's own names are names")
}
