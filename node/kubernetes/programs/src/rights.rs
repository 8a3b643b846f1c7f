//! Rights of a confined program. No I/O.

use std::path::{Path, PathBuf};

use crate::user::{Capability, User};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Confinement {
    /// The node enforces the rights. The service fails if the kernel has no Landlock or seccomp filters.
    #[default]
    Enforced,
    /// Programs run as the caller's user without limits, because a build machine has neither the users nor Landlock.
    Disabled,
}

/// Rights of a program. Landlock and file owners deny all other files, a seccomp filter denies system calls.
/// Set-user-ID programs and file capabilities have no effect (`no_new_privs`).
#[derive(Clone, Debug)]
pub struct Rights {
    pub user: User,
    pub capabilities: &'static [Capability],
    /// Files that the user owns and the program reads. A file may be replaced while the program runs, so the program
    /// may read each file in these directories whose mode allows it.
    pub keys: Vec<PathBuf>,
    /// Other files, and directories with their contents, that the program reads. A missing path gives no right.
    pub reads: Vec<PathBuf>,
    /// Directories that the user owns, with their contents. Mode 0700.
    pub owns: Vec<PathBuf>,
    /// Files, and directories with their contents, that the program executes or loads, besides its own file.
    pub starts: Vec<PathBuf>,
}

impl Rights {
    /// Rights of a program that has the capabilities of its user, and reads only `keys`.
    pub fn new(user: User, keys: impl Into<Vec<PathBuf>>) -> Self {
        let (capabilities, keys) = (user.capabilities(), keys.into());
        Self { user, capabilities, keys, reads: vec![], owns: vec![], starts: vec![] }
    }

    /// Rules for paths. `program` is the program's file, `scratch` its directory for temporary files.
    pub(crate) fn rules<'a>(&'a self, program: &'a Path, scratch: &'a Path) -> Vec<(Access, &'a Path)> {
        let of = |access, paths: &'a [PathBuf]| paths.iter().map(move |path| (access, &**path));
        let keys = self.keys.iter().filter_map(|key| key.parent());
        [(Access::Start, program), (Access::Own, scratch), (Access::Device, Path::new("/dev/null"))]
            .into_iter()
            .chain(SYSTEM.map(|path| (Access::Read, Path::new(path))))
            .chain(keys.map(|directory| (Access::Read, directory)))
            .chain(of(Access::Read, &self.reads))
            .chain(of(Access::Own, &self.owns))
            .chain(of(Access::Start, &self.starts))
            .collect()
    }
}

/// Readable for every program: the kernel's view of the machine, random numbers, and resolver settings. File modes
/// protect secrets of other processes in `/proc`.
const SYSTEM: [&str; 4] = ["/proc", "/sys", "/etc", "/dev/urandom"];

/// Access to a file, or to a directory with its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Start,
    Device,
    /// All accesses except the execution of programs and the creation of devices, sockets and links.
    Own,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_writes_to_its_own_directories_only() {
        let rights = Rights {
            owns: vec!["/data/etcd".into()],
            reads: vec!["/ephemeral/config/etcd.json".into()],
            ..Rights::new(User::Etcd, ["/data/pki/etcd.key".into()])
        };
        let rules = rights.rules(Path::new("/usr/bin/etcd"), Path::new("/ephemeral/programs/etcd"));
        let with = |wanted| rules.iter().filter(move |(access, _)| *access == wanted).map(|(_, path)| *path);
        let own: Vec<_> = with(Access::Own).collect();
        assert_eq!(own, [Path::new("/ephemeral/programs/etcd"), Path::new("/data/etcd")]);
        assert_eq!(with(Access::Start).collect::<Vec<_>>(), [Path::new("/usr/bin/etcd")]);
        // A renewed key is another inode, so the rule is for the directory.
        assert!(with(Access::Read).any(|path| path == Path::new("/data/pki")));
    }
}
