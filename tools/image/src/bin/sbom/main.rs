//! Writes the bill of materials and the licences of an image to a directory:
//!
//! - `sbom/granary.spdx.json`: SPDX document with each program, its linked crates, Go modules and libraries, and the
//!   Debian packages whose files are in the image.
//! - `licenses/SHA256.txt`: licence texts, each once.
//! - `licenses/index.json`: licence and texts by package URL.
//!
//! Modules and libraries are read from the programs; the build lists the crates. The output is reproducible. A package
//! without a known licence is an error.
//!
//! `sbom DESCRIPTION OUT`. The description is JSON; OUT is an existing directory.
#![forbid(unsafe_code)]

mod bill;
mod debian;
mod description;
mod licence;
mod manifest;
mod materials;
mod package;
mod spdx;
mod texts;
mod vendor;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use image::files::{self, FileError};
use serde::Serialize;

use crate::description::Description;
use crate::materials::Materials;

fn main() -> ExitCode {
    causes::exit_code(run())
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<PathBuf> = env::args_os().skip(1).map(PathBuf::from).collect();
    let [description, out] = &*arguments else { return Err("usage: sbom DESCRIPTION OUT".into()) };
    let described: Description = files::description(description)?;
    let mut materials = Materials::read(&described)?;
    let bill = materials.bill(&described)?;

    write(&out.join("licenses/index.json"), &json(&bill.index())?)?;
    write(&out.join("sbom/granary.spdx.json"), &json(&bill.document())?)?;
    for (name, text) in materials.texts() {
        write(&out.join(format!("licenses/{name}.txt")), text)?;
    }
    Ok(())
}

fn json(value: &impl Serialize) -> Result<Vec<u8>, serde_json::Error> {
    let mut text = serde_json::to_vec_pretty(value)?;
    text.push(b'\n');
    Ok(text)
}

fn write(path: &Path, content: &[u8]) -> Result<(), FileError> {
    path.parent().map_or(Ok(()), fs::create_dir_all).map_err(FileError::of("create the directory of", path))?;
    fs::write(path, content).map_err(FileError::of("write", path))
}
