//! Attacks by processes.

use crate::attack::Failure;
use crate::sys::{self, Page, Process};
use crate::target::Target;

/// More than `podPidsLimit`.
const MANY: usize = 1200;

/// Starts more processes than a pod may have, and ends them.
pub(crate) fn fork_bomb(_: &Target<'_>, _: &mut Page) -> Result<(), Failure> {
    let mut children = [Process::default(); MANY];
    let mut denied = None;
    let mut count = 0;
    for place in &mut children {
        match sys::fork() {
            Ok(None) => loop {
                sys::pause();
            },
            Ok(Some(child)) => *place = child,
            Err(errno) => {
                denied = Some(errno);
                break;
            }
        }
        count += 1;
    }
    for child in children.iter().take(count) {
        sys::kill(*child).map_err(Failure::step("end a process"))?;
        sys::wait(*child).map_err(Failure::step("wait for a process"))?;
    }
    denied.map_or(Ok(()), |errno| Err(Failure::Denied(errno)))
}
