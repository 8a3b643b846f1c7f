//! Retries of calls that fail with `EBUSY`.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

/// Time limit of the retries. A test that leaves a file open fails after this time.
const LIMIT: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(2);

/// Repeats the call while it fails with `EBUSY`, for at most `LIMIT`. A process that another test forks has copies of
/// all open files until it calls exec.
pub(crate) fn retry(mut let_go: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    let start = Instant::now();
    loop {
        match let_go() {
            Err(Errno::EBUSY) if start.elapsed() < LIMIT => thread::sleep(STEP),
            answer => return answer,
        }
    }
}

/// Unmounts `target`, as umount2(2) without flags does. Waits up to 5 s while the mount is busy.
pub fn unmount(target: &Path) -> Result<(), Errno> {
    retry(|| umount2(target, MntFlags::empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ebusy_is_retried() {
        let mut answers = [Err(Errno::EBUSY), Err(Errno::EBUSY), Ok(()), Err(Errno::EIO)].into_iter();
        assert_eq!(retry(|| answers.next().unwrap()), Ok(()));
        assert_eq!(retry(|| answers.next().unwrap()), Err(Errno::EIO));
    }
}
