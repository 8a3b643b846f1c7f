//! Writes what an image was built with: the versions of the tools that came from the machine of the builder; for each
//! program, from the program itself, its compilers and the packages that were linked in; and these packages.
//!
//! A program with a library that is not pinned is an error.
//!
//! `buildinfo DESCRIPTION OUT`; the description and the output are JSON.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs, io};

use buildinfo::lock::{self, Package, ParseLockError};
use buildinfo::program::{Program, ReadProgramError, UnpinnedError};
use buildinfo::sysroot::{ParseSysrootError, Sysroot};
use serde::{Deserialize, Serialize};

/// What to look at.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    /// Path in the image -> file.
    programs: BTreeMap<String, PathBuf>,
    /// The sysroot's list of its libraries.
    libraries: PathBuf,
    /// The lock of the packages that they are of.
    lock: PathBuf,
    /// Name of a tool of the build -> file with what it says of its version, of which the first line counts.
    tools: BTreeMap<String, PathBuf>,
}

#[derive(Debug, Serialize)]
struct Report {
    tools: BTreeMap<String, String>,
    programs: BTreeMap<String, Built>,
    /// What is linked into programs.
    libraries: BTreeSet<Package>,
}

#[derive(Debug, Serialize)]
struct Built {
    with: BTreeSet<String>,
    libraries: BTreeSet<String>,
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
    #[error("{program} has a library in it that is not pinned")]
    Unpinned { program: String, source: UnpinnedError },
    #[error("cannot understand the lock {}", path.display())]
    Lock { path: PathBuf, source: ParseLockError },
    #[error("cannot understand the list of libraries {}", path.display())]
    Libraries { path: PathBuf, source: ParseSysrootError },
    #[error("cannot make JSON")]
    Json(#[from] serde_json::Error),
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", causes::lines(&error));
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
    let mut report = Report { tools: BTreeMap::new(), programs: BTreeMap::new(), libraries: BTreeSet::new() };
    for (name, path) in described.tools {
        let text = String::from_utf8_lossy(&read(&path)?).lines().next().unwrap_or_default().trim().to_owned();
        report.tools.insert(name, text);
    }
    let text = read(&described.libraries)?;
    let sysroot = Sysroot::parse(&String::from_utf8_lossy(&text))
        .map_err(|source| MainError::Libraries { path: described.libraries, source })?;
    let mut linked = BTreeSet::new();
    for (program, path) in described.programs {
        let found =
            Program::read(&read(&path)?).map_err(|source| MainError::Program { program: program.clone(), source })?;
        let packages =
            found.packages(&sysroot).map_err(|source| MainError::Unpinned { program: program.clone(), source })?;
        linked.extend(packages.iter().copied());
        let libraries = packages.into_iter().map(str::to_owned).collect();
        report.programs.insert(program, Built { with: found.with, libraries });
    }
    let text = read(&described.lock)?;
    let packages = lock::parse(&String::from_utf8_lossy(&text))
        .map_err(|source| MainError::Lock { path: described.lock, source })?;
    report.libraries.extend(packages.into_iter().filter(|package| linked.contains(&*package.package)));
    Ok(report)
}

fn read(path: &Path) -> Result<Vec<u8>, MainError> {
    fs::read(path).map_err(|source| MainError::Read { path: path.to_owned(), source })
}
