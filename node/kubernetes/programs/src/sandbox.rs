//! A sandbox, created from a program's [`Rights`] for one start, and entered between fork(2) and execve(2).

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible as _, PathBeneath, PathFd, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetError, Scope, make_bitflags,
};
use nix::libc::sock_filter;

use crate::rights::{Access, Rights};
use crate::user::{Capability, User};
use crate::{seccomp, sys};

/// Needs Linux 6.12. This version also limits signals and abstract sockets to the program and its children.
const LANDLOCK: ABI = ABI::V6;

#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error("cannot use Landlock; the node needs Linux 6.12 with landlock among the active security modules")]
    Landlock(#[from] RulesetError),
    #[error("cannot open {path}, which the program may use")]
    Path { path: PathBuf, source: io::Error },
    #[error("the kernel has no seccomp filters")]
    Seccomp(#[source] io::Error),
}

/// The restrictions that a child enters before execve(2).
#[derive(Debug)]
pub(crate) struct Sandbox {
    pub(crate) user: User,
    pub(crate) capabilities: u64,
    pub(crate) rules: OwnedFd,
    pub(crate) filter: Vec<sock_filter>,
}

impl Sandbox {
    /// Sandbox of the program `program` with its scratch directory. All directories must exist.
    pub(crate) fn new(rights: &Rights, program: &Path, scratch: &Path) -> Result<Self, SandboxError> {
        sys::has_seccomp().map_err(SandboxError::Seccomp)?;
        Ok(Self {
            user: rights.user,
            capabilities: Capability::set(rights.capabilities),
            rules: ruleset(&rights.rules(program, scratch))?,
            filter: seccomp::filter(),
        })
    }
}

fn ruleset(rules: &[(Access, &Path)]) -> Result<OwnedFd, SandboxError> {
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(LANDLOCK))?
        .scope(Scope::from_all(LANDLOCK))?
        .create()?;
    for (access, path) in rules {
        let failed = |source| SandboxError::Path { path: path.to_path_buf(), source };
        let metadata = match path.metadata() {
            // A missing file gives no right. The program's file and its own directories must exist.
            Err(error) if error.kind() == io::ErrorKind::NotFound && *access == Access::Read => continue,
            found => found.map_err(failed)?,
        };
        let opened = PathFd::new(path).map_err(|error| failed(io::Error::other(error)))?;
        let rights = rights(*access) & if metadata.is_dir() { BitFlags::all() } else { of_files() };
        ruleset = ruleset.add_rule(PathBeneath::new(opened, rights))?;
    }
    // `None` only if the kernel has no Landlock, which fails above.
    Option::from(ruleset).ok_or_else(|| SandboxError::Seccomp(io::ErrorKind::Unsupported.into()))
}

fn rights(access: Access) -> BitFlags<AccessFs> {
    let read = make_bitflags!(AccessFs::{ReadFile | ReadDir});
    match access {
        Access::Read => read,
        Access::Start => read | AccessFs::Execute,
        Access::Device => read | AccessFs::WriteFile,
        Access::Own => {
            read | make_bitflags!(AccessFs::{
                WriteFile | Truncate | MakeReg | MakeDir | RemoveFile | RemoveDir | Refer
            })
        }
    }
}

fn of_files() -> BitFlags<AccessFs> {
    make_bitflags!(AccessFs::{Execute | ReadFile | WriteFile | Truncate | IoctlDev})
}
