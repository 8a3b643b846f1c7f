//! [`Listing`].

use std::os::fd::BorrowedFd;

use nix::errno::Errno;

use crate::error::FsError;
use crate::sys;

/// The entries of a directory, read only as far as necessary.
///
/// XFS stores `..` in the directory itself. Therefore it is the parent in the file system, independent of mounts; in
/// the root of the file system it is the root.
#[derive(Debug)]
pub(crate) struct Listing {
    number: u64,
    above: u64,
    others: bool,
}

impl Listing {
    /// Reads until `.` and `..` are known, usually with one call. `dir` must not have been read before, because the
    /// kernel continues at the file offset.
    pub(crate) fn begin(dir: BorrowedFd<'_>) -> Result<Self, FsError> {
        let (mut number, mut above, mut others) = (None, None, false);
        loop {
            let more = read(dir, |found, name| match name {
                b"." => number = Some(found),
                b".." => above = Some(found),
                _ => others = true,
            })?;
            match (number, above) {
                (Some(number), Some(above)) => return Ok(Self { number, above, others }),
                _ if more => {}
                _ => return Err(failed(Errno::EUCLEAN)),
            }
        }
    }

    /// Inode number of the parent directory.
    pub(crate) fn above(&self) -> u64 {
        self.above
    }

    /// Whether this is the root directory of the file system, wherever that is mounted.
    pub(crate) fn is_root(&self) -> bool {
        self.number == self.above
    }

    /// Reads until an entry or the end of the directory. A read that returned only `.` and `..` is not the end: a
    /// signal may have interrupted it.
    pub(crate) fn is_empty(&mut self, dir: BorrowedFd<'_>) -> Result<bool, FsError> {
        let others = &mut self.others;
        while !*others {
            if !read(dir, |_, name| *others |= !matches!(name, b"." | b".."))? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Reads the next entries; `false` at the end of the directory.
fn read(dir: BorrowedFd<'_>, mut found: impl FnMut(u64, &[u8])) -> Result<bool, FsError> {
    // Space for several entries with the longest name.
    let mut buffer = [0; 1024];
    let length = sys::entries(dir, &mut buffer).map_err(failed)?;
    entries(buffer.get(..length).unwrap_or_default()).for_each(|(number, name)| found(number, name));
    Ok(length > 0)
}

fn failed(errno: Errno) -> FsError {
    match errno {
        // The errno for a directory that was deleted after it was opened.
        Errno::ENOENT => FsError::Gone,
        errno => FsError::system("getdents64")(errno),
    }
}

/// Inode numbers and names in a sequence of `struct linux_dirent64`, include/linux/dirent.h: inode number (8 bytes),
/// offset (8), record length (2), type (1), name and at least one NUL.
fn entries(mut piece: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    std::iter::from_fn(move || {
        let number = u64::from_ne_bytes(*piece.first_chunk()?);
        let length = u16::from_ne_bytes(*piece.get(16..)?.first_chunk()?);
        let (entry, rest) = piece.split_at_checked(length.into())?;
        piece = rest;
        let name = entry.get(19..)?.split(|byte| *byte == 0).next()?;
        Some((number, name))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Formats an entry like the kernel, which rounds the length up to a multiple of 8.
    fn written(number: u64, name: &[u8]) -> Vec<u8> {
        let length = (19 + name.len() + 1).next_multiple_of(8);
        let mut entry = [&number.to_ne_bytes()[..], &[0; 8], &(length as u16).to_ne_bytes(), &[0], name].concat();
        entry.resize(length, 0);
        entry
    }

    proptest! {
        #[test]
        fn entries_of_the_kernel_are_parsed(names in prop::collection::vec((any::<u64>(), "[^\0]{1,85}"), 0..20)) {
            let piece: Vec<u8> = names.iter().flat_map(|(number, name)| written(*number, name.as_bytes())).collect();
            let expected: Vec<_> = names.iter().map(|(number, name)| (*number, name.as_bytes())).collect();
            prop_assert_eq!(entries(&piece).collect::<Vec<_>>(), expected);
        }

        #[test]
        fn parsing_never_panics_and_always_ends(piece: Vec<u8>) {
            prop_assert!(entries(&piece).count() <= piece.len() / 19);
        }
    }
}
