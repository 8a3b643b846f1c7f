//! A copy of this process that does some work.

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::sys;

/// A copy of this process that does some work and ends. [`Child::wait`] returns after its files are closed.
#[derive(Debug)]
#[must_use = "wait for its end"]
pub struct Child(pub(super) Pid);

impl Child {
    /// Begins the work. See [the module](super) for what it must not do.
    pub fn start(work: impl FnOnce()) -> Self {
        Self(sys::copy(work).unwrap_or_else(|error| panic!("cannot start a process: {error}")))
    }

    /// Kills it, whatever it does, and waits for its end.
    pub fn kill(self) {
        // Until it is waited for, the ID is the child's.
        kill(self.0, Signal::SIGKILL).expect("the child is there");
        waitpid(self.0, None).expect("its end");
    }

    pub fn wait(self) {
        assert_eq!(waitpid(self.0, None), Ok(WaitStatus::Exited(self.0, 0)), "the work of a child failed");
    }
}
