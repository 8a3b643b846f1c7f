//! A thread that stays on one CPU.

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;

/// The calling thread.
const THIS: Pid = Pid::from_raw(0);

/// Keeps this thread, and the processes that it starts meanwhile, on the CPU where it is. Dropped by the same thread.
#[derive(Debug)]
pub(super) struct Pinned {
    former: CpuSet,
}

impl Pinned {
    pub(super) fn here() -> Result<Self, Errno> {
        let former = sched_getaffinity(THIS)?;
        let mut here = CpuSet::new();
        here.set(sched_getcpu()?)?;
        sched_setaffinity(THIS, &here)?;
        Ok(Self { former })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // Otherwise the rest of the test has one CPU.
        let _ = sched_setaffinity(THIS, &self.former);
    }
}
