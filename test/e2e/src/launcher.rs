//! The launcher as a user starts it: its output, its end, and that it leaves nothing behind. A [`Launched`] is the
//! real program with the real image or a [`Stub`], in a temporary directory of its own. Waits are for a text on the
//! [`Screen`] or for the end of a process, with a deadline.

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

/// How long anything may take with a stub: seconds in emulation, minutes beside a build.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// Limit of a boot with its demonstration: two minutes in emulation, several times that beside a build. The launcher's
/// own limits are shorter.
pub const WHOLE: Duration = Duration::from_secs(1200);
