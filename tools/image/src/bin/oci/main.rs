//! Creates an OCI image layout with one static program, as a tar archive for `ctr images import`:
//! `oci DESCRIPTION PROGRAM OUTPUT`.
//!
//! The output is reproducible: no times, no owners, sorted entries.
#![forbid(unsafe_code)]

mod archive;
mod layout;

use std::env;
use std::error::Error;
use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;

use image::files::{self, FileError};

fn main() -> ExitCode {
    causes::exit_code(run())
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<PathBuf> = env::args_os().skip(1).map(PathBuf::from).collect();
    let [description, program, output] = &*arguments else {
        return Err("usage: oci DESCRIPTION PROGRAM OUTPUT".into());
    };
    let layout = layout::layout(&files::description(description)?, &files::bytes(program)?)?;
    Ok(layout.write(File::create(output).map_err(FileError::of("create", output))?)?)
}
