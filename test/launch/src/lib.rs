//! The launcher, started as a person starts it: what it shows, how it ends, and that nothing is left of it.
//!
//! A [`Launched`] is the real program with the real image or a [`Stub`] in its place, in a temporary directory of its
//! own. Nothing waits for a fixed time: each wait is for a text on the [`Screen`] or for the end of a process, with a
//! deadline.
#![deny(unsafe_code)]

mod launched;
mod process;
mod screen;
mod stub;
#[expect(unsafe_code, reason = "a terminal becomes a program's own between fork and exec")]
mod sys;

pub use launched::{Ended, Launched, directory};
pub use process::Process;
pub use screen::{Kind, Screen};
pub use stub::{PRESSED, Stub, VARIABLE, WAITING};

use std::time::Duration;

/// How long anything may take with a stub: seconds in emulation, minutes beside a build.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// How long a boot with all that is shown then may take: two minutes in emulation, several times that beside a build. A
/// launcher that waits for something in vain ends before, and says for what.
pub const WHOLE: Duration = Duration::from_secs(1200);
