//! Rights of a confined program. Pure.

use std::path::{Path, PathBuf};

use crate::user::{Capability, User};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Confinement {
    /// They are. A kernel without Landlock or seccomp filters fails the service.
    #[default]
    Enforced,
    /// They run as the caller's user with all that it may: on a build machine there are neither users nor Landlock.
    Disabled,
}

/// A program's rights. All else is denied: files by Landlock and their owners, system calls by a seccomp filter,
/// and set-user-ID programs and file capabilities have no effect (`no_new_privs`).
#[derive(Clone, Debug)]
pub struct Rights {
    pub user: User,
    pub capabilities: &'static [Capability],
    /// Files that the user owns and the program reads. They may be replaced while it runs: it may read all files in their
    /// directories whose mode allows it.
    pub keys: Vec<PathBuf>,
    /// Other files, and directories with all in them, that it reads. One that is missing gives no right.
    pub reads: Vec<PathBuf>,
    /// Directories that the user owns, with all in them. Mode 0700.
    pub owns: Vec<PathBuf>,
    /// Files, and directories with all in them, that it starts or loads, beside its own file.
    pub starts: Vec<PathBuf>,
}

impl Rights {
    /// Of a program that has the capabilities of its user, and reads keys and nothing else.
    pub fn new(user: User, keys: impl Into<Vec<PathBuf>>) -> Self {
        let (capabilities, keys) = (user.capabilities(), keys.into());
        Self { user, capabilities, keys, reads: vec![], owns: vec![], starts: vec![] }
    }

    /// Access by path. `program` is its own file, `scratch` its directory for temporary files.
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

/// Readable for every program: the kernel's view of the machine, random numbers, and settings of resolvers. Modes keep
/// secrets of other processes in `/proc`.
const SYSTEM: [&str; 4] = ["/proc", "/sys", "/etc", "/dev/urandom"];

/// Access to a file, or to a directory with its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Start,
    Device,
    /// All but start programs, and make devices, sockets and links.
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
        // A renewed key is another file.
        assert!(with(Access::Read).any(|path| path == Path::new("/data/pki")));
    }
}
