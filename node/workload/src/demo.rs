//! What the launcher shows.

use crate::CheckError;
use crate::finding::Demo;
use crate::{file, fill, space};
use std::path::Path;

/// Finds the note of an earlier run, leaves a new one, and fills the rest in between.
pub(crate) fn run(directory: &Path, text: &str) -> Result<Demo, CheckError> {
    let note = directory.join("note");
    let there = note.try_exists().map_err(CheckError::of("look for", &note))?;
    let found = if there { Some(file::read(&note)?.text) } else { None };
    let kept = file::write(&note, text)?.text;
    let fill = fill::bytes(directory, false)?;
    Ok(Demo { found, kept, fill, after: space::of(directory)? })
}
