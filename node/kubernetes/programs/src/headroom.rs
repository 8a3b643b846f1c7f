//! A file that reserves space in etcd's directory, for etcd to start when the directory is full.
//!
//! etcd ends when a write fails with `ENOSPC`, and does not start again in a full directory, so that no client can
//! compact the database or delete objects. The node then deletes the headroom file, and etcd can start.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statvfs::statvfs;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tracing::{error, info, warn};
use units::Bytes;

use crate::program::{ProgramError, Running, Service};

/// Size of the file: enough for etcd to start, to compact and to delete. The current segment of etcd's log is allocated
/// already.
pub(crate) const SIZE: Bytes = Bytes::new(8 << 20);

const INTERVAL: Duration = Duration::from_secs(60);

/// The text that programs print for `ENOSPC`.
pub(crate) const NO_SPACE: &str = "no space left on device";

/// The headroom file of a program, in the program's directory and project.
#[derive(Debug)]
pub(crate) struct Headroom {
    directory: PathBuf,
}

impl Headroom {
    pub(crate) fn of(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Runs the service with the file. Deletes the file if the service fails for lack of space.
    pub(crate) fn with(self, service: Service) -> Service {
        let headroom = Arc::new(self);
        Box::new(move |cx| Box::pin(Arc::clone(&headroom).during(service(cx))))
    }

    async fn during(self: Arc<Self>, mut running: Running) -> Result<(), ProgramError> {
        loop {
            self.on_disk("cannot create the headroom file, will retry", Self::keep).await;
            match timeout(INTERVAL, &mut running).await {
                // The service still runs.
                Err(_) => {}
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => {
                    let is_full = error.says(NO_SPACE);
                    self.on_disk("cannot delete the headroom file, will retry", move |headroom| {
                        headroom.release(is_full)
                    })
                    .await;
                    return Err(error);
                }
            }
        }
    }

    /// Runs `work` on a thread for blocking work. An error is only logged, because the service also runs without the
    /// file.
    async fn on_disk(
        self: &Arc<Self>,
        failure: &'static str,
        work: impl FnOnce(&Self) -> io::Result<()> + Send + 'static,
    ) {
        let headroom = Arc::clone(self);
        // A panic must not end the service.
        let done = spawn_blocking(move || work(&headroom)).await.unwrap_or_else(|error| Err(io::Error::other(error)));
        if let Err(error) = done {
            warn!(directory = %self.directory.display(), %error, "{failure}");
        }
    }

    /// Creates the file, if it is missing and the directory has space for it.
    fn keep(&self) -> io::Result<()> {
        let path = self.path();
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_file() && found.blocks().saturating_mul(512) >= SIZE.get() => return Ok(()),
            // An earlier attempt did not complete.
            Ok(_) => fs::remove_file(&path)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        // The program's first start creates the directory.
        if !fs::exists(&self.directory)? || !fits(self.available()?) {
            return Ok(());
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        if let Err(errno) = fallocate(&file, FallocateFlags::empty(), 0, SIZE.get().cast_signed()) {
            fs::remove_file(&path)?;
            return Err(errno.into());
        }
        info!(path = %path.display(), size = %SIZE, "headroom file created");
        Ok(())
    }

    /// Deletes the file if the program reported a lack of space (`is_full`), or if the directory is full.
    fn release(&self, is_full: bool) -> io::Result<()> {
        if !is_full && self.available()? >= SIZE {
            return Ok(());
        }
        let path = self.path();
        match fs::remove_file(&path) {
            Ok(()) => {
                error!(
                    path = %path.display(), size = %SIZE,
                    "program ended for lack of space; headroom file deleted: compact the database, delete objects, \
                     or enlarge the disk"
                );
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                error!(
                    path = %path.display(),
                    "program ended for lack of space, and the headroom file was deleted before: enlarge the disk"
                );
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn available(&self) -> io::Result<Bytes> {
        available(&self.directory)
    }

    fn path(&self) -> PathBuf {
        self.directory.join("headroom")
    }
}

/// Free space for a program in its directory. XFS reports what is left of the project's limit.
pub(crate) fn available(directory: &Path) -> io::Result<Bytes> {
    let found = statvfs(directory)?;
    Ok(Bytes::new(found.blocks_available().saturating_mul(found.fragment_size())))
}

/// Whether the program keeps as much free space as the size of the file after the file's creation. The result is false
/// right after the deletion of the file.
fn fits(available: Bytes) -> bool {
    available >= Bytes::new(2 * SIZE.get())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    use tempfile::TempDir;

    use super::*;
    use crate::program::Tail;
    use crate::program::tests::{error_of, start_once};

    struct Scratch {
        directory: TempDir,
    }

    impl Scratch {
        fn new() -> Self {
            Self { directory: tempfile::tempdir().unwrap() }
        }

        fn headroom(&self) -> Headroom {
            Headroom::of(self.directory.path().to_owned())
        }

        fn is_whole(&self) -> bool {
            let found = fs::metadata(self.directory.path().join("headroom"));
            found.is_ok_and(|found| found.len() == SIZE.get() && found.blocks() * 512 >= SIZE.get())
        }

        fn is_empty(&self) -> bool {
            fs::read_dir(self.directory.path()).unwrap().next().is_none()
        }
    }

    #[test]
    fn the_file_reserves_its_size_and_a_short_one_is_created_again() {
        let scratch = Scratch::new();
        let headroom = scratch.headroom();
        fs::write(headroom.path(), b"").unwrap();
        for _ in 0..2 {
            headroom.keep().unwrap();
            assert!(scratch.is_whole());
        }
    }

    #[test]
    fn a_missing_directory_is_not_an_error() {
        let scratch = Scratch::new();
        let headroom = Headroom::of(scratch.directory.path().join("missing"));
        headroom.keep().unwrap();
        assert!(!scratch.directory.path().join("missing").exists());
    }

    /// Otherwise the next start would create the file again, and etcd would have no free space.
    #[test]
    fn the_space_of_a_deleted_file_is_not_enough_to_create_it_again() {
        assert!(!fits(SIZE));
        assert!(!fits(Bytes::new(2 * SIZE.get() - 1)));
        assert!(fits(Bytes::new(2 * SIZE.get())));
    }

    /// The directory after a program ended with this last line of output.
    async fn ended(last: &'static str) -> Scratch {
        let scratch = Scratch::new();
        let ends: Service = Box::new(move |_| {
            Box::pin(async move {
                let mut tail = Tail::default();
                tail.push(last);
                Err(ProgramError::Ended { program: "etcd", status: ExitStatus::from_raw(1 << 8), tail })
            })
        });
        error_of(&start_once(scratch.headroom().with(ends))).await;
        scratch
    }

    #[tokio::test]
    async fn the_file_is_deleted_when_the_program_ends_for_lack_of_space() {
        let fatal = "failed to save Raft hard state and entries error=\"write: no space left on device\"";
        assert!(ended(fatal).await.is_empty());
    }

    #[tokio::test]
    async fn the_file_stays_when_the_program_ends_for_another_reason() {
        assert!(ended("failed to listen error=\"address already in use\"").await.is_whole());
    }
}
