//! A thread that stays on one CPU.

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;

/// The calling thread.
const THIS: Pid = Pid::from_raw(0);

/// Pins this thread, and the processes that it starts meanwhile, to its current CPU. The same thread must drop the
/// value.
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
        // If this call fails, the rest of the test runs on one CPU.
        let _ = sched_setaffinity(THIS, &self.former);
    }
}
