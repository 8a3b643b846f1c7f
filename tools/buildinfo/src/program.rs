//! What a program tells of who built it, and of what is in it.

use std::collections::BTreeSet;

use object::{Object as _, ObjectSection as _};

use crate::go::{self, Info, InfoError};
use crate::sysroot::{self, Library, ParseLibraryError, Sysroot};

/// Where GCC, rustc and linkers leave their names, each ended by a zero.
const COMMENT: &str = ".comment";
const GO: &str = ".go.buildinfo";
/// Where the C toolchain of `@sysroot` leaves what the linker read.
const LIBRARIES: &str = ".granary.libraries";

/// What a program says of itself.
#[derive(Debug, PartialEq, Eq)]
pub struct Program {
    /// The compilers and linkers that left their names, also those of the libraries inside.
    pub with: BTreeSet<String>,
    /// What Go wrote, if it is a program of Go.
    pub go: Option<Info>,
    /// The libraries that were linked in, if the linker was told to say so.
    pub libraries: Option<Vec<Library>>,
}

/// Why a program does not tell.
#[derive(Debug, thiserror::Error)]
pub enum ReadProgramError {
    /// Something else.
    #[error("it is no ELF file")]
    Elf(#[from] object::Error),
    /// Its section of Go is damaged.
    #[error("its section {GO} cannot be read")]
    Go(#[from] InfoError),
    /// Its section of libraries is damaged.
    #[error("its section {LIBRARIES} cannot be read")]
    Libraries(#[from] ParseLibraryError),
    /// No compiler's name.
    #[error("it has neither {COMMENT} nor {GO}: who built it has taken its name away")]
    Silent,
}

/// A program has in it what is not pinned.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnpinnedError {
    /// It says nothing of its libraries.
    #[error(
        "it was not linked by the toolchain of @sysroot, so its C library is the machine's (no section {LIBRARIES})"
    )]
    Unknown,
    /// It has a library that is none of the sysroot.
    #[error("{} with SHA-256 {} was linked in, which is of no pinned package", .0.path, .0.sha256)]
    Library(Library),
}

impl Program {
    /// Reads an ELF file.
    ///
    /// # Errors
    /// It is none, or does not tell who compiled it.
    pub fn read(program: &[u8]) -> Result<Self, ReadProgramError> {
        let elf = object::File::parse(program)?;
        let mut with = BTreeSet::new();
        if let Some(section) = elf.section_by_name(COMMENT) {
            let names = section.data()?.split(|byte| *byte == 0).filter(|name| !name.is_empty());
            with.extend(names.map(|name| String::from_utf8_lossy(name).into_owned()));
        }
        let go = match elf.section_by_name(GO) {
            Some(section) => Some(go::parse(section.data()?)?),
            None => None,
        };
        with.extend(go.iter().map(|info| info.toolchain.clone()));
        let libraries = match elf.section_by_name(LIBRARIES) {
            Some(section) => Some(sysroot::libraries(&String::from_utf8_lossy(section.data()?))?),
            None => None,
        };
        if with.is_empty() { Err(ReadProgramError::Silent) } else { Ok(Self { with, go, libraries }) }
    }

    /// The packages whose libraries are in the program: none in a program of Go that calls no C.
    ///
    /// # Errors
    /// It has another library in it, or does not tell.
    pub fn packages<'a>(&self, sysroot: &'a Sysroot) -> Result<BTreeSet<&'a str>, UnpinnedError> {
        match (&self.libraries, &self.go) {
            (Some(libraries), _) => {
                let packages = libraries
                    .iter()
                    .map(|library| sysroot.package(library).ok_or_else(|| UnpinnedError::Library(library.clone())));
                packages.collect()
            }
            (None, Some(info)) if !info.cgo => Ok(BTreeSet::new()),
            (None, _) => Err(UnpinnedError::Unknown),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIBC: &str = "8e5252c4b87e3d588e2d15e624502277c5d3bfb382fec7a5199ae752080b372c";

    fn program(go: Option<Info>, section: Option<&str>) -> Program {
        Program { with: BTreeSet::new(), go, libraries: section.map(|text| sysroot::libraries(text).unwrap()) }
    }

    fn go(cgo: bool) -> Info {
        Info { toolchain: "go1.26.8".into(), modules: vec![], cgo }
    }

    #[test]
    fn this_program_was_built_by_rustc() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let read = Program::read(&own).unwrap();
        assert!(read.with.iter().any(|name| name.starts_with("rustc version ")), "{read:?}");
        assert_eq!(read.go, None);
    }

    #[test]
    fn what_is_no_program_is_refused() {
        assert!(matches!(Program::read(b"#!/bin/sh\n"), Err(ReadProgramError::Elf(_))));
    }

    #[test]
    fn every_library_is_of_a_pinned_package() {
        let sysroot = Sysroot::parse(&format!("libc6-dev {LIBC}  usr/lib/libc.a\n")).unwrap();
        let packages =
            |program: &Program| program.packages(&sysroot).map(|found| found.into_iter().collect::<Vec<_>>());
        assert_eq!(packages(&program(None, Some(&format!("{LIBC}  usr/lib/libc.a\n")))), Ok(vec!["libc6-dev"]));
        let other = format!("{LIBC}  usr/lib/libc.a\n{LIBC}  usr/lib/libm.a\n");
        assert!(matches!(packages(&program(Some(go(true)), Some(&other))), Err(UnpinnedError::Library(_))));
    }

    #[test]
    fn only_a_program_of_go_without_c_needs_not_tell_its_libraries() {
        let sysroot = Sysroot::default();
        assert_eq!(program(Some(go(false)), None).packages(&sysroot), Ok(BTreeSet::new()));
        assert_eq!(program(Some(go(true)), None).packages(&sysroot), Err(UnpinnedError::Unknown));
        assert_eq!(program(None, None).packages(&sysroot), Err(UnpinnedError::Unknown));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn no_damage_makes_it_panic(at in 0_usize..4096, byte in any::<u8>(), length in any::<prop::sample::Index>()) {
            let mut own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
            own[at] = byte;
            let _ = Program::read(&own);
            let _ = Program::read(&own[..length.index(own.len())]);
        }
    }
}
