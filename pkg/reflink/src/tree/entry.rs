//! Entries that are not directories.

use std::ffi::CStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, mknodat};
use nix::unistd::{ftruncate, linkat, symlinkat};

use super::attributes::{self, kind};
use super::error::Fault;
use super::pass::{Directory, Pass, Source, open};
use super::scratch::{Scratch, existing};

/// Maximum size in bytes of a file that is cloned in place although it has become shorter or is another one. A larger
/// file is replaced: freeing its blocks takes time, which the last pass does not have.
const CUT: i64 = 1 << 20;

/// A name in an open directory.
type Place<'a> = (BorrowedFd<'a>, &'a CStr);

impl Pass<'_> {
    /// Creates or changes the entry `name` of the target, so that its inode equals that of the source, whose status is
    /// `stat`.
    pub(super) fn inode(&self, directory: &Directory, name: &CStr, stat: &FileStat) -> Result<(), Fault> {
        let (from, to) = ((directory.from.as_fd(), name), (directory.to.as_fd(), name));
        let found = existing(to.0, name).map_err(Fault::Target)?;
        if found.is_some_and(|found| self.clone.records.is_equal(found.st_ino, stat)) {
            self.count_unchanged();
            return Ok(());
        }
        if stat.st_nlink > 1 {
            self.linked(directory, from, to, stat, found)?;
        } else {
            self.single(directory, from, to, stat, found)?;
        }
        self.count_cloned();
        Ok(())
    }

    /// Clones an inode with one name.
    fn single(
        &self,
        directory: &Directory,
        from: Place<'_>,
        to: Place<'_>,
        stat: &FileStat,
        found: Option<FileStat>,
    ) -> Result<(), Fault> {
        let reused = match found {
            Some(found) if self.is_reused(&found, stat) => Some(found.st_ino),
            Some(_) => {
                self.remove(directory, to)?;
                None
            }
            None => {
                directory.touch();
                None
            }
        };
        self.clone_inode(from, to, stat, reused)
    }

    /// Clones an inode with several names. The scratch directory has one more name for the inode, so that each name
    /// becomes a link to it.
    fn linked(
        &self,
        directory: &Directory,
        from: Place<'_>,
        to: Place<'_>,
        stat: &FileStat,
        found: Option<FileStat>,
    ) -> Result<(), Fault> {
        let scratch = &self.clone.scratch;
        let name = Scratch::link_name(stat);
        let first = (scratch.as_fd(), name.as_c_str());
        let _turn = scratch.turn();
        let mut inode = scratch.entry(&name).map_err(Fault::Target)?;
        if let Some(other) = inode
            && !is_same_kind(from, stat, first, &other)?
        {
            // The number belonged to another inode of the source, which was removed.
            scratch.take(first.0, first.1).map_err(Fault::Target)?;
            inode = None;
        }
        if inode.is_none_or(|inode| !self.clone.records.is_equal(inode.st_ino, stat)) {
            if kind(stat) == SFlag::S_IFREG || inode.is_none() {
                self.clone_inode(from, first, stat, inode.map(|inode| inode.st_ino))?;
            } else {
                self.copy_entry(from, first, stat)?;
            }
            inode = scratch.entry(&name).map_err(Fault::Target)?;
        }
        let linked = inode.map(|inode| inode.st_ino);
        if found.map(|found| found.st_ino) == linked {
            return Ok(());
        }
        if found.is_some() {
            self.remove(directory, to)?;
        }
        directory.touch();
        linkat(first.0, first.1, to.0, to.1, AtFlags::empty()).map_err(Fault::Target)
    }

    /// Whether the file in the target is cloned again in place. Otherwise it is replaced, and its blocks are freed
    /// later.
    fn is_reused(&self, found: &FileStat, stat: &FileStat) -> bool {
        let is_file = [stat, found].into_iter().all(|stat| kind(stat) == SFlag::S_IFREG);
        if !is_file || found.st_nlink != 1 {
            return false;
        }
        if self.clone.records.is_clone_of(found.st_ino, stat) {
            return found.st_size <= stat.st_size.max(CUT);
        }
        // Another file of the source has the name now, or the file has no record. All extents can differ.
        self.source == Source::Still && found.st_size <= CUT
    }

    fn remove(&self, directory: &Directory, (dir, name): Place<'_>) -> Result<(), Fault> {
        self.clone.scratch.take(dir, name).map_err(Fault::Target)?;
        directory.touch();
        Ok(())
    }

    /// Creates the inode, or changes the content of an existing file.
    fn clone_inode(&self, from: Place<'_>, to: Place<'_>, stat: &FileStat, reused: Option<u64>) -> Result<(), Fault> {
        if kind(stat) == SFlag::S_IFREG {
            return self.clone_file(from, to, stat, reused);
        }
        if kind(stat) == SFlag::S_IFLNK {
            let target = readlinkat(from.0, from.1).map_err(Fault::Source)?;
            symlinkat(target.as_os_str(), to.0, to.1).map_err(Fault::Target)?;
        } else {
            mknodat(to.0, to.1, kind(stat), Mode::S_IRUSR | Mode::S_IWUSR, stat.st_rdev).map_err(Fault::Target)?;
        }
        self.copy_entry(from, to, stat)
    }

    /// Copies the attributes of an inode that is neither a file nor a directory.
    fn copy_entry(&self, from: Place<'_>, to: Place<'_>, stat: &FileStat) -> Result<(), Fault> {
        attributes::copy_entry(from, to, stat)?;
        let inode = existing(to.0, to.1).map_err(Fault::Target)?.ok_or(Fault::Target(Errno::ENOENT))?;
        self.clone.records.insert(inode.st_ino, stat, self.begin);
        Ok(())
    }

    /// Clones a file into a new inode or into the inode `reused`. A listing of a changing directory may contain a name
    /// twice, and two threads then clone it. Therefore, while the source changes, an inode of the target receives the
    /// content of one inode of the source only.
    fn clone_file(&self, from: Place<'_>, to: Place<'_>, stat: &FileStat, reused: Option<u64>) -> Result<(), Fault> {
        let (source, now) = open_source(from, stat)?;
        let create = if reused.is_some() { OFlag::empty() } else { OFlag::O_CREAT | OFlag::O_EXCL };
        let target = open(to.0, to.1, OFlag::O_WRONLY | create).map_err(Fault::Target)?;
        let has = fstat(&target).map_err(Fault::Target)?;
        if reused.is_some_and(|reused| reused != has.st_ino) {
            return Err(Fault::Target(Errno::ESTALE));
        }
        // Blocks behind the end of the source would stay. A file that is not longer keeps its blocks: the kernel
        // replaces only extents that differ (`xfs_reflink_remap_extent`, Linux 5.9).
        if has.st_size > now.st_size {
            ftruncate(&target, 0).map_err(Fault::Target)?;
        }
        crate::clone_file(&source, &target).map_err(|errno| match errno {
            Errno::ENOSPC | Errno::EDQUOT => Fault::Target(errno),
            _ => Fault::Source(errno),
        })?;
        attributes::copy(source.as_fd(), target.as_fd(), &now)?;
        self.clone.records.insert(has.st_ino, &now, self.begin);
        Ok(())
    }
}

/// Whether the entry of the target can become equal to that of the source by a change of its content, if it is a file,
/// and attributes.
fn is_same_kind(from: Place<'_>, stat: &FileStat, to: Place<'_>, found: &FileStat) -> Result<bool, Fault> {
    if kind(stat) != kind(found) {
        return Ok(false);
    }
    if kind(stat) != SFlag::S_IFLNK {
        return Ok(stat.st_rdev == found.st_rdev);
    }
    let target = readlinkat(from.0, from.1).map_err(Fault::Source)?;
    Ok(target == readlinkat(to.0, to.1).map_err(Fault::Target)?)
}

/// Opens a file of the source. The flags prevent effects on another inode that may have replaced the file, such as
/// waiting for the writer of a pipe.
fn open_source((dir, name): Place<'_>, stat: &FileStat) -> Result<(OwnedFd, FileStat), Fault> {
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_NOATIME;
    let source = open(dir, name, flags).map_err(Fault::Source)?;
    let now = fstat(&source).map_err(Fault::Source)?;
    // Another inode has the name now, or the number of names has changed. Such an entry is cloned differently.
    if kind(&now) != SFlag::S_IFREG || (now.st_ino, now.st_nlink) != (stat.st_ino, stat.st_nlink) {
        return Err(Fault::Source(Errno::ESTALE));
    }
    Ok((source, now))
}
