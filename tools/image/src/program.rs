//! Build information of ELF programs.

use std::collections::BTreeSet;

use object::read::elf::{ElfFile64, ProgramHeader as _};
use object::{LittleEndian, Object as _, ObjectSection as _};

use crate::go::{self, Info, InfoError};
use crate::sysroot::{self, Library, ParseLibraryError, Sysroot};

/// Section with the names of compilers and linkers, each NUL-terminated.
const COMMENT: &str = ".comment";
const GO: &str = ".go.buildinfo";
/// Section in which the C toolchain of `@sysroot` records the linker's inputs.
const LIBRARIES: &str = ".granary.libraries";
/// Prefix of rustc's entry in [`COMMENT`].
const RUSTC: &str = "rustc version ";

#[derive(Debug, PartialEq, Eq)]
pub struct Program {
    /// Compilers and linkers of the program and of its libraries.
    pub with: BTreeSet<String>,
    /// Dynamic loader (`PT_INTERP`); `None` for a static program.
    pub loader: Option<String>,
    pub go: Option<Info>,
    /// Linked libraries; `None` if the linker did not record them.
    pub libraries: Option<Vec<Library>>,
}

#[derive(Debug, thiserror::Error)]
pub enum ReadProgramError {
    #[error("not an ELF file")]
    Elf(#[from] object::Error),
    #[error("invalid section {GO}")]
    Go(#[from] InfoError),
    #[error("invalid section {LIBRARIES}")]
    Libraries(#[from] ParseLibraryError),
    #[error("no section {COMMENT} or {GO}: the names of the compilers were stripped")]
    Silent,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnpinnedError {
    #[error(
        "no section {LIBRARIES}: the program was not linked by the toolchain of @sysroot and contains the host's C \
         library"
    )]
    Unknown,
    #[error("library {} with SHA-256 {} does not belong to a pinned package", .0.path, .0.sha256)]
    Library(Library),
}

impl Program {
    /// Reads an ELF file for x86-64.
    pub fn read(program: &[u8]) -> Result<Self, ReadProgramError> {
        let elf = ElfFile64::<LittleEndian>::parse(program)?;
        let mut with = BTreeSet::new();
        if let Some(section) = elf.section_by_name(COMMENT) {
            let names = section.data()?.split(|byte| *byte == 0).filter(|name| !name.is_empty());
            with.extend(names.map(|name| String::from_utf8_lossy(name).into_owned()));
        }
        let mut loader = None;
        for header in elf.elf_program_headers() {
            if let Some(path) = header.interpreter(LittleEndian, program)? {
                loader = Some(String::from_utf8_lossy(path).into_owned());
            }
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
        if with.is_empty() { Err(ReadProgramError::Silent) } else { Ok(Self { with, loader, go, libraries }) }
    }

    /// Rust compilers as `VERSION (COMMIT DATE)`: the compiler of the crates, and that of the standard library if it
    /// differs.
    #[must_use]
    pub fn rustc(&self) -> BTreeSet<&str> {
        self.with.iter().filter_map(|name| name.strip_prefix(RUSTC)).collect()
    }

    /// Packages whose libraries are in the program. A Go program without cgo has none.
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
    use object::elf::{ELFCLASS64, ELFDATA2LSB, ELFMAG, EV_CURRENT};
    use object::elf::{FileHeader64, PT_INTERP, PT_LOAD, ProgramHeader64, SHT_PROGBITS, SHT_STRTAB, SectionHeader64};
    use object::pod::from_bytes_mut;
    use object::{U16, U32, U64};
    use proptest::prelude::*;

    use super::*;

    const LE: LittleEndian = LittleEndian;

    const LIBC: &str = "8e5252c4b87e3d588e2d15e624502277c5d3bfb382fec7a5199ae752080b372c";

    fn program(go: Option<Info>, section: Option<&str>) -> Program {
        let libraries = section.map(|text| sysroot::libraries(text).unwrap());
        Program { with: BTreeSet::new(), loader: None, go, libraries }
    }

    /// A minimal program: headers, loader path and `.comment`.
    fn elf(loader: Option<&str>, comment: &str) -> Vec<u8> {
        const NAMES: &str = "\0.comment\0.shstrtab\0";
        let path = loader.map(|path| format!("{path}\0")).unwrap_or_default();
        let sections = size_of::<FileHeader64<LittleEndian>>() + size_of::<ProgramHeader64<LittleEndian>>();
        let start = sections + 3 * size_of::<SectionHeader64<LittleEndian>>();
        let mut bytes = vec![0; start];
        let (file, rest) = from_bytes_mut::<FileHeader64<LittleEndian>>(&mut bytes).unwrap();
        file.e_ident.magic = ELFMAG;
        file.e_ident.class = ELFCLASS64;
        file.e_ident.data = ELFDATA2LSB;
        file.e_ident.version = EV_CURRENT;
        file.e_phoff = U64::new(LE, size_of_val(file) as u64);
        file.e_phentsize = U16::new(LE, size_of::<ProgramHeader64<LittleEndian>>() as u16);
        file.e_phnum = U16::new(LE, 1);
        file.e_shoff = U64::new(LE, sections as u64);
        file.e_shentsize = U16::new(LE, size_of::<SectionHeader64<LittleEndian>>() as u16);
        file.e_shnum = U16::new(LE, 3);
        file.e_shstrndx = U16::new(LE, 2);
        let (segment, rest) = from_bytes_mut::<ProgramHeader64<LittleEndian>>(rest).unwrap();
        segment.p_type = U32::new(LE, if loader.is_some() { PT_INTERP } else { PT_LOAD });
        segment.p_offset = U64::new(LE, start as u64);
        segment.p_filesz = U64::new(LE, path.len() as u64);
        let (_, rest) = from_bytes_mut::<SectionHeader64<LittleEndian>>(rest).unwrap();
        let section = |rest, name, kind, at: usize, length: usize| {
            let (section, rest) = from_bytes_mut::<SectionHeader64<LittleEndian>>(rest).unwrap();
            section.sh_name = U32::new(LE, name);
            section.sh_type = U32::new(LE, kind);
            section.sh_offset = U64::new(LE, at as u64);
            section.sh_size = U64::new(LE, length as u64);
            rest
        };
        let comment_at = start + path.len();
        let rest = section(rest, 1, SHT_PROGBITS, comment_at, comment.len());
        section(rest, 10, SHT_STRTAB, comment_at + comment.len(), NAMES.len());
        bytes.extend([path.as_bytes(), comment.as_bytes(), NAMES.as_bytes()].concat());
        bytes
    }

    fn go(cgo: bool) -> Info {
        Info { toolchain: "go1.26.8".into(), modules: vec![], cgo }
    }

    #[test]
    fn the_test_program_was_built_by_rustc() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let read = Program::read(&own).unwrap();
        assert!(!read.rustc().is_empty(), "{read:?}");
        assert_eq!(read.go, None);
    }

    #[test]
    fn the_loader_of_a_dynamic_program_is_found() {
        let loader = |bytes: &[u8]| Program::read(bytes).unwrap().loader;
        assert_eq!(loader(&elf(None, "rustc version 1.2.3 (abc 2026-01-01)\0")), None);
        let dynamic = elf(Some("/lib64/ld-linux-x86-64.so.2"), "rustc version 1.2.3 (abc 2026-01-01)\0");
        assert_eq!(loader(&dynamic).as_deref(), Some("/lib64/ld-linux-x86-64.so.2"));
    }

    #[test]
    fn a_second_rust_compiler_is_found() {
        let program = |comment| Program::read(&elf(None, comment)).unwrap();
        let first = "GCC: (Debian) 12.2.0\0rustc version 1.2.3 (abc 2026-01-01)\0Linker: LLD 22\0";
        assert_eq!(program(first).rustc(), ["1.2.3 (abc 2026-01-01)"].into());
        let both = format!("{first}rustc version 1.2.3 (def 2026-02-02)\0");
        assert_eq!(program(&both).rustc(), ["1.2.3 (abc 2026-01-01)", "1.2.3 (def 2026-02-02)"].into());
        assert_eq!(program("GCC: (Debian) 12.2.0\0").rustc(), [""; 0].into());
    }

    #[test]
    fn a_file_that_is_not_elf_is_rejected() {
        assert!(matches!(Program::read(b"#!/bin/sh\n"), Err(ReadProgramError::Elf(_))));
    }

    #[test]
    fn a_library_without_a_pinned_package_is_rejected() {
        let sysroot = Sysroot::parse(&format!("libc6-dev {LIBC}  usr/lib/libc.a\n")).unwrap();
        let packages =
            |program: &Program| program.packages(&sysroot).map(|found| found.into_iter().collect::<Vec<_>>());
        assert_eq!(packages(&program(None, Some(&format!("{LIBC}  usr/lib/libc.a\n")))), Ok(vec!["libc6-dev"]));
        let other = format!("{LIBC}  usr/lib/libc.a\n{LIBC}  usr/lib/libm.a\n");
        assert!(matches!(packages(&program(Some(go(true)), Some(&other))), Err(UnpinnedError::Library(_))));
    }

    #[test]
    fn only_go_programs_without_cgo_may_lack_the_list() {
        let sysroot = Sysroot::default();
        assert_eq!(program(Some(go(false)), None).packages(&sysroot), Ok(BTreeSet::new()));
        assert_eq!(program(Some(go(true)), None).packages(&sysroot), Err(UnpinnedError::Unknown));
        assert_eq!(program(None, None).packages(&sysroot), Err(UnpinnedError::Unknown));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn reading_a_damaged_program_never_panics(at in 0_usize..4096, byte in any::<u8>(), length in any::<prop::sample::Index>()) {
            let mut own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
            own[at] = byte;
            let _ = Program::read(&own);
            let _ = Program::read(&own[..length.index(own.len())]);
        }

        #[test]
        fn reading_a_damaged_small_program_never_panics(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut small = elf(Some("/lib64/ld-linux-x86-64.so.2"), "GCC: (Debian) 12.2.0\0");
            let at = at.index(small.len());
            small[at] = byte;
            let _ = Program::read(&small);
        }
    }
}
