//! Forked copies of this process.

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::sys;

/// A forked copy of this process that runs one function and ends. [`Child::wait`] returns after the files of the copy
/// are closed.
#[derive(Debug)]
#[must_use = "wait for its end"]
pub struct Child(pub(super) Pid);

impl Child {
    /// Forks this process and runs `work` in the copy. [The module](super) describes what `work` must not do.
    pub fn start(work: impl FnOnce()) -> Self {
        Self(sys::copy(work).unwrap_or_else(|error| panic!("cannot start a process: {error}")))
    }

    /// Kills the child with `SIGKILL` and waits for its end.
    pub fn kill(self) {
        // The kernel does not reuse the child's ID before waitpid(2).
        kill(self.0, Signal::SIGKILL).expect("the child is there");
        waitpid(self.0, None).expect("its end");
    }

    pub fn wait(self) {
        assert_eq!(waitpid(self.0, None), Ok(WaitStatus::Exited(self.0, 0)), "the work of a child failed");
    }
}
