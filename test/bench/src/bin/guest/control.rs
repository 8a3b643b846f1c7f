//! Control experiment: verifies that the tracer counts system calls correctly.

use std::collections::BTreeMap;

use nix::errno::Errno;
use nix::unistd::{getpgid, getppid};

use crate::call::CallError;
use crate::region::measured;
use crate::tracer::{Seen, trace};

const CALLS: u64 = 1000;

pub(crate) fn make() -> Result<(), Errno> {
    measured(|| {
        for _ in 0..CALLS {
            getppid();
        }
        // The marks are calls of getpgid(2) too, with other arguments.
        getpgid(None)
    })?
    .map(drop)
}

pub(crate) fn check() -> Result<(), CallError> {
    let Seen { syscalls: seen, .. } = trace(&["control".into()], || ())?;
    let expected = [("getppid", CALLS), ("getpgid", 1)].map(|(name, count)| (name.to_owned(), count));
    if seen != BTreeMap::from(expected) {
        return Err(format!("the counter counts something else than {CALLS} getppid and one getpgid: {seen:?}").into());
    }
    Ok(())
}
