//! The kernel's types, in the BPF Type Format (Documentation/bpf/btf.rst).
//!
//! A section consists of a header, the types, numbered from 1, and the strings. The section of a module continues the
//! numbers of types and the offsets of strings of vmlinux.

use std::fs;
use std::io;
use std::ops::Range;

/// Limit of a section. The names of one kernel have some hundred kilobytes, its types some megabytes.
const MAX_BYTES: usize = 64 << 20;

const VMLINUX: &str = "/sys/kernel/btf/vmlinux";
const XFS: &str = "/sys/kernel/btf/xfs";

/// `BTF_MAGIC`.
const MAGIC: u16 = 0xeb9f;

/// Limit of the typedefs and qualifiers around one type, above that of any kernel. Stops at a cycle of them.
const MAX_CHAIN: usize = 32;

/// Kinds of types, include/uapi/linux/btf.h.
mod kind {
    pub(super) const INT: u8 = 1;
    pub(super) const PTR: u8 = 2;
    pub(super) const ARRAY: u8 = 3;
    pub(super) const STRUCT: u8 = 4;
    pub(super) const UNION: u8 = 5;
    pub(super) const ENUM: u8 = 6;
    pub(super) const FWD: u8 = 7;
    pub(super) const TYPEDEF: u8 = 8;
    pub(super) const VOLATILE: u8 = 9;
    pub(super) const CONST: u8 = 10;
    pub(super) const RESTRICT: u8 = 11;
    pub(super) const FUNC: u8 = 12;
    pub(super) const FUNC_PROTO: u8 = 13;
    pub(super) const VAR: u8 = 14;
    pub(super) const DATASEC: u8 = 15;
    pub(super) const FLOAT: u8 = 16;
    pub(super) const DECL_TAG: u8 = 17;
    pub(super) const TYPE_TAG: u8 = 18;
    pub(super) const ENUM64: u8 = 19;
}

/// The types of the running kernel, as far as the programs need them.
#[derive(Debug)]
pub struct Btf {
    /// The section of vmlinux, followed by sections of modules. Never empty.
    sections: Vec<Section>,
}

/// Number of a type; 0 is void.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TypeId(u32);

impl TypeId {
    pub(crate) const fn get(self) -> u32 {
        self.0
    }
}

/// A member of a structure that fills whole bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// Offset in bytes from the start of the structure.
    pub(crate) offset: u32,
    pub(crate) kind: TypeId,
}

impl Btf {
    /// Reads the types of the running kernel: `/sys/kernel/btf/vmlinux`, and `/sys/kernel/btf/xfs` if the programs need
    /// types of that module.
    ///
    /// # Errors
    /// [`BtfError`] if the kernel has no BTF, or the types cannot be read.
    pub fn of_kernel() -> Result<Self, BtfError> {
        let read = |path| fs::read(path).map_err(|source| BtfError::Read { path, source });
        let mut btf = Self::parse(read(VMLINUX)?)?;
        // Only the program of this hook reads inodes of XFS.
        if btf.function("bpf_lsm_inode_file_setattr").is_some() {
            match read(XFS) {
                Ok(module) => btf.add_module(module)?,
                // XFS is built into the kernel, and its types are in vmlinux.
                Err(BtfError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(btf)
    }

    /// Reads the types of a kernel (`/sys/kernel/btf/vmlinux`). The work is proportional to the length of the data.
    pub fn parse(data: Vec<u8>) -> Result<Self, BtfError> {
        Ok(Self { sections: vec![Section::parse(data, 1, 0)?] })
    }

    /// Adds the types of a module (`/sys/kernel/btf/NAME`), which refer to those of the kernel.
    pub fn add_module(&mut self, data: Vec<u8>) -> Result<(), BtfError> {
        let types = self.sections.iter().map(|section| section.types.len()).sum::<usize>();
        let strings = self.sections.iter().map(|section| section.strings.len()).sum::<usize>();
        // Both counts are below the lengths of the sections, which are limited.
        let first = |count: usize| u32::try_from(count).map_err(|_| BtfError::Malformed("it is too large"));
        let section = Section::parse(data, first(types + 1)?, first(strings)?)?;
        self.sections.push(section);
        Ok(())
    }

    /// The function of this name.
    pub(crate) fn function(&self, name: &str) -> Option<TypeId> {
        self.find(kind::FUNC, name)
    }

    /// The structure of this name.
    pub(crate) fn structure(&self, name: &str) -> Option<TypeId> {
        self.find(kind::STRUCT, name)
    }

    /// Type of a function's argument, numbered from 0.
    pub(crate) fn argument(&self, function: TypeId, index: usize) -> Option<TypeId> {
        let function = self.entry(function)?;
        let prototype = self.entry(TypeId(function.value))?;
        if (function.kind, prototype.kind) != (kind::FUNC, kind::FUNC_PROTO) {
            return None;
        }
        let argument = prototype.rest.chunks_exact(8).nth(index)?;
        word(argument, 4).map(TypeId)
    }

    /// The structure that a pointer points to, if it has this name.
    pub(crate) fn target(&self, pointer: TypeId, name: &str) -> Option<TypeId> {
        let (_, pointer) = self.resolved(pointer)?;
        let (id, target) = self.resolved(TypeId(pointer.value))?;
        let fits = (pointer.kind, target.kind) == (kind::PTR, kind::STRUCT) && self.is_named(target.name, name);
        fits.then_some(id)
    }

    /// The length of an integer in bytes.
    pub(crate) fn integer(&self, id: TypeId) -> Option<u32> {
        let (_, entry) = self.resolved(id)?;
        (entry.kind == kind::INT).then_some(entry.value)
    }

    /// Whether the type is the structure of this name.
    pub(crate) fn is_structure(&self, id: TypeId, name: &str) -> bool {
        self.resolved(id).is_some_and(|(_, entry)| entry.kind == kind::STRUCT && self.is_named(entry.name, name))
    }

    /// A member of a structure by its name. Members of unnamed structures inside it are not found.
    pub(crate) fn member(&self, structure: TypeId, name: &str) -> Option<Member> {
        let entry = self.entry(structure).filter(|entry| entry.kind == kind::STRUCT)?;
        let member = entry
            .rest
            .chunks_exact(12)
            .find(|member| word(member, 0).is_some_and(|found| self.is_named(found, name)))?;
        let (kind, place) = (word(member, 4)?, word(member, 8)?);
        // With the flag, the upper byte is the width of a bit field, 0 for an ordinary member.
        let bits = if entry.flag { place & 0xff_ffff } else { place };
        let is_whole = bits.is_multiple_of(8) && (!entry.flag || place >> 24 == 0);
        is_whole.then_some(Member { offset: bits / 8, kind: TypeId(kind) })
    }

    fn find(&self, kind: u8, name: &str) -> Option<TypeId> {
        self.sections.iter().find_map(|section| {
            let at = section.entries().position(|entry| entry.kind == kind && self.is_named(entry.name, name))?;
            Some(TypeId(section.first_type + u32::try_from(at).ok()?))
        })
    }

    /// The type without typedefs, qualifiers and tags.
    fn resolved(&self, id: TypeId) -> Option<(TypeId, Entry<'_>)> {
        let mut id = id;
        for _ in 0..MAX_CHAIN {
            let entry = self.entry(id)?;
            match entry.kind {
                kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => {
                    id = TypeId(entry.value);
                }
                _ => return Some((id, entry)),
            }
        }
        None
    }

    fn entry(&self, id: TypeId) -> Option<Entry<'_>> {
        let section = self.sections.iter().rfind(|section| section.first_type <= id.0)?;
        section.entry(usize::try_from(id.0 - section.first_type).ok()?)
    }

    fn is_named(&self, offset: u32, name: &str) -> bool {
        let Some(section) = self.sections.iter().rfind(|section| section.first_string <= offset) else { return false };
        let text = &section.data[section.strings.clone()];
        let text = text.get((offset - section.first_string) as usize..).unwrap_or_default();
        text.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
    }
}

/// The types of vmlinux or of a module.
#[derive(Debug)]
struct Section {
    data: Vec<u8>,
    /// Offset of each type in the data.
    types: Vec<u32>,
    /// Range of the strings in the data.
    strings: Range<usize>,
    /// The number of the first type.
    first_type: u32,
    /// The offset of the first string.
    first_string: u32,
}

impl Section {
    fn parse(data: Vec<u8>, first_type: u32, first_string: u32) -> Result<Self, BtfError> {
        if data.len() > MAX_BYTES {
            return Err(BtfError::Malformed("it is too large"));
        }
        let (types, strings) = Self::parts(&data).ok_or(BtfError::Malformed("its header is invalid"))?;
        let mut offsets = Vec::new();
        let mut at = types.start;
        while at < types.end {
            let entry = Entry::read(&data[at..types.end]);
            let entry = entry.ok_or(BtfError::Malformed("a type is unknown or truncated"))?;
            // The offset is below MAX_BYTES.
            offsets.push(at as u32);
            at += Entry::HEAD + entry.rest.len();
        }
        Ok(Self { data, types: offsets, strings, first_type, first_string })
    }

    /// Ranges of the types and the strings in the data, from `struct btf_header`.
    fn parts(data: &[u8]) -> Option<(Range<usize>, Range<usize>)> {
        let magic = u16::from_ne_bytes(*data.first_chunk()?);
        if magic != MAGIC || *data.get(2)? != 1 {
            return None;
        }
        let header = word(data, 4)? as usize;
        let part = |offset: usize, length: usize| {
            let start = header.checked_add(word(data, offset)? as usize)?;
            let end = start.checked_add(word(data, length)? as usize)?;
            (end <= data.len()).then_some(start..end)
        };
        Some((part(8, 12)?, part(16, 20)?))
    }

    fn entry(&self, index: usize) -> Option<Entry<'_>> {
        Entry::read(self.data.get(*self.types.get(index)? as usize..)?)
    }

    fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        self.types.iter().map_while(|at| Entry::read(self.data.get(*at as usize..)?))
    }
}

/// `struct btf_type`, followed by the data of its kind.
#[derive(Clone, Copy, Debug)]
struct Entry<'a> {
    name: u32,
    kind: u8,
    flag: bool,
    /// Length in bytes or number of another type, depending on the kind.
    value: u32,
    rest: &'a [u8],
}

impl<'a> Entry<'a> {
    const HEAD: usize = 12;

    /// Parses the type at the start of the data. `None` if the type is truncated, or has a kind whose length is
    /// unknown.
    fn read(data: &'a [u8]) -> Option<Self> {
        let (name, info, value) = (word(data, 0)?, word(data, 4)?, word(data, 8)?);
        let kind = (info >> 24 & 0x1f) as u8;
        let count = (info & 0xffff) as usize;
        let length = match kind {
            kind::PTR
            | kind::FWD
            | kind::TYPEDEF
            | kind::VOLATILE
            | kind::CONST
            | kind::RESTRICT
            | kind::FUNC
            | kind::FLOAT
            | kind::TYPE_TAG => 0,
            kind::INT | kind::VAR | kind::DECL_TAG => 4,
            kind::ENUM | kind::FUNC_PROTO => 8 * count,
            kind::ARRAY => 12,
            kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => 12 * count,
            _ => return None,
        };
        let rest = data.get(Self::HEAD..Self::HEAD + length)?;
        Some(Self { name, kind, flag: info >> 31 == 1, value, rest })
    }
}

fn word(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*data.get(at..)?.first_chunk()?))
}

/// The kernel's types cannot be read, or are not what the programs need.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors describe the fields")]
pub enum BtfError {
    /// The file cannot be read.
    #[error("cannot read {path}; use a kernel with CONFIG_DEBUG_INFO_BTF, and mount sysfs on /sys")]
    Read { path: &'static str, source: io::Error },
    /// The data is not in the format of this parser.
    #[error("the kernel's BTF cannot be read: {0}; use a kernel release that this version supports")]
    Malformed(&'static str),
    /// The kernel is too old and lacks the hook.
    #[error("the kernel has no LSM hook {hook}; Linux 6.8 or newer with CONFIG_BPF_LSM is needed")]
    NoHook { hook: &'static str },
    /// An argument of the hook has another type than in supported kernels.
    #[error("argument {index} of the LSM hook {hook} has another type than in supported kernels")]
    Argument { hook: &'static str, index: usize },
    /// A structure lacks a member, or the member has another type.
    #[error("struct {structure} has no member {member} of the type that supported kernels have")]
    Member { structure: &'static str, member: &'static str },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{Sample, kernel_6_12};

    #[test]
    fn types_are_found_by_kind_and_name() {
        let mut sample = Sample::default();
        let int = sample.int("unsigned int", 4);
        let alias = sample.alias("dev_t", int);
        let inode = sample.structure("inode", &[("i_mode", int, 0), ("i_rdev", alias, 76)]);
        let pointer = sample.pointer(inode);
        let function = sample.function("open", &[alias, pointer]);
        let btf = Btf::parse(sample.bytes()).unwrap();
        assert_eq!(btf.structure("inode"), Some(TypeId(inode)));
        assert_eq!((btf.structure("inod"), btf.structure("inode2"), btf.structure("open")), (None, None, None));
        assert_eq!(btf.function("open"), Some(TypeId(function)));
        assert_eq!(btf.argument(TypeId(function), 1), Some(TypeId(pointer)));
        assert_eq!(btf.argument(TypeId(function), 2), None);
        assert_eq!(btf.argument(TypeId(inode), 0), None);
        assert_eq!(btf.target(TypeId(pointer), "inode"), Some(TypeId(inode)));
        assert_eq!((btf.target(TypeId(pointer), "file"), btf.target(TypeId(alias), "inode")), (None, None));
        assert_eq!(btf.member(TypeId(inode), "i_rdev"), Some(Member { offset: 76, kind: TypeId(alias) }));
        assert_eq!((btf.member(TypeId(inode), "i"), btf.member(TypeId(int), "i_rdev")), (None, None));
        assert_eq!((btf.integer(TypeId(alias)), btf.integer(TypeId(pointer))), (Some(4), None));
    }

    #[test]
    fn a_module_continues_the_types_and_strings_of_the_kernel() {
        let mut kernel = Sample::default();
        let int = kernel.int("unsigned int", 4);
        let mut module = kernel.module();
        let inode = module.structure("xfs_inode", &[("i_projid", int, 40)]);
        let mut btf = Btf::parse(kernel.bytes()).unwrap();
        btf.add_module(module.bytes()).unwrap();
        let found = btf.structure("xfs_inode").unwrap();
        assert_eq!(found, TypeId(inode));
        let member = btf.member(found, "i_projid").unwrap();
        assert_eq!((member.offset, btf.integer(member.kind)), (40, Some(4)));
    }

    #[test]
    fn a_bit_field_is_not_a_member() {
        let mut sample = Sample::default();
        let int = sample.int("unsigned int", 4);
        let flags = sample.bit_fields("flags", &[("narrow", int, 8, 1), ("whole", int, 32, 0)]);
        let btf = Btf::parse(sample.bytes()).unwrap();
        assert_eq!(btf.member(TypeId(flags), "narrow"), None);
        assert_eq!(btf.member(TypeId(flags), "whole"), Some(Member { offset: 4, kind: TypeId(int) }));
    }

    #[test]
    fn a_cycle_of_typedefs_ends() {
        let mut sample = Sample::default();
        let first = sample.alias("a", 2);
        let second = sample.alias("b", first);
        let pointer = sample.pointer(second);
        let btf = Btf::parse(sample.bytes()).unwrap();
        assert_eq!(btf.integer(TypeId(first)), None);
        assert_eq!(btf.target(TypeId(pointer), "a"), None);
    }

    #[test]
    fn every_truncation_of_a_kernels_types_is_an_error() {
        let bytes = kernel_6_12().bytes();
        assert!(Btf::parse(bytes.clone()).is_ok());
        for length in 0..bytes.len() {
            assert!(matches!(Btf::parse(bytes[..length].to_vec()), Err(BtfError::Malformed(_))), "{length}");
        }
    }

    #[test]
    fn sizes_that_overflow_are_an_error() {
        let bytes = kernel_6_12().bytes();
        for place in [4, 8, 12, 16, 20] {
            for value in [u32::MAX, u32::MAX - 23, 1 << 31] {
                let mut bytes = bytes.clone();
                bytes[place..place + 4].copy_from_slice(&value.to_ne_bytes());
                assert!(Btf::parse(bytes).is_err(), "{value:#x} at {place}");
            }
        }
    }
}
