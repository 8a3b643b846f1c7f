//! Freezes the processes of cgroups for a bounded time.
//!
//! [`freeze`] starts a *guard*: this program again, as a process of its own. The guard opens the cgroups and freezes
//! them. It thaws them when [`Frozen::thaw`] asks for it, at the end of the budget, or when its socket from this
//! process closes. If the guard is killed, this process thaws the cgroups. [`thaw_marked`] thaws cgroups of an earlier
//! run whose two processes were both killed.
//! ```no_run
//! use std::process::{Command, ExitCode};
//! use std::time::Duration;
//!
//! fn main() -> ExitCode {
//!     if std::env::args().nth(1).as_deref() == Some("guard") {
//!         return freezer::guard();
//!     }
//!     let mut command = Command::new("/proc/self/exe");
//!     command.arg("guard");
//!     let frozen = freezer::freeze(command, &["/sys/fs/cgroup/app"], Duration::from_secs(2)).expect("freeze");
//!     // No process of the cgroup runs here.
//!     let pause = frozen.thaw().expect("thaw");
//!     println!("frozen after {:?}, paused for {:?}", pause.freeze, pause.total);
//!     ExitCode::SUCCESS
//! }
//! ```
//!
//! # Guarantees
//! - While [`Frozen`] exists, before [`Frozen::deadline`], no process of the cgroups and of those below them has run
//!   since [`freeze`] returned, unless another process thawed them; then [`Frozen::thaw`] fails.
//! - The pause is the time from the first write of `1` to `cgroup.freeze` to the last write of `0`. It ends at the
//!   budget, except for the time that the kernel needs to run the guard and to write to the files.
//! - A cgroup that another process has frozen already is rejected and stays frozen. Several calls of [`freeze`] for one
//!   cgroup follow each other: each has a pause of its own.
//! - Each cgroup has the extended attribute [`MARK`] from before it is frozen until after it is thawed. The mark
//!   disappears with the cgroup.
//! - A cgroup that does not exist, or is removed meanwhile, has no processes, and counts as frozen.
//!
//! # Limitations
//! Neither this process nor any process that the caller waits for while the cgroups are frozen may be in one of them.
//! If both the guard and this process are killed at once, for example as one container, the cgroups stay frozen until
//! [`thaw_marked`]. A frozen process stops wherever it is, also with locks of files that other processes use. A process
//! in an uninterruptible call, such as one that waits for a file system that `FIFREEZE` has frozen, delays the freeze
//! until the call ends: never use both in this order. Processes that can write to `cgroup.freeze` of the cgroup can
//! thaw it.
//!
//! Needs cgroup v2, Linux 5.2 (`cgroup.freeze`, Documentation/admin-guide/cgroup-v2.rst), and `CAP_SYS_ADMIN` in the
//! initial user namespace for the mark.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod cgroup;
mod error;
mod frozen;
mod guard;
mod marked;
mod message;

pub use cgroup::MARK;
pub use error::{FreezeError, Operation};
pub use frozen::{Frozen, Pause, freeze};
pub use guard::guard;
pub use marked::thaw_marked;
