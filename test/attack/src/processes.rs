//! Attacks that create processes.

use core::ffi::CStr;

use crate::errno::Errno;
use crate::failure::Failure;
use crate::sys::{self, File, Page, Process};
use crate::target::Target;

/// Number of processes. It exceeds `podPidsLimit`.
const MANY: usize = 1200;
/// The attack creates this file in the volume when the pod reaches its process limit.
pub const BOMB_LIMIT_REACHED: &CStr = c"fork-bomb";
pub const BOMB_END: &CStr = c"fork-bomb-end";
/// Pause between two attempts at the limit, in milliseconds, and maximum number of attempts: ten minutes in total.
const PAUSE: u32 = 10;
const ATTEMPTS: u32 = 60_000;

/// Starts more processes than the pod may have. At the limit, the attack continues until [`BOMB_END`] exists, so that
/// the test can observe the node.
pub(crate) fn fork_bomb(target: &Target<'_>, _: &mut Page) -> Result<(), Failure> {
    let mut children = [None; MANY];
    let filled = fill(&mut children);
    let lasted = match filled {
        Err(Failure::Denied(_)) => last(target, &mut children),
        _ => Ok(()),
    };
    for child in children.into_iter().flatten() {
        sys::kill(child).map_err(Failure::step("end a process"))?;
        sys::wait(child).map_err(Failure::step("wait for a process"))?;
    }
    lasted.and(filled)
}

/// Starts a child for each empty slot.
fn fill(children: &mut [Option<Process>]) -> Result<(), Failure> {
    for place in children.iter_mut().filter(|place| place.is_none()) {
        match sys::fork() {
            Ok(None) => loop {
                sys::pause();
            },
            Ok(child) => *place = child,
            Err(errno) => return Err(Failure::Denied(errno)),
        }
    }
    Ok(())
}

fn last(target: &Target<'_>, children: &mut [Option<Process>]) -> Result<(), Failure> {
    let volume = sys::open(target.volume, sys::READ_ONLY).map_err(Failure::step("open the directory"))?;
    create(volume).map_err(Failure::step("report that the limit is reached"))?;
    for _ in 0..ATTEMPTS {
        match sys::open_at(volume, BOMB_END, sys::READ_ONLY) {
            Ok(end) => return sys::close(end).and_then(|()| sys::close(volume)).map_err(Failure::step("close a file")),
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(Failure::Step("look for the end", errno)),
        }
        // The processes are still at the limit, so this attempt fails like the first one.
        _ = fill(children);
        sys::sleep(PAUSE);
    }
    Err(Failure::Step("wait for the end", Errno::ENOENT))
}

fn create(volume: File) -> Result<(), Errno> {
    sys::close(sys::open_at(volume, BOMB_LIMIT_REACHED, sys::READ_WRITE | sys::CREATE)?)
}
