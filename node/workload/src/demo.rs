//! Check of the launcher's demonstration.

use crate::finding::Demo;
use crate::{Check, CheckError, content, device, file, fill, space};
use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom};
use std::path::Path;

/// Bytes of a device that are reserved for the note. The demonstration fills the rest.
const NOTE: u64 = 4096;

/// Reads the note of an earlier run, writes a new one, and fills the rest of the volume until the first error.
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

/// Demonstration on a device. The note is at the beginning, and the filled space cannot be freed.
fn whole(path: &Path, text: &str) -> Result<Demo, CheckError> {
    let size = device::look(path)?.size;
    let found = Some(content::beginning(path, Check::READ_LIMIT)?).filter(|text| !text.is_empty());
    content::begin(path, text)?;
    let (filled, errno) = behind_the_note(path)?;
    let kept = content::beginning(path, Check::READ_LIMIT)?;
    let written = NOTE + filled;
    Ok(Demo { found, kept, size, written, errno, used: written })
}

/// Fills the device behind the note. Returns the number of written bytes and the name of the error that ended the
/// writes.
fn behind_the_note(path: &Path) -> Result<(u64, String), CheckError> {
    let mut device = OpenOptions::new().write(true).open(path).map_err(CheckError::of("open", path))?;
    device.seek(SeekFrom::Start(NOTE)).map_err(CheckError::of("seek in", path))?;
    let (filled, refusal) = fill::write_until_error(&mut device, &fill::PATTERN);
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
