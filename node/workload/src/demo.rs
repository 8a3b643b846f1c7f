//! The check of the launcher's demonstration.

use crate::finding::Demo;
use crate::{Check, CheckError, content, device, file, fill, space};
use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom};
use std::path::Path;

/// The note's part of a device: what follows is filled.
const NOTE: u64 = 4096;

/// Finds the note of an earlier run, leaves a new one, and writes what is left of the volume, to the first error.
pub(crate) fn run(volume: &Path, text: &str) -> Result<Demo, CheckError> {
    if volume.is_dir() { directory(volume, text) } else { whole(volume, text) }
}

fn directory(directory: &Path, text: &str) -> Result<Demo, CheckError> {
    let note = directory.join("note");
    let there = note.try_exists().map_err(CheckError::of("look for", &note))?;
    let found = if there { Some(file::read(&note)?.text) } else { None };
    let kept = file::write(&note, text)?.text;
    let fill = fill::bytes(directory, false)?;
    let after = space::of(directory)?;
    Ok(Demo {
        found,
        kept,
        size: fill.before.size,
        written: fill.written,
        errno: fill.errno,
        used: after.size.saturating_sub(after.free),
    })
}

/// A device holds the note at its beginning, and no space of it can be given back.
fn whole(path: &Path, text: &str) -> Result<Demo, CheckError> {
    let size = device::look(path)?.size;
    let found = Some(content::beginning(path, Check::READ_LIMIT)?).filter(|text| !text.is_empty());
    content::begin(path, text)?;
    let (filled, errno) = behind_the_note(path)?;
    let kept = content::beginning(path, Check::READ_LIMIT)?;
    let written = NOTE + filled;
    Ok(Demo { found, kept, size, written, errno, used: written })
}

/// Fills what follows the note: the bytes written, and the name of the error that stopped it.
fn behind_the_note(path: &Path) -> Result<(u64, String), CheckError> {
    let mut device = OpenOptions::new().write(true).open(path).map_err(CheckError::of("open", path))?;
    device.seek(SeekFrom::Start(NOTE)).map_err(CheckError::of("seek in", path))?;
    let (filled, refusal) = fill::until_refused(&mut device, &fill::PATTERN);
    Ok((filled, fill::name(&refusal)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_neither_directory_nor_block_device_is_refused() {
        let error = run(Path::new("/dev/full"), "note").unwrap_err().to_string();
        assert_eq!(error, "cannot use as a block device /dev/full");
    }
}
