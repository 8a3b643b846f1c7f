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
use crate::marker::{self, Marks};
use crate::model::{Expected, Place};
use crate::operation::{Mark, Number, Shape};
use crate::violation::Violation;

/// Checks that volumes have all synced data and no data of another volume, and that a copy has the data of its source
/// at its instant.
pub(crate) fn check(facts: &Facts, expected: &BTreeMap<Number, Expected>) -> Result<(), Violation> {
    for (&volume, Expected { body, writing, fading, is_begun, .. }) in expected {
        let found = facts.volumes.get(&volume.to_string());
        let (Some(body), Some((place, directory))) = (body, found.and_then(|found| found.directories.first())) else {
            continue;
        };
        let record = found.map(|found| found.record(&volume.to_string())).transpose()?.flatten();
        let is_filled = *place != Place::Staging || record.is_some_and(|record| is_cloned(body, &record, directory));
        if !is_filled && body.is_complete_at_once() && !is_begun && !fading {
            return Err(Violation::Incomplete { volume });
        }
        let content = Content { volume, body, writing: *writing };
        match (body.shape, place) {
            (_, Place::Trash) => {}
            (Shape::Filesystem, _) => content.has_only_files(&directory.path, is_filled)?,
            (Shape::Thick | Shape::Thin, _) if is_filled => {
                content.has_only_lines(directory.path.join(IMAGE), |slot| content.marks(slot))?;
            }
            (Shape::Thick | Shape::Thin, _) => {}
        }
        if is_filled && !fading {
            content.has_all_synced(&directory.path)?;
        }
    }
    Ok(())
}

/// Whether a copy has the whole content of its source. The staged directory of a rollback, whose body has no origin, is
/// the former directory of the volume and complete.
fn is_cloned(body: &Body, record: &Record, directory: &Directory) -> bool {
    match (body.shape, &record.cloning, &directory.image) {
        _ if body.origin.is_none() => body.is_snapshot,
        (Shape::Filesystem, cloning, _) => cloning.as_ref().is_none_or(|cloning| cloning.complete),
        // XFS extends a clone with each extent: a shorter image is an incomplete clone.
        (_, Some(cloning), Some(image)) => image.length >= cloning.headroom,
        (_, None, Some(image)) => image.length > Bytes::ZERO,
        (_, _, None) => false,
    }
}

/// The data that a volume can have.
struct Content<'a> {
    volume: Number,
    body: &'a Body,
    /// Slot that was being written, and the mark of this write.
    writing: Option<(u16, Mark)>,
}

impl Content<'_> {
    fn marks(&self, slot: u16) -> Marks {
        let new = self.writing.filter(|(written, _)| *written == slot).map(|(_, mark)| mark);
        [self.body.written.get(&slot).copied(), new]
    }

    /// Checks that all synced slots are present. A slot that was being written again has, in each sector, either the
    /// synced content or the new content.
    fn has_all_synced(&self, directory: &Path) -> Result<(), Violation> {
        let Self { volume, body, .. } = *self;
        for &slot in body.written.keys() {
            let (path, offset) = match body.shape {
                Shape::Filesystem => (directory.join(file(slot)), 0),
                Shape::Thick | Shape::Thin => (directory.join(IMAGE), u64::from(slot) * SLOT.get()),
            };
            let mut found = vec![0; SLOT.get() as usize];
            let lost = |found| Violation::Lost { volume, slot, found };
            match File::open(&path).and_then(|file| file.read_exact_at(&mut found, offset)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(lost("absent")),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(lost("cut short")),
                read => read.map_err(look(&path))?,
            }
            if !marker::is_of(&found, slot, self.marks(slot)) {
                return Err(lost("something else"));
            }
        }
        Ok(())
    }

    /// Checks that a directory has only files of the volume's slots, and reads them all.
    fn has_only_files(&self, directory: &Path, is_filled: bool) -> Result<(), Violation> {
        for entry in fs::read_dir(directory).map_err(look(directory))? {
            let path = entry.map_err(look(directory))?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let slot: Option<u16> = name.and_then(|name| name.strip_prefix(FILE)?.parse().ok());
            match (slot.map_or([None; 2], |slot| self.marks(slot)), name) {
                // `reflink::TreeClone` has a directory in its target until it ends.
                ([None, None], Some(name)) if !is_filled && name.starts_with(SCRATCH) => {}
                ([None, None], _) => return Err(Violation::Unwritten { volume: self.volume, path }),
                (marks, _) => self.has_only_lines(path, |_| marks)?,
            }
        }
        Ok(())
    }

    /// Checks that a file has only lines of the marks of its slots. A slot without marks was never written.
    fn has_only_lines(&self, path: PathBuf, marks: impl Fn(u16) -> Marks) -> Result<(), Violation> {
        let volume = self.volume;
        let content = fs::read(&path).map_err(look(&path))?;
        let Some((at, line)) = marker::foreign(&content, &marks) else { return Ok(()) };
        let at = at as u64;
        let [synced, _] = marks(marker::slot_at(at));
        match self.later(marker::mark(&line), synced) {
            Some(of) => Err(Violation::Later { volume, of, path, at, line }),
            None => Err(Violation::Foreign { volume, path, at, line }),
        }
    }

    /// The source of a copy, if it has written `found` after the instant, at which the slot had the mark `synced`.
    fn later(&self, found: Option<Mark>, synced: Option<Mark>) -> Option<Number> {
        let (found, source) = (found?, self.body.origin?.source);
        let is_later = synced.is_none_or(|synced| synced.volume != source || synced.turn < found.turn);
        (found.volume == source && is_later).then_some(source)
    }
}

const FILE: &str = "slot-";

/// Name prefix of the directory that `reflink::TreeClone` has in its target.
const SCRATCH: &str = ".reflink-";

/// Name of the file that a pod writes for a slot.
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
    const FIRST: Mark = Mark { volume: SOURCE, turn: 1 };
    const SECOND: Mark = Mark { volume: SOURCE, turn: 2 };
    const OWN: Mark = Mark { volume: COPY, turn: 1 };

    fn write(files: &TempDir, name: &str, content: &[u8]) {
        fs::write(files.path().join(name), content).unwrap();
    }

    /// A copy that was begun when its source had slot 3.
    fn copy(shape: Shape) -> Body {
        let origin = Origin { source: SOURCE, headroom: Bytes::MIB };
        Body { written: [(3, FIRST)].into(), origin: Some(origin), ..Body::new(shape, Bytes::MIB) }
    }

    #[test]
    fn a_copy_that_is_not_complete_has_any_part_of_its_source() {
        let (files, body) = (tempfile::tempdir().unwrap(), copy(Shape::Filesystem));
        let content = Content { volume: COPY, body: &body, writing: None };
        let check = |is_filled| content.has_only_files(files.path(), is_filled);
        check(false).unwrap();
        write(&files, &file(3), b"");
        check(false).unwrap();
        write(&files, &file(3), &marker::content(FIRST, 3));
        fs::create_dir(files.path().join(".reflink-0123456789abcdef")).unwrap();
        check(false).unwrap();
        let violation = check(true).unwrap_err();
        assert!(matches!(violation, Violation::Unwritten { .. }), "{violation}");
    }

    #[test]
    fn files_that_were_written_after_the_instant_are_noticed() {
        let (files, body) = (tempfile::tempdir().unwrap(), copy(Shape::Filesystem));
        write(&files, &file(3), &marker::content(FIRST, 3));
        write(&files, &file(4), b"");
        let check = |writing| Content { volume: COPY, body: &body, writing }.has_only_files(files.path(), true);
        let violation = check(None).unwrap_err();
        assert!(matches!(violation, Violation::Unwritten { .. }), "{violation}");
        // A pod of the copy creates the file, and then writes its own lines.
        check(Some((4, OWN))).unwrap();
        write(&files, &file(4), &marker::content(OWN, 4));
        check(Some((4, OWN))).unwrap();
        write(&files, &file(4), &marker::content(SECOND, 4));
        let violation = check(Some((4, OWN))).unwrap_err();
        assert!(matches!(violation, Violation::Later { of: SOURCE, .. }), "{violation}");
        write(&files, &file(4), &marker::content(Mark { volume: Number(3), turn: 1 }, 4));
        let violation = check(Some((4, OWN))).unwrap_err();
        assert!(matches!(violation, Violation::Foreign { .. }), "{violation}");
    }

    #[test]
    fn what_the_source_wrote_again_is_noticed_in_a_copy() {
        let files = tempfile::tempdir().unwrap();
        let slots = [marker::content(FIRST, 2), marker::content(SECOND, 3)];
        write(&files, &file(3), &slots[1]);
        write(&files, IMAGE, &[vec![0; 3 * SLOT.get() as usize], slots[1].clone()].concat());
        let body = copy(Shape::Thick);
        let content = Content { volume: COPY, body: &body, writing: None };
        let image = || content.has_only_lines(files.path().join(IMAGE), |slot| content.marks(slot));
        let end = 3 * SLOT.get();
        for violation in [content.has_only_lines(files.path().join(file(3)), |_| content.marks(3)), image()] {
            let violation = violation.unwrap_err();
            let is_found = matches!(violation, Violation::Later { of: SOURCE, at, .. } if at == 0 || at == end);
            assert!(is_found, "{violation}");
        }
        // Slot 2 was not written at the instant.
        write(&files, IMAGE, &[vec![0; 2 * SLOT.get() as usize], slots[0].clone()].concat());
        let violation = image().unwrap_err();
        assert!(matches!(violation, Violation::Later { of: SOURCE, .. }), "{violation}");
        write(&files, IMAGE, &[vec![0; 3 * SLOT.get() as usize], marker::content(FIRST, 3)].concat());
        image().unwrap();
    }

    #[test]
    fn a_slot_that_is_written_again_has_either_content() {
        let (files, body) = (tempfile::tempdir().unwrap(), copy(Shape::Filesystem));
        let check = |writing| Content { volume: COPY, body: &body, writing }.has_all_synced(files.path());
        let mut torn = marker::content(FIRST, 3);
        torn[512..1024].copy_from_slice(&marker::content(OWN, 3)[512..1024]);
        write(&files, &file(3), &torn);
        check(Some((3, OWN))).unwrap();
        for writing in [None, Some((4, OWN)), Some((3, SECOND))] {
            assert!(matches!(check(writing), Err(Violation::Lost { slot: 3, .. })), "{writing:?}");
        }
        torn[512..1024].fill(0);
        write(&files, &file(3), &torn);
        assert!(matches!(check(Some((3, OWN))), Err(Violation::Lost { slot: 3, .. })));
    }

    #[test]
    fn a_file_of_the_source_that_is_missing_or_cut_is_noticed() {
        let (files, body) = (tempfile::tempdir().unwrap(), copy(Shape::Filesystem));
        let content = Content { volume: COPY, body: &body, writing: None };
        let lost = || matches!(content.has_all_synced(files.path()), Err(Violation::Lost { slot: 3, .. }));
        assert!(lost());
        let whole = marker::content(FIRST, 3);
        write(&files, &file(3), &whole[..4096]);
        assert!(lost());
        write(&files, &file(3), &whole);
        assert!(!lost());
    }
}
