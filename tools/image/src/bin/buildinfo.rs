//! Writes a report of how an image was built: versions of the host's tools, and compilers and linked packages of each
//! program, read from the program itself. Fails if a program contains a library that is not pinned.
//!
//! `buildinfo DESCRIPTION OUT`; the description and the output are JSON.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::{env, fs};

use image::files::{self, Examined, FileError};
use image::lock::Package;
use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    programs: BTreeMap<String, PathBuf>,
    libraries: PathBuf,
    /// Lock file of the packages of these libraries.
    lock: PathBuf,
    /// Lock file of the kernel, with the one that was used of its alternatives.
    kernel: PathBuf,
    /// Files with the version output of host tools by name; only the first line is used.
    tools: BTreeMap<String, PathBuf>,
}

#[derive(Debug, Serialize)]
struct Report {
    kernel: Vec<Package>,
    tools: BTreeMap<String, String>,
    programs: BTreeMap<String, Built>,
    libraries: BTreeSet<Package>,
}

#[derive(Debug, Serialize)]
struct Built {
    with: BTreeSet<String>,
    libraries: BTreeSet<String>,
}

fn main() -> ExitCode {
    causes::exit_code(run())
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<PathBuf> = env::args_os().skip(1).map(PathBuf::from).collect();
    let [description, out] = &*arguments else { return Err("usage: buildinfo DESCRIPTION OUT".into()) };
    let mut report = serde_json::to_string_pretty(&report(files::description(description)?)?)?;
    report.push('\n');
    Ok(fs::write(out, report).map_err(FileError::of("write", out))?)
}

fn report(described: Description) -> Result<Report, FileError> {
    let kernel = files::lock(&described.kernel)?;
    let mut report = Report { kernel, tools: BTreeMap::new(), programs: BTreeMap::new(), libraries: BTreeSet::new() };
    for (name, path) in described.tools {
        let text = files::text(&path)?.lines().next().unwrap_or_default().trim().to_owned();
        report.tools.insert(name, text);
    }
    let sysroot = files::sysroot(&described.libraries)?;
    let mut linked = BTreeSet::new();
    for (name, path) in described.programs {
        let Examined { program, libraries, .. } = files::program(&name, &path, &sysroot)?;
        linked.extend(libraries.iter().cloned());
        report.programs.insert(name, Built { with: program.with, libraries });
    }
    let packages = files::lock(&described.lock)?;
    report.libraries.extend(packages.into_iter().filter(|package| linked.contains(&package.package)));
    Ok(report)
}
