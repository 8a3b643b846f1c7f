//! Writes what the programs of an image were built with: from the programs themselves, in which compilers leave their
//! names and Go the modules that went in, and from the locks of Debian's packages.
//!
//! `buildinfo DESCRIPTION OUT`; the description and the output are JSON.
#![forbid(unsafe_code)]

mod go;
mod lock;
mod program;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs, io};

use serde::{Deserialize, Serialize};

use crate::go::Module;
use crate::lock::{Package, ParseLockError};
use crate::program::{Built, ReadProgramError};

/// What to look at.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    /// Path in the image -> file.
    programs: BTreeMap<String, PathBuf>,
    locks: Vec<PathBuf>,
    /// Name of a tool of the build -> file with what it says of its version, of which the first line counts.
    tools: BTreeMap<String, PathBuf>,
}

#[derive(Debug, Serialize)]
struct Report {
    tools: BTreeMap<String, String>,
    programs: BTreeMap<String, Built>,
    go_modules: BTreeSet<Module>,
    debian_packages: BTreeSet<Package>,
}

#[derive(Debug, thiserror::Error)]
enum MainError {
    #[error("usage: buildinfo DESCRIPTION OUT")]
    Usage,
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot understand {}", path.display())]
    Description { path: PathBuf, source: serde_json::Error },
    #[error("cannot tell what {program} was built with")]
    Program { program: String, source: ReadProgramError },
    #[error("cannot understand the lock {}", path.display())]
    Lock { path: PathBuf, source: ParseLockError },
    #[error("cannot make JSON")]
    Json(#[from] serde_json::Error),
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            let mut cause = error.source();
            while let Some(error) = cause {
                eprintln!("caused by: {error}");
                cause = error.source();
            }
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), MainError> {
    let arguments: Vec<PathBuf> = env::args_os().skip(1).map(PathBuf::from).collect();
    let [description, out] = &*arguments else { return Err(MainError::Usage) };
    let text = read(description)?;
    let described =
        serde_json::from_slice(&text).map_err(|source| MainError::Description { path: description.clone(), source })?;
    let mut report = serde_json::to_string_pretty(&report(described)?)?;
    report.push('\n');
    fs::write(out, report).map_err(|source| MainError::Write { path: out.clone(), source })
}

fn report(described: Description) -> Result<Report, MainError> {
    let mut report = Report {
        tools: BTreeMap::new(),
        programs: BTreeMap::new(),
        go_modules: BTreeSet::new(),
        debian_packages: BTreeSet::new(),
    };
    for (name, path) in described.tools {
        let text = String::from_utf8_lossy(&read(&path)?).lines().next().unwrap_or_default().trim().to_owned();
        report.tools.insert(name, text);
    }
    for (program, path) in described.programs {
        let (built, modules) =
            program::read(&read(&path)?).map_err(|source| MainError::Program { program: program.clone(), source })?;
        report.programs.insert(program, built);
        report.go_modules.extend(modules);
    }
    for path in described.locks {
        let text = read(&path)?;
        let packages = lock::parse(&String::from_utf8_lossy(&text));
        report.debian_packages.extend(packages.map_err(|source| MainError::Lock { path, source })?);
    }
    Ok(report)
}

fn read(path: &Path) -> Result<Vec<u8>, MainError> {
    fs::read(path).map_err(|source| MainError::Read { path: path.to_owned(), source })
}
