//! Runs the launcher like a user: its output, its end, and that it leaves nothing behind. A [`Launched`] is the real
//! program with the real image or a [`Stub`], in its own temporary directory. Tests wait for a text on the [`Screen`]
//! or for the end of a process, with a deadline.

mod commands;
mod launched;
mod process;
mod screen;
mod stub;
#[expect(unsafe_code, reason = "a terminal becomes a program's own between fork and exec")]
mod sys;

pub use commands::{Commands, Outcome};
pub use launched::{Ended, Launched, directory};
pub use process::Process;
pub use screen::{Kind, Screen};
pub use stub::{PRESSED, Stub, VARIABLE, WAITING};

use std::time::Duration;

/// Deadline of any step with a stub. A step takes seconds in emulation, and minutes during a build.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// Deadline of a boot with its demonstration, which takes two minutes in emulation and several times that during a
/// build. The launcher's own limits are shorter.
pub const WHOLE: Duration = Duration::from_secs(1200);
