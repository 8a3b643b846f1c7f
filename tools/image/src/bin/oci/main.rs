//! Creates a tar archive with one image for `ctr images import`, an OCI image layout or an archive of Docker:
//! `oci DESCRIPTION OUTPUT`.
//!
//! The output is reproducible: no times, no owners, sorted entries.
#![forbid(unsafe_code)]

mod layout;

use crate::layout::{Contents, Description};
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
    let [description, output] = &*arguments else {
        return Err("usage: oci DESCRIPTION OUTPUT".into());
    };
    let description: Description = files::description(description)?;
    let contents = Contents {
        layers: description.layers.iter().map(|layer| files::bytes(layer)).collect::<Result<_, _>>()?,
        program: description.program.as_ref().map_or(Ok(Vec::new()), |program| files::bytes(&program.file))?,
    };
    let layout = layout::layout(&description, contents)?;
    Ok(layout.write(File::create(output).map_err(FileError::of("create", output))?)?)
}
