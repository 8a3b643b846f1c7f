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
    for (volume, Expected { body, fading, .. }) in expected {
        let found = facts.volumes.get(&volume.to_string());
        let (Some(body), Some((place, directory))) = (body, found.and_then(|found| found.directories.first())) else {
            continue;
        };
        let record = found.map(|found| found.record(&volume.to_string())).transpose()?.flatten();
        let is_filled = *place != Place::Staging || record.is_some_and(|record| is_cloned(body, &record, directory));
        match (body.shape, place) {
            (_, Place::Trash) => {}
            (Shape::Filesystem, _) => only_own_files(*volume, body, &directory.path, *place, is_filled)?,
            (Shape::Thick | Shape::Thin, _) if is_filled => only_own_blocks(*volume, body, &directory.path)?,
            (Shape::Thick | Shape::Thin, _) => {}
        }
        if is_filled && !fading {
            all_synced(*volume, body, &directory.path)?;
        }
    }
    Ok(())
}

/// Whether a copy has the whole content of its source.
fn is_cloned(body: &Body, record: &Record, directory: &Directory) -> bool {
    match (body.shape, &record.cloning, &directory.image) {
        _ if body.origin.is_none() => false,
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

/// Reads the whole image.
fn only_own_blocks(volume: Number, body: &Body, directory: &Path) -> Result<(), Violation> {
    only_lines_of(volume, directory.join(IMAGE), |slot| body.mark(volume, slot))
}

/// Reads all files. Pods have written no others into a snapshot, nor into a copy that is not live.
fn only_own_files(
    volume: Number,
    body: &Body,
    directory: &Path,
    place: Place,
    is_filled: bool,
) -> Result<(), Violation> {
    for entry in fs::read_dir(directory).map_err(look(directory))? {
        let path = entry.map_err(look(directory))?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(slot) = name.and_then(|name| name.strip_prefix(FILE)?.parse().ok()) else {
            // The clone of a tree has one in its target until it ends.
            if !is_filled && name.is_some_and(|name| name.starts_with(SCRATCH)) {
                continue;
            }
            return Err(Violation::Unwritten { volume, path });
        };
        if (place == Place::Staging || body.is_snapshot) && !body.written.contains_key(&slot) {
            return Err(Violation::Later { volume, path });
        }
        only_lines_of(volume, path, |_| body.mark(volume, slot))?;
    }
    Ok(())
}

fn only_lines_of(volume: Number, path: PathBuf, owner: impl Fn(u16) -> Number) -> Result<(), Violation> {
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
    use super::*;
    use crate::life::Origin;

    const SOURCE: Number = Number(1);
    const COPY: Number = Number(2);

    /// A directory that is removed at the end.
    struct Files(PathBuf);

    impl Files {
        fn new(test: &str) -> Self {
            let path = std::env::temp_dir().join(format!("{test}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn write(&self, name: &str, content: &[u8]) {
            fs::write(self.0.join(name), content).unwrap();
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    /// A copy that was begun when its source had slot 3.
    fn copy() -> Body {
        let body = Body::new(Shape::Filesystem, Bytes::MIB);
        let origin = Origin { source: SOURCE, headroom: Bytes::MIB };
        Body { written: [(3, SOURCE)].into(), origin: Some(origin), ..body }
    }

    #[test]
    fn a_copy_that_is_not_complete_has_any_part_of_its_source() {
        let files = Files::new("part");
        let check = |is_filled| only_own_files(COPY, &copy(), &files.0, Place::Staging, is_filled);
        check(false).unwrap();
        files.write(&file(3), b"");
        check(false).unwrap();
        files.write(&file(3), &marker::content(SOURCE, 3));
        fs::create_dir(files.0.join(".reflink-0123456789abcdef")).unwrap();
        check(false).unwrap();
        let violation = check(true).unwrap_err();
        assert!(matches!(violation, Violation::Unwritten { .. }), "{violation}");
    }

    #[test]
    fn files_that_were_written_after_the_instant_are_noticed() {
        let files = Files::new("later");
        files.write(&file(3), &marker::content(SOURCE, 3));
        files.write(&file(4), b"");
        let check = |body: &Body, place| only_own_files(COPY, body, &files.0, place, true);
        let is_later = |found: Result<(), Violation>| matches!(found, Err(Violation::Later { .. }));
        assert!(is_later(check(&copy(), Place::Staging)));
        assert!(is_later(check(&Body { is_snapshot: true, ..copy() }, Place::Live)));
        // A pod of the copy creates it, and then writes its own lines.
        check(&copy(), Place::Live).unwrap();
        files.write(&file(4), &marker::content(COPY, 4));
        check(&copy(), Place::Live).unwrap();
        files.write(&file(4), &marker::content(SOURCE, 4));
        let violation = check(&copy(), Place::Live).unwrap_err();
        assert!(matches!(violation, Violation::Foreign { .. }), "{violation}");
    }

    #[test]
    fn a_file_of_the_source_that_is_missing_or_cut_is_noticed() {
        let files = Files::new("missing");
        let lost = || matches!(all_synced(COPY, &copy(), &files.0), Err(Violation::Lost { slot: 3, .. }));
        assert!(lost());
        let whole = marker::content(SOURCE, 3);
        files.write(&file(3), &whole[..4096]);
        assert!(lost());
        files.write(&file(3), &whole);
        assert!(!lost());
    }
}
