//! A data disk of the previous release: the projects of its parts are the first IDs of the counter of volumes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use fsquota::{Allocator, ProjectId};
use localstorage::{Budget, Data, Part, Tree};
use nix::sys::statvfs::statvfs;
use units::Bytes;

/// The first ID that no volume gets.
pub const FIRST: u32 = 1 << 31;

/// Creates the tree on a file system that is mounted at its root, with files in each part. Durable after a `syncfs`.
pub fn create(data: &Data) {
    let mut entries = Vec::new();
    data.visit(&mut |entry| entries.extend((entry.directory && !is_new(data, entry.path)).then_some(entry)));
    // The root of containerd was the directory of its part, and its project was inherited by the directories that are
    // the part now.
    let containerd = data.containerd.path();
    let (inner, outer): (Vec<_>, Vec<_>) =
        entries.into_iter().partition(|entry| entry.path != containerd && entry.path.starts_with(containerd));
    for entry in &outer {
        fs::create_dir(entry.path).unwrap();
    }
    let ids = Allocator::open(File::open(data.volumes.path()).unwrap()).unwrap();
    let budget = budget(data);
    for entry in &outer {
        let part = if entry.path == containerd { Some(Part::Containerd) } else { entry.part };
        let Some(part) = part else { continue };
        fsquota::set(File::open(entry.path).unwrap(), budget.limits(part), &ids).unwrap();
    }
    for entry in &inner {
        fs::create_dir(entry.path).unwrap();
    }
    for entry in outer.iter().chain(&inner) {
        let Some(part) = entry.part else { continue };
        fs::create_dir_all(entry.path.join("one/two")).unwrap();
        for (file, content) in files(entry.path, part) {
            fs::write(file, content).unwrap();
        }
    }
}

/// Faults of that disk after a boot of this release: each part must have its data, its limits, and an ID that no pod
/// can guess. The parts that every pod can read must have the former ID. No project may be left over.
pub fn faults(data: &Data) -> Vec<String> {
    let mut faults = Vec::new();
    let mut of_parts = Vec::new();
    let budget = budget(data);
    data.visit(&mut |entry| {
        let Some(part) = entry.part else { return };
        if is_new(data, entry.path) && !entry.path.exists() {
            return;
        }
        let dir = File::open(entry.path).unwrap();
        let quota = match fsquota::get(&dir) {
            Ok(quota) => quota,
            Err(error) => return faults.push(format!("{part:?}: {error}")),
        };
        let can_be_guessed = quota.id.get() < FIRST;
        if can_be_guessed != matches!(part, Part::Containerd | Part::Pods) {
            faults.push(format!("{part:?} has project {}", quota.id));
        }
        if quota.limits != budget.limits(part) {
            faults.push(format!("{part:?} has {:?}", quota.limits));
        }
        let strays = fsquota::strays(&dir, quota.id).unwrap();
        faults.extend(strays.map(|stray| format!("{part:?}: {stray:?}")));
        for (file, content) in files(entry.path, part) {
            if !is_new(data, entry.path) && fs::read_to_string(&file).ok() != Some(content) {
                faults.push(format!("{} is not what it was", file.display()));
            }
        }
        of_parts.push(quota.id);
    });
    of_parts.sort_unstable();
    of_parts.dedup();
    let all: Vec<ProjectId> =
        fsquota::report(&File::open(data.path()).unwrap()).unwrap().map(|quota| quota.unwrap().id).collect();
    if all != of_parts {
        faults.push(format!("there are the projects {all:?}, and the parts have {of_parts:?}"));
    }
    faults
}

/// Whether the previous release did not have the directory.
fn is_new(data: &Data, path: &Path) -> bool {
    path.starts_with(data.cni.path()) || path == data.registries.path()
}

fn budget(data: &Data) -> Budget {
    let seen = statvfs(data.path()).unwrap();
    Budget::of(Bytes::new(seen.blocks() * seen.fragment_size()))
}

fn files(path: &Path, part: Part) -> [(PathBuf, String); 3] {
    ["file", "one/file", "one/two/file"].map(|name| (path.join(name), format!("{name} of {part:?}")))
}
