//! Output streams that may be closed.

use std::io::{self, Write};
use tokio::sync::watch;

/// Standard output and standard error. `println!` would panic if the pipe is closed, the terminal hangs up or the disk
/// is full.
#[derive(Debug)]
pub(crate) struct Output {
    lost: watch::Sender<bool>,
}

impl Output {
    pub(crate) fn new() -> Self {
        Self { lost: watch::Sender::new(false) }
    }

    pub(crate) fn print(&self, text: &str) {
        self.write(&mut io::stdout().lock(), text);
    }

    pub(crate) fn print_error(&self, text: &str) {
        self.write(&mut io::stderr().lock(), text);
    }

    pub(crate) fn write(&self, stream: &mut impl Write, text: &str) {
        if writeln!(stream, "{text}").and_then(|()| stream.flush()).is_err() {
            self.lost.send_replace(true);
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        *self.lost.borrow()
    }

    /// Waits until a line cannot be written. Cancel-safe.
    pub(crate) async fn lost(&self) {
        // `wait_for` cannot fail, because the sender exists.
        _ = self.lost.subscribe().wait_for(|lost| *lost).await;
    }
}
