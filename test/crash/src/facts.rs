//! The content of the disk, read without the store.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use fsquota::{Limits, ProjectId};
use units::Bytes;
use volume::{Record, RecordError, Rollback, State};

use crate::model::{Place, Register};
use crate::violation::Violation;

const REGISTERS: [(&str, Register); 2] = [("pending", Register::Pending), ("records", Register::Records)];
const PLACES: [(&str, Place); 3] = [("staging", Place::Staging), ("live", Place::Live), ("trash", Place::Trash)];

pub(crate) const VOLUMES: &str = "volumes";

/// The name of the image in the directory of a block volume.
pub(crate) const IMAGE: &str = "image";

/// Everything below a volumes directory except the data, and all limits of its file system.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) volumes: BTreeMap<String, Found>,
    pub(crate) limits: BTreeMap<ProjectId, Limits>,
    /// Limits that `statfs` shows, if they are not those of the kernel.
    pub(crate) shown: BTreeMap<ProjectId, Limits>,
    /// Files outside of volumes.
    pub(crate) rest: Vec<PathBuf>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) records: Vec<(Register, Vec<u8>)>,
    pub(crate) directories: Vec<(Place, Directory)>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Directory {
    pub(crate) path: PathBuf,
    pub(crate) project: Option<ProjectId>,
    pub(crate) image: Option<Image>,
    /// Whether a file of another volume has some of its blocks.
    pub(crate) is_shared: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) length: Bytes,
    pub(crate) allocated: Bytes,
}

impl Facts {
    /// Reads the volumes directory on the file system that is mounted at `root`.
    pub(crate) fn look(root: &Path) -> Result<Self, Violation> {
        let volumes = root.join(VOLUMES);
        let mut facts = Self::default();
        for (name, register) in REGISTERS {
            for (name, path) in facts.names(&volumes.join(name))? {
                let content = fs::read(&path).map_err(look(&path))?;
                facts.volumes.entry(name).or_default().records.push((register, content));
            }
        }
        for (name, place) in PLACES {
            for (name, path) in facts.names(&volumes.join(name))? {
                let project = fsquota::project(File::open(&path).map_err(look(&path))?)?;
                let image = image(&path.join(IMAGE))?;
                let is_shared = is_shared(&path).map_err(look(&path))?;
                let directory = Directory { path, project, image, is_shared };
                facts.volumes.entry(name).or_default().directories.push((place, directory));
            }
        }
        let root = File::open(root).map_err(look(root))?;
        for quota in fsquota::report(&root)? {
            let quota = quota?;
            if quota.limits != Limits::default() {
                facts.limits.insert(quota.id, quota.limits);
            }
            if quota.shown != quota.limits {
                facts.shown.insert(quota.id, quota.shown);
            }
        }
        Ok(facts)
    }

    /// Names that can be volumes, with their paths. Other paths are added to `rest`.
    fn names(&mut self, parent: &Path) -> Result<Vec<(String, PathBuf)>, Violation> {
        let entries = match fs::read_dir(parent) {
            // The power failed before the store had ever been opened.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            entries => entries.map_err(look(parent))?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let path = entry.map_err(look(parent))?.path();
            match path.file_name().and_then(|name| name.to_str()).filter(|name| !name.starts_with('.')) {
                Some(name) => names.push((name.to_owned(), path)),
                None => self.rest.push(path),
            }
        }
        Ok(names)
    }

    /// Describes the parts in which two readings of the disk differ.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        let mut changed = Vec::new();
        for name in self.volumes.keys().chain(other.volumes.keys()) {
            let (before, after) = (self.volumes.get(name), other.volumes.get(name));
            if before != after {
                changed.push(format!("{name}: {before:?} to {after:?}"));
            }
        }
        if self.limits != other.limits {
            changed.push(format!("limits: {:?} to {:?}", self.limits, other.limits));
        }
        if self.shown != other.shown {
            changed.push(format!("limits that statfs shows: {:?} to {:?}", self.shown, other.shown));
        }
        if self.rest != other.rest {
            changed.push(format!("other files: {:?} to {:?}", self.rest, other.rest));
        }
        (!changed.is_empty()).then(|| changed.join("; "))
    }
}

impl Found {
    /// Whether the volume has only a pending record.
    fn is_begun(&self) -> bool {
        matches!(self.records.as_slice(), [(Register::Pending, _)]) && self.directories.is_empty()
    }

    /// Whether a rollback has exchanged the directory of this volume and that of the other volume.
    pub(crate) fn is_exchanged(&self, name: &str) -> Result<bool, Violation> {
        let Some(record) = self.record(name)? else { return Ok(false) };
        // A directory keeps its project, while the records may still have the former projects.
        let is_former =
            |rollback: &Rollback| self.directories.iter().any(|(_, found)| found.project == Some(rollback.project));
        Ok(record.rollback().is_none_or(is_former))
    }

    pub(crate) fn record(&self, name: &str) -> Result<Option<Record>, Violation> {
        let parse = |(register, content): &(Register, Vec<u8>)| match register {
            Register::Pending => Record::parse(content, State::Staged),
            Register::Records => Record::parse(content, State::Announced),
        };
        match self.records.first().map(parse).transpose() {
            // The power failed while the record was written, before the volume had anything else.
            Err(RecordError::Syntax(_)) if self.is_begun() => Ok(None),
            record => record.map_err(|source| Violation::Record { name: name.to_owned(), source }),
        }
    }
}

fn image(path: &Path) -> Result<Option<Image>, Violation> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(Image {
            length: Bytes::new(found.len()),
            allocated: Bytes::new(found.blocks().saturating_mul(512)),
        })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(look(path)(error)),
    }
}

/// Whether a file, or any file below a directory, shares blocks.
fn is_shared(path: &Path) -> io::Result<bool> {
    if fs::symlink_metadata(path)?.is_dir() {
        return fs::read_dir(path)?.try_fold(false, |found, entry| Ok(found || is_shared(&entry?.path())?));
    }
    let (file, mut at) = (File::open(path)?, Bytes::ZERO);
    loop {
        let batch = reflink::extents(&file, at)?;
        if batch.iter().any(|extent| extent.shared) {
            return Ok(true);
        }
        let Some(last) = batch.last() else { return Ok(false) };
        at = last.end();
    }
}

/// For `map_err`: this path could not be read.
pub(crate) fn look(path: &Path) -> impl FnOnce(io::Error) -> Violation {
    |source| Violation::Look { path: path.to_owned(), source }
}
