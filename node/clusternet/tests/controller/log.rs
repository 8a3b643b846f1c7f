//! Captured log of a controller.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::{Dispatch, Level};
use tracing_subscriber::fmt::writer::MakeWriterExt as _;

#[derive(Clone, Default)]
pub struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl CapturedLog {
    pub fn subscriber(&self) -> Dispatch {
        let log = self.clone();
        let writer = (move || log.clone()).and(io::stderr);
        tracing_subscriber::fmt().with_ansi(false).with_max_level(Level::INFO).with_writer(writer).into()
    }

    pub fn warnings(&self, message: &str) -> Vec<String> {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&bytes);
        text.lines().filter(|line| line.contains(" WARN ") && line.contains(message)).map(str::to_owned).collect()
    }
}

impl Write for CapturedLog {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(text)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
