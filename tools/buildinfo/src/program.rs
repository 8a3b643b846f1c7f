//! What a program tells of who built it.

use std::collections::BTreeSet;

use object::{Object as _, ObjectSection as _};
use serde::Serialize;

use crate::go::{self, InfoError, Module};

/// Where GCC, rustc and linkers leave their names, each ended by a zero.
const COMMENT: &str = ".comment";
const GO: &str = ".go.buildinfo";

/// What built a program.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Built {
    /// The compilers and linkers that left their names, also those of the libraries inside.
    pub(crate) with: BTreeSet<String>,
}

/// Why a program does not tell.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadProgramError {
    #[error("it is no ELF file")]
    Elf(#[from] object::Error),
    #[error("its section {GO} cannot be read")]
    Go(#[from] InfoError),
    #[error("it has neither {COMMENT} nor {GO}: who built it has taken its name away")]
    Silent,
}

/// Reads an ELF file.
pub(crate) fn read(program: &[u8]) -> Result<(Built, Vec<Module>), ReadProgramError> {
    let elf = object::File::parse(program)?;
    let mut with = BTreeSet::new();
    let mut modules = Vec::new();
    if let Some(section) = elf.section_by_name(COMMENT) {
        let names = section.data()?.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        with.extend(names.map(|name| String::from_utf8_lossy(name).into_owned()));
    }
    if let Some(section) = elf.section_by_name(GO) {
        let info = go::parse(section.data()?)?;
        with.insert(info.toolchain);
        modules = info.modules;
    }
    if with.is_empty() { Err(ReadProgramError::Silent) } else { Ok((Built { with }, modules)) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn this_program_was_built_by_rustc() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let (built, modules) = read(&own).unwrap();
        assert!(built.with.iter().any(|name| name.starts_with("rustc version ")), "{built:?}");
        assert_eq!(modules, []);
    }

    #[test]
    fn what_is_no_program_is_refused() {
        assert!(matches!(read(b"#!/bin/sh\n"), Err(ReadProgramError::Elf(_))));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn no_damage_makes_it_panic(at in 0_usize..4096, byte in any::<u8>(), length in any::<prop::sample::Index>()) {
            let mut own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
            own[at] = byte;
            let _ = read(&own);
            let _ = read(&own[..length.index(own.len())]);
        }
    }
}
