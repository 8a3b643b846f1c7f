//! The control experiment: does the counter count right?

use std::collections::BTreeMap;

use nix::errno::Errno;
use nix::unistd::{getpgid, getppid};

use crate::region::measured;
use crate::tracer::{Seen, TraceError, trace};

const CALLS: u64 = 1000;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlError {
    #[error("nothing can be counted")]
    Trace(#[from] TraceError),
    #[error("the counter is wrong: it counts another number than {CALLS} getppid and one getpgid: {seen:?}")]
    Wrong { seen: BTreeMap<String, u64> },
}

pub(crate) fn make() -> Result<(), Errno> {
    measured(|| {
        for _ in 0..CALLS {
            getppid();
        }
        // The marks are such a call too, with another argument.
        getpgid(None)
    })?
    .map(drop)
}

pub(crate) fn check() -> Result<(), ControlError> {
    let Seen { syscalls: seen, .. } = trace(&["control".into()], || ())?;
    let expected = [("getppid", CALLS), ("getpgid", 1)].map(|(name, count)| (name.to_owned(), count));
    if seen == BTreeMap::from(expected) { Ok(()) } else { Err(ControlError::Wrong { seen }) }
}
