//! Letting go of what the kernel still finds in use.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

/// A test that leaves something open fails only after this.
const LIMIT: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(2);

/// Tries again while the answer is `EBUSY`, with a limit. A process that another test forks has copies of all open
/// files until it calls exec.
pub(crate) fn retry(mut let_go: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    let start = Instant::now();
    loop {
        match let_go() {
            Err(Errno::EBUSY) if start.elapsed() < LIMIT => thread::sleep(STEP),
            answer => return answer,
        }
    }
}

/// Takes a mount off, as umount2(2) without flags does; what is in use for a moment only is waited for.
pub fn unmount(target: &Path) -> Result<(), Errno> {
    retry(|| umount2(target, MntFlags::empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_busy_is_tried_again() {
        let mut answers = [Err(Errno::EBUSY), Err(Errno::EBUSY), Ok(()), Err(Errno::EIO)].into_iter();
        assert_eq!(retry(|| answers.next().unwrap()), Ok(()));
        assert_eq!(retry(|| answers.next().unwrap()), Err(Errno::EIO));
    }
}
