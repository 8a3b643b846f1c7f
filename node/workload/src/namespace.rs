//! Namespaces of the kernel.

use crate::finding::Tried;
use nix::sched::{CloneFlags, unshare as enter};

/// Asks for a user namespace. In a program with several threads the kernel never makes one (unshare(2)).
pub(crate) fn unshare() -> Tried {
    Tried { errno: enter(CloneFlags::CLONE_NEWUSER).err().map(|errno| format!("{errno:?}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The harness has threads, as the server has.
    #[test]
    fn a_program_with_threads_stays_in_its_namespace() {
        std::thread::scope(|scope| {
            let errno = scope.spawn(unshare).join().unwrap().errno;
            // A container that builds may have a filter of its own.
            assert!(matches!(errno.as_deref(), Some("EINVAL" | "EPERM")), "{errno:?}");
        });
    }
}
