//! Namespaces of the kernel.

use crate::finding::Tried;
use nix::sched::{CloneFlags, unshare as enter};

/// Tries to create a user namespace. In a program with several threads, unshare(2) always fails.
pub(crate) fn unshare() -> Tried {
    Tried { errno: enter(CloneFlags::CLONE_NEWUSER).err().map(|errno| format!("{errno:?}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test harness has several threads, like the server.
    #[test]
    fn a_program_with_threads_stays_in_its_namespace() {
        std::thread::scope(|scope| {
            let errno = scope.spawn(unshare).join().unwrap().errno;
            // A container that runs the build may have its own seccomp filter.
            assert!(matches!(errno.as_deref(), Some("EINVAL" | "EPERM")), "{errno:?}");
        });
    }
}
