//! Lines for a person, who may be gone.

use std::io::{self, Write};
use tokio::sync::watch;

/// Standard output and standard error, whose readers may go away: a pipe is closed, a terminal hangs up, a disk is
/// full. `println!` would panic.
#[derive(Debug)]
pub(crate) struct Output {
    lost: watch::Sender<bool>,
}

impl Output {
    pub(crate) fn new() -> Self {
        Self { lost: watch::Sender::new(false) }
    }

    /// A line of the result.
    pub(crate) fn say(&self, text: &str) {
        self.write(&mut io::stdout().lock(), text);
    }

    /// A line about how it goes, or went wrong.
    pub(crate) fn tell(&self, text: &str) {
        self.write(&mut io::stderr().lock(), text);
    }

    fn write(&self, stream: &mut impl Write, text: &str) {
        if writeln!(stream, "{text}").and_then(|()| stream.flush()).is_err() {
            self.lost.send_replace(true);
        }
    }

    /// Whether a line could not be written.
    pub(crate) fn is_lost(&self) -> bool {
        *self.lost.borrow()
    }

    /// Returns as soon as a line could not be written. Cancel-safe.
    pub(crate) async fn lost(&self) {
        // The sender is here: it cannot be gone.
        _ = self.lost.subscribe().wait_for(|lost| *lost).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_reader_that_is_gone_is_noticed_and_no_panic() {
        let output = Output::new();
        output.write(&mut Vec::new(), "text");
        assert!(!output.is_lost());
        let (reader, mut writer) = io::pipe().unwrap();
        drop(reader);
        output.write(&mut writer, "text");
        output.write(&mut writer, "text");
        assert!(output.is_lost());
        output.lost().await;
    }
}
