//! Archives of images that the administrator adds to the node: on separate disks and partitions, or in a directory of
//! the EFI system partition.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use mount::UnmountError;
use programs::containerd::{self, Archive};
use supervisor::{BoxError, Context};
use tokio::task::spawn_blocking;
use tracing::warn;

use crate::disk::{self, DiskError};
use crate::error::StepError;
use crate::esp::{self, Partitions};

/// Directory on the EFI system partition.
const DIRECTORY: &str = "images";
/// Maximum number of archives that a boot imports from EFI system partitions: each import starts a program.
const MOST: usize = 64;

/// The archives, and the mounts of their partitions. After the import, call [`GivenArchives::unmount`].
#[derive(Debug)]
pub struct GivenArchives {
    archives: Vec<Archive>,
    mounted: Vec<PathBuf>,
}

impl GivenArchives {
    /// Lists the archives on disks first, in the order of their names. Mounts EFI system partitions with archives below
    /// a directory of `ephemeral`. The node starts without archives that it cannot read.
    ///
    /// # Errors
    /// The disks cannot be listed.
    pub fn find(ephemeral: &Path) -> Result<Self, DiskError> {
        let mut given = Self { archives: disk::image_archives()?, mounted: Vec::new() };
        if let Err(error) = given.find_on_esps(&ephemeral.join("esp")) {
            warn!(error = causes::of(&error), "archives of images on the EFI system partition are not imported");
        }
        Ok(given)
    }

    pub fn archives(&self) -> &[Archive] {
        &self.archives
    }

    fn find_on_esps(&mut self, places: &Path) -> Result<(), StepError> {
        let mut files = Vec::new();
        for device in Partitions::find().map_err(StepError::of("cannot find the EFI system partition"))?.all {
            // An unreadable partition of another system does not hide the next one.
            match self.find_on(&device, places) {
                Ok(found) => files.extend(found),
                Err(error) => {
                    let error = causes::of(&error);
                    warn!(device = %device.display(), error, "archives of images on this partition are not imported");
                }
            }
        }
        if files.len() > MOST {
            let ignored: Vec<String> = files.split_off(MOST).into_iter().map(|archive| archive.name).collect();
            warn!(most = MOST, ?ignored, "too many archives of images on the EFI system partition");
        }
        self.archives.extend(files);
        Ok(())
    }

    fn find_on(&mut self, device: &Path, places: &Path) -> Result<Vec<Archive>, StepError> {
        let place = places.join(device.file_name().unwrap_or_default());
        fs::create_dir_all(&place).map_err(StepError::of(format!("cannot create {}", place.display())))?;
        esp::mount(device, &place).map_err(StepError::of(format!("cannot mount {}", device.display())))?;
        let found = archives_in(&place.join(DIRECTORY));
        if found.as_ref().is_ok_and(|found| !found.is_empty()) {
            self.mounted.push(place);
        } else {
            unmount(&place);
        }
        found.map_err(StepError::of(format!("cannot list {DIRECTORY} on {}", device.display())))
    }

    pub fn unmount(&self) {
        self.mounted.iter().for_each(|place| unmount(place));
    }
}

/// Unmounts a partition. On an error, it stays mounted until the shutdown of the node.
fn unmount(place: &Path) {
    match mount::unmount(place) {
        // An earlier attempt of the service has unmounted the partition.
        Ok(()) | Err(UnmountError::NotMounted) => {}
        Err(error) => warn!(place = %place.display(), error = causes::of(&error), "EFI system partition stays mounted"),
    }
}

/// Files with the extension `.tar`, in upper or lower case, in the order of their names. Empty for a missing directory.
fn archives_in(directory: &Path) -> io::Result<Vec<Archive>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_file() && path.extension().is_some_and(|end| end.eq_ignore_ascii_case("tar")) {
            found.push(Archive { name: format!("{DIRECTORY}/{}", entry.file_name().to_string_lossy()), path });
        }
    }
    found.sort();
    Ok(found)
}

/// Imports all images, unmounts the partitions, and is done. containerd must be healthy.
pub(crate) fn service(
    config: &programs::Config,
    given: GivenArchives,
) -> impl Fn(Context) -> BoxFuture<'static, Result<(), BoxError>> + Send + Sync + 'static {
    let import = Arc::new(containerd::images(config, given.archives.clone()));
    let given = Arc::new(given);
    move |cx| {
        let (import, given) = (Arc::clone(&import), Arc::clone(&given));
        async move {
            // After an error, the next attempt needs the mounted files.
            import(cx).await?;
            spawn_blocking(move || given.unmount()).await?;
            Ok(())
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_with_the_ending_are_archives() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["b.TAR", "a.tar", "README", "c.tar.gz", "tar"] {
            fs::write(directory.path().join(name), "").unwrap();
        }
        fs::create_dir(directory.path().join("d.tar")).unwrap();
        let found = archives_in(directory.path()).unwrap();
        let names: Vec<&str> = found.iter().map(|archive| archive.name.as_str()).collect();
        assert_eq!(names, ["images/a.tar", "images/b.TAR"]);
        assert_eq!(found[0].path, directory.path().join("a.tar"));
    }

    #[test]
    fn a_missing_directory_has_no_archives_and_a_file_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(archives_in(&directory.path().join(DIRECTORY)).unwrap(), []);
        fs::write(directory.path().join(DIRECTORY), "").unwrap();
        let error = archives_in(&directory.path().join(DIRECTORY)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
    }
}
