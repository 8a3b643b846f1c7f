//! Assigns projects and limits to the parts of the data disk.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::path::Path;

use dir::{Dir, Ensured, Mode, Name};
use fsquota::{Limits, ProjectId, SetError, TransferError, Transferred};
use nix::sys::statvfs::fstatvfs;
use tracing::{info, warn};
use units::Bytes;

use crate::budget::{Budget, Part};
use crate::error::MountError;
use crate::mounted::below;
use crate::project_ids::ProjectIds;
use crate::tree::{Data, Entry, Tree};

const MODE: Mode = Mode::S_IRUSR.union(Mode::S_IWUSR);

/// The limits of one data disk, and the projects that have them.
#[derive(Debug)]
pub(crate) struct Projects {
    budget: Budget,
    ids: ProjectIds,
    /// Parts of which at least one directory has the project.
    assigned: BTreeSet<Part>,
    /// Projects of parts that a former release limited at the parent directory. The other directories of the part join
    /// these.
    former: BTreeMap<Part, ProjectId>,
}

impl Projects {
    /// Projects of the data disk with this root. The IDs are durable before a directory has one: a move to another
    /// project that a power cut interrupts continues to the same project.
    pub(crate) fn open(root: &Dir, tree: &Data) -> Result<Self, MountError> {
        let budget = budget(root, tree.path())?;
        let path = tree.project_ids.path();
        let name = Name::try_from(path.file_name().unwrap_or_default())
            .map_err(|source| MountError::Name { path: path.to_owned(), source })?;
        // If the record is lost, the directories still have their IDs.
        let recorded = match root.read(&name) {
            Ok(text) => text.and_then(|text| {
                let ids = ProjectIds::parse(&text);
                if ids.is_none() {
                    warn!(path = %path.display(), "record of project IDs is damaged, writing it again");
                }
                ids
            }),
            Err(error) => {
                let error: &dyn Error = &error;
                warn!(path = %path.display(), error, "cannot read the record of project IDs, writing it again");
                None
            }
        };
        let mut ids = recorded.clone().unwrap_or_default();
        ids.complete(
            |part| present(root, tree, part),
            || getrandom::u32().map_err(|source| MountError::Random { path: tree.path().to_owned(), source }),
            |id| is_unused(root, tree.path(), id),
        )?;
        if recorded.as_ref() != Some(&ids) {
            let failed = |source| MountError::Directory { step: "write", path: path.to_owned(), source };
            root.write(&name, &ids.text(), MODE).map_err(failed)?;
        }
        Ok(Self { budget, ids, assigned: BTreeSet::new(), former: BTreeMap::new() })
    }

    /// Limits a directory of the tree if it is a part. Must precede the directory's content, which would otherwise not
    /// count.
    ///
    /// Runs at each boot: a power cut may have lost the last change of a limit, and the disk may have been enlarged.
    pub(crate) fn limit(&mut self, dir: &Dir, entry: Entry<'_>) -> Result<(), MountError> {
        let Some((part, id)) = entry.part.and_then(|part| Some((part, self.ids.get(part)?))) else { return Ok(()) };
        let id = self.former.get(&part).copied().unwrap_or(id);
        let limits = self.budget.limits(part);
        let path = entry.path.display();
        let failed = |source| MountError::Limit { path: entry.path.to_owned(), source };
        let is_first = self.assigned.insert(part);
        match if is_first { fsquota::assign(dir, id, limits) } else { fsquota::join(dir, id, limits) } {
            Ok(Ensured::Created(_)) => {
                let (limit, inodes) = (self.budget.bytes(part), limits.inodes.unwrap_or_default().get());
                info!(%path, %limit, %inodes, "directory limited");
                Ok(())
            }
            Ok(Ensured::Unchanged(_)) => Ok(()),
            Err(SetError::OtherProject { .. }) => {
                let outer = transfer(dir, entry.path, id, limits)?;
                self.former.extend(outer.map(|outer| (part, outer)));
                Ok(())
            }
            // A release without limits has filled the directory. The node starts nevertheless.
            Err(SetError::NotEmpty) => {
                warn!(
                    %path,
                    "directory was filled before it had a limit, and stays without one: it can use the reserved \
                     space of volumes; move the volumes to a node with a new data disk"
                );
                Ok(())
            }
            // In a former release, the root of containerd was the directory of the part.
            Err(SetError::Nested { outer }) if outer == id => fsquota::set_limits(dir, id, limits).map_err(failed),
            Err(SetError::Nested { outer }) => {
                is_nested(entry.path);
                self.former.insert(part, outer);
                Ok(())
            }
            Err(source) => Err(failed(source)),
        }
    }
}

/// Moves a directory from the project of a former release, which every pod could guess. No process writes to the
/// directory during a boot. Returns the project of the parent directory if that has the limit.
fn transfer(dir: &Dir, path: &Path, id: ProjectId, limits: Limits) -> Result<Option<ProjectId>, MountError> {
    match fsquota::transfer(dir, id, limits) {
        Ok(Transferred { left: None, .. }) => info!(path = %path.display(), "directory moved to another project"),
        Ok(Transferred { left: Some(left), .. }) => warn!(
            path = %path.display(),
            inodes = left.inodes.get(),
            "directory moved to another project, except inodes that the kernel cannot move: they keep the former limits"
        ),
        Err(TransferError::Set(SetError::Nested { outer })) => {
            is_nested(path);
            return Ok(Some(outer));
        }
        Err(source) => return Err(MountError::Transfer { path: path.to_owned(), source }),
    }
    Ok(None)
}

/// The parent directory got the limit in a former release, and keeps it.
fn is_nested(path: &Path) {
    info!(path = %path.display(), "directory has the limit of its parent directory");
}

fn present(root: &Dir, tree: &Data, part: Part) -> Result<Option<ProjectId>, MountError> {
    let mut paths = Vec::new();
    tree.visit(&mut |entry| {
        if entry.part == Some(part) {
            paths.push(entry.path);
        }
    });
    for path in paths {
        let Some(place) = below(tree.path(), path) else { continue };
        let dir = match root.open_beneath(place) {
            Err(error) if error.is_not_found() => continue,
            opened => opened.map_err(|source| MountError::Directory { step: "open", path: path.to_owned(), source })?,
        };
        let found = fsquota::project(&dir);
        if let Some(id) = found.map_err(|source| MountError::Project { path: path.to_owned(), source })? {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// Whether no file on the disk has this project, and the project has no limits.
fn is_unused(root: &Dir, path: &Path, id: ProjectId) -> Result<bool, MountError> {
    let quota = fsquota::quota(root, id).map_err(|source| MountError::Project { path: path.to_owned(), source })?;
    Ok(quota.limits == Limits::default() && quota.used == fsquota::Usage::default())
}

pub(crate) fn budget(root: &Dir, path: &Path) -> Result<Budget, MountError> {
    let found = fstatvfs(root).map_err(|source| MountError::Size { path: path.to_owned(), source })?;
    Ok(Budget::of(Bytes::new(found.blocks().saturating_mul(found.fragment_size()))))
}
