//! [`Progress`]: a line on a terminal that says how far a long command is.

use std::io::{self, IsTerminal as _, Write as _};

/// A line of standard error that each [`Progress::show`] rewrites. Without a terminal, nothing is written.
#[derive(Debug)]
pub struct Progress {
    terminal: bool,
}

impl Progress {
    pub fn show(&self, text: &str) {
        if self.terminal {
            // The rest of a longer line is deleted. A terminal that is gone needs no line.
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
