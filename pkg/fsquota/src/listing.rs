//! [`Listing`].

use std::os::fd::BorrowedFd;

use nix::errno::Errno;

use crate::error::FsError;
use crate::sys;

/// A directory's list of entries, read as far as somebody had to know.
///
/// XFS keeps `..` in the directory itself. So it is the directory above in the file system, whatever
/// is mounted where, and in the root of the file system the root.
#[derive(Debug)]
pub(crate) struct Listing {
    number: u64,
    above: u64,
    others: bool,
}

impl Listing {
    /// Reads until the directory and the one above are known, in one call as a rule. `dir` has not
    /// been read before: the kernel goes on where it was.
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

    /// The inode number of the directory above.
    pub(crate) fn above(&self) -> u64 {
        self.above
    }

    /// Whether this is the root directory of its file system, wherever that is mounted.
    pub(crate) fn is_root(&self) -> bool {
        self.number == self.above
    }

    /// Reads on until there is something in the directory, or the end. That `.` and `..` came alone is
    /// not enough: a signal cuts a piece short.
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

/// Reads the next piece; `false` if there is none.
fn read(dir: BorrowedFd<'_>, mut found: impl FnMut(u64, &[u8])) -> Result<bool, FsError> {
    // Some entries of the longest name.
    let mut buffer = [0; 1024];
    let length = sys::entries(dir, &mut buffer).map_err(failed)?;
    entries(buffer.get(..length).unwrap_or_default()).for_each(|(number, name)| found(number, name));
    Ok(length > 0)
}

fn failed(errno: Errno) -> FsError {
    match errno {
        // What the kernel says of a directory that was deleted while it was open.
        Errno::ENOENT => FsError::Gone,
        errno => FsError::system("getdents64")(errno),
    }
}

/// Inode numbers and names of a row of `struct linux_dirent64`, include/linux/dirent.h: number (8 bytes),
/// place (8), length of the whole (2), type (1), name and at least one zero.
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

    /// As the kernel writes it: the length is a multiple of 8.
    fn written(number: u64, name: &[u8]) -> Vec<u8> {
        let length = (19 + name.len() + 1).next_multiple_of(8);
        let mut entry = [&number.to_ne_bytes()[..], &[0; 8], &(length as u16).to_ne_bytes(), &[0], name].concat();
        entry.resize(length, 0);
        entry
    }

    proptest! {
        #[test]
        fn what_the_kernel_writes_is_read(names in prop::collection::vec((any::<u64>(), "[^\0]{1,85}"), 0..20)) {
            let piece: Vec<u8> = names.iter().flat_map(|(number, name)| written(*number, name.as_bytes())).collect();
            let expected: Vec<_> = names.iter().map(|(number, name)| (*number, name.as_bytes())).collect();
            prop_assert_eq!(entries(&piece).collect::<Vec<_>>(), expected);
        }

        #[test]
        fn no_bytes_make_reading_panic_or_endless(piece: Vec<u8>) {
            prop_assert!(entries(&piece).count() <= piece.len() / 19);
        }
    }
}
