//! Captured log of a controller.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::{Dispatch, Level};
use tracing_subscriber::fmt::writer::MakeWriterExt as _;

/// The log of one controller, which is also printed.
#[derive(Clone, Default)]
pub struct Said(Arc<Mutex<Vec<u8>>>);

impl Said {
    /// Writes to the captured log.
    pub fn listener(&self) -> Dispatch {
        let said = self.clone();
        let writer = (move || said.clone()).and(io::stderr);
        tracing_subscriber::fmt().with_ansi(false).with_max_level(Level::INFO).with_writer(writer).into()
    }

    /// The warnings with this message so far.
    pub fn warnings(&self, words: &str) -> Vec<String> {
        let said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&said);
        text.lines().filter(|line| line.contains(" WARN ") && line.contains(words)).map(str::to_owned).collect()
    }
}

impl Write for Said {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(text)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
