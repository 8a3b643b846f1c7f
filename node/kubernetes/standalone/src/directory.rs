//! The directory of the volumes. An administrator mounts it, so the program checks it before writing anything.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dir::{Dir, Mode, Name, OFlag};
use nix::errno::Errno;
use nix::sys::statvfs::fstatvfs;
use supervisor::BoxError;
use units::Bytes;
use volume::{Neighbours, Settings, Store};

use crate::arguments::{Place, Users};

const VOLUMES: &str = "volumes";
const LOCK: &str = "lock";

const PRIVATE_DIRECTORY: Mode = Mode::S_IRWXU;
const PRIVATE_FILE: Mode = Mode::S_IRUSR.union(Mode::S_IWUSR);

/// The directory cannot hold volumes. Nothing was written to volumes.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    #[error("cannot open {}; create it on the node, on an XFS that is mounted with prjquota", path.display())]
    Open { path: PathBuf, source: dir::Error },
    #[error("{} does not support volumes with limits", path.display())]
    Quota { path: PathBuf, source: fsquota::FsError },
    #[error(
        "{} is not a mount point, so other programs may use its file system: mount an XFS there, or use \
         --file-system=shared",
        path.display()
    )]
    NotOwn { path: PathBuf },
    /// Two processes would allocate the same space.
    #[error("another process uses {}; end that process first", path.display())]
    Busy { path: PathBuf },
    #[error("cannot {what} {}", path.display())]
    Other { what: &'static str, path: PathBuf, source: BoxError },
}

/// A checked directory that no other process uses. No volume was changed.
#[derive(Debug)]
pub struct LockedDirectory {
    directory: Dir,
    path: PathBuf,
    lock: File,
}

#[derive(Debug)]
pub struct Directory {
    store: Arc<Store>,
    _lock: File,
}

impl Directory {
    /// Checks and locks the directory, and opens its volumes.
    pub fn open(place: &Place) -> Result<Self, DirectoryError> {
        LockedDirectory::lock(place)?.open(place)
    }

    pub fn volumes(&self) -> Arc<Store> {
        Arc::clone(&self.store)
    }
}

impl LockedDirectory {
    /// Checks and locks the directory.
    pub fn lock(place: &Place) -> Result<Self, DirectoryError> {
        let path = place.directory.clone();
        let owned = || path.clone();
        let directory = Dir::open(&path).map_err(|source| DirectoryError::Open { path: owned(), source })?;
        fsquota::require(&directory).map_err(|source| DirectoryError::Quota { path: owned(), source })?;
        if place.file_system == Users::Own && !is_whole(&directory).map_err(other("determine the mount of", &path))? {
            return Err(DirectoryError::NotOwn { path });
        }
        let lock = directory.open_file(&name(LOCK), OFlag::O_RDWR | OFlag::O_CREAT, PRIVATE_FILE);
        let lock = File::from(lock.map_err(other("create the lock file in", &path))?);
        match lock.try_lock() {
            Ok(()) => Ok(Self { directory, path, lock }),
            Err(TryLockError::WouldBlock) => Err(DirectoryError::Busy { path }),
            Err(TryLockError::Error(error)) => Err(other::<io::Error>("lock", &path)(error)),
        }
    }

    /// Opens the volumes.
    pub fn open(self, place: &Place) -> Result<Directory, DirectoryError> {
        let Self { directory, path, lock } = self;
        let stat = fstatvfs(&directory).map_err(other::<Errno>("read the size of the file system of", &path))?;
        let size = Bytes::new(stat.blocks().saturating_mul(stat.fragment_size()));
        let volumes = directory.ensure_dir(&name(VOLUMES), PRIVATE_DIRECTORY);
        let volumes = volumes.map_err(other("create the directory of volumes in", &path))?.into_inner();
        let settings = Settings {
            reserve: place.reserved(size),
            overcommit: place.overcommit,
            neighbours: Neighbours::Strangers,
            ..Settings::default()
        };
        let store = Store::open(&volumes, settings).map_err(other("use the volumes in", &path))?;
        Ok(Directory { store: Arc::new(store), _lock: lock })
    }
}

fn other<E: Into<BoxError>>(what: &'static str, path: &Path) -> impl FnOnce(E) -> DirectoryError {
    let path = path.to_owned();
    move |source| DirectoryError::Other { what, path, source: source.into() }
}

/// Whether the directory is the root of its file system. In a pod, every directory of the node is a mount point.
fn is_whole(directory: &Dir) -> Result<bool, BoxError> {
    let place = mount::at(directory)?;
    // The root of a bind mount of a directory differs from the root of the file system.
    let is_whole = |entry: &mount::Entry| entry.mount == place.mount && entry.root == Path::new("/");
    Ok(place.mounted.is_some() && mount::table()?.iter().any(is_whole))
}

fn name(text: &'static str) -> Name {
    Name::try_from(text).expect("a constant is a valid name")
}
