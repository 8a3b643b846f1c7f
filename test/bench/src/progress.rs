//! [`Progress`]: a terminal line that shows the progress of a long command.

use std::io::{self, IsTerminal as _, Write as _};

/// A line on standard error that each [`Progress::show`] rewrites. Without a terminal, nothing is written.
#[derive(Debug)]
pub struct Progress {
    terminal: bool,
}

impl Progress {
    pub fn show(&self, text: &str) {
        if self.terminal {
            // The escape sequence deletes the rest of a longer line. Errors of a closed terminal do not matter.
            _ = write!(io::stderr(), "\r{text}\x1b[K");
        }
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self { terminal: io::stderr().is_terminal() }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.show("");
    }
}
