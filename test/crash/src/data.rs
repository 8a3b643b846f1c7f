//! Compares the data of volumes with what pods have written.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use units::Bytes;
use volume::Record;

use crate::facts::{Directory, Facts, IMAGE, look};
use crate::life::{Body, SLOT};
use crate::marker;
use crate::model::{Expected, Place};
use crate::operation::{Number, Shape};
use crate::violation::Violation;

/// Synced data is there, that of a copy as it was at its instant, and no data of another volume.
pub(crate) fn check(facts: &Facts, expected: &BTreeMap<Number, Expected>) -> Result<(), Violation> {
    for (volume, Expected { body, writing, fading, is_begun, .. }) in expected {
        let found = facts.volumes.get(&volume.to_string());
        let (Some(body), Some((place, directory))) = (body, found.and_then(|found| found.directories.first())) else {
            continue;
        };
        let record = found.map(|found| found.record(&volume.to_string())).transpose()?.flatten();
        let is_filled = *place != Place::Staging || record.is_some_and(|record| is_cloned(body, &record, directory));
        if !is_filled && body.is_complete_at_once() && !is_begun && !fading {
            return Err(Violation::Incomplete { volume: *volume });
        }
        let being_written = writing.map(|slot| (slot, body.mark(*volume, slot)));
        let slots: BTreeMap<u16, Number> = body.written.clone().into_iter().chain(being_written).collect();
        match (body.shape, place) {
            (_, Place::Trash) => {}
            (Shape::Filesystem, _) => only_files_of(&slots, *volume, &directory.path, is_filled)?,
            (Shape::Thick | Shape::Thin, _) if is_filled => {
                only_lines_of(*volume, directory.path.join(IMAGE), |slot| slots.get(&slot).copied())?;
            }
            (Shape::Thick | Shape::Thin, _) => {}
        }
        if is_filled && !fading {
            all_synced(*volume, body, &directory.path)?;
        }
    }
    Ok(())
}

/// Whether a copy has the whole content of its source. The staged directory of a rollback, whose body has no origin, was that of
/// the volume.
fn is_cloned(body: &Body, record: &Record, directory: &Directory) -> bool {
    match (body.shape, &record.cloning, &directory.image) {
        _ if body.origin.is_none() => body.is_snapshot,
        (Shape::Filesystem, cloning, _) => cloning.as_ref().is_none_or(|cloning| cloning.complete),
        // XFS extends a clone with each extent: a shorter image is a part of one.
        (_, Some(cloning), Some(image)) => image.length >= cloning.headroom,
        (_, None, Some(image)) => image.length > Bytes::ZERO,
        (_, _, None) => false,
    }
}

fn all_synced(volume: Number, body: &Body, directory: &Path) -> Result<(), Violation> {
    for (&slot, &mark) in &body.written {
        let wanted = marker::content(mark, slot);
        let (path, offset) = match body.shape {
            Shape::Filesystem => (directory.join(file(slot)), 0),
            Shape::Thick | Shape::Thin => (directory.join(IMAGE), u64::from(slot) * SLOT.get()),
        };
        let mut content = vec![0; wanted.len()];
        let lost = |found| Violation::Lost { volume, slot, found };
        match File::open(&path).and_then(|file| file.read_exact_at(&mut content, offset)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(lost("absent")),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(lost("cut short")),
            read => read.map_err(look(&path))?,
        }
        if content != wanted {
            return Err(lost("something else"));
        }
    }
    Ok(())
}

/// Reads all files.
fn only_files_of(
    slots: &BTreeMap<u16, Number>,
    volume: Number,
    directory: &Path,
    is_filled: bool,
) -> Result<(), Violation> {
    for entry in fs::read_dir(directory).map_err(look(directory))? {
        let path = entry.map_err(look(directory))?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let mark = name.and_then(|name| slots.get(&name.strip_prefix(FILE)?.parse().ok()?));
        match (mark, name) {
            (Some(mark), _) => only_lines_of(volume, path, |_| Some(*mark))?,
            // The clone of a tree has one in its target until it ends.
            (None, Some(name)) if !is_filled && name.starts_with(SCRATCH) => {}
            (None, _) => return Err(Violation::Unwritten { volume, path }),
        }
    }
    Ok(())
}

/// Reads a whole file. A slot without an owner was never written.
fn only_lines_of(volume: Number, path: PathBuf, owner: impl Fn(u16) -> Option<Number>) -> Result<(), Violation> {
    let content = fs::read(&path).map_err(look(&path))?;
    match marker::foreign(&content, owner) {
        Some((at, line)) => Err(Violation::Foreign { volume, path, at: at as u64, line }),
        None => Ok(()),
    }
}

const FILE: &str = "slot-";

/// Of the directory that `reflink::TreeClone` has in its target.
const SCRATCH: &str = ".reflink-";

/// The name of what a pod writes into a directory.
pub(crate) fn file(slot: u16) -> String {
    format!("{FILE}{slot}")
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::life::Origin;

    const SOURCE: Number = Number(1);
    const COPY: Number = Number(2);

    fn write(files: &TempDir, name: &str, content: &[u8]) {
        fs::write(files.path().join(name), content).unwrap();
    }

    /// A copy that was begun when its source had slot 3.
    fn copy() -> Body {
        let body = Body::new(Shape::Filesystem, Bytes::MIB);
        let origin = Origin { source: SOURCE, headroom: Bytes::MIB };
        Body { written: [(3, SOURCE)].into(), origin: Some(origin), ..body }
    }

    #[test]
    fn a_copy_that_is_not_complete_has_any_part_of_its_source() {
        let files = tempfile::tempdir().unwrap();
        let check = |is_filled| only_files_of(&copy().written, COPY, files.path(), is_filled);
        check(false).unwrap();
        write(&files, &file(3), b"");
        check(false).unwrap();
        write(&files, &file(3), &marker::content(SOURCE, 3));
        fs::create_dir(files.path().join(".reflink-0123456789abcdef")).unwrap();
        check(false).unwrap();
        let violation = check(true).unwrap_err();
        assert!(matches!(violation, Violation::Unwritten { .. }), "{violation}");
    }

    #[test]
    fn files_that_were_written_after_the_instant_are_noticed() {
        let files = tempfile::tempdir().unwrap();
        write(&files, &file(3), &marker::content(SOURCE, 3));
        write(&files, &file(4), b"");
        let check = |slots: &[(u16, Number)]| only_files_of(&slots.iter().copied().collect(), COPY, files.path(), true);
        let violation = check(&[(3, SOURCE)]).unwrap_err();
        assert!(matches!(violation, Violation::Unwritten { .. }), "{violation}");
        // A pod of the copy creates it, and then writes its own lines.
        check(&[(3, SOURCE), (4, COPY)]).unwrap();
        write(&files, &file(4), &marker::content(COPY, 4));
        check(&[(3, SOURCE), (4, COPY)]).unwrap();
        write(&files, &file(4), &marker::content(SOURCE, 4));
        let violation = check(&[(3, SOURCE), (4, COPY)]).unwrap_err();
        assert!(matches!(violation, Violation::Foreign { .. }), "{violation}");
    }

    #[test]
    fn a_file_of_the_source_that_is_missing_or_cut_is_noticed() {
        let files = tempfile::tempdir().unwrap();
        let lost = || matches!(all_synced(COPY, &copy(), files.path()), Err(Violation::Lost { slot: 3, .. }));
        assert!(lost());
        let whole = marker::content(SOURCE, 3);
        write(&files, &file(3), &whole[..4096]);
        assert!(lost());
        write(&files, &file(3), &whole);
        assert!(!lost());
    }
}
