//! Creates an OCI image layout with one static program, as a tar archive for `ctr images import`:
//! `oci DESCRIPTION PROGRAM OUTPUT`.
//!
//! The output is reproducible: no times, no owners, sorted entries.
#![forbid(unsafe_code)]

mod archive;
mod image;

use image::Description;
use std::error::Error;
use std::fs::File;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [description, program, output] = arguments.as_slice() else {
        eprintln!("error: invalid arguments; usage: oci DESCRIPTION PROGRAM OUTPUT");
        return ExitCode::from(2);
    };
    match run(description, program, output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", causes::lines(&*error));
            ExitCode::FAILURE
        }
    }
}

fn run(description: &str, program: &str, output: &str) -> Result<(), Box<dyn Error>> {
    let description = std::fs::read(description).map_err(|source| FileError { path: description.into(), source })?;
    let description: Description = serde_json::from_slice(&description)?;
    let program = std::fs::read(program).map_err(|source| FileError { path: program.into(), source })?;
    let output = File::create(output).map_err(|source| FileError { path: output.into(), source })?;
    image::layout(&description, &program)?.write(output)?;
    Ok(())
}

#[derive(Debug, thiserror::Error)]
#[error("cannot open {path}")]
struct FileError {
    path: String,
    #[source]
    source: std::io::Error,
}
