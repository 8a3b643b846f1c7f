//! What ends the program before its time.

use crate::output::Output;
use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Why the program is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Ctrl-C, SIGTERM, or a terminal that hangs up.
    Interrupted,
    /// Nobody reads what is written.
    Unread,
}

/// Everything that ends the program, watched from the moment it is made.
pub(crate) struct Interrupts<'a> {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
    output: &'a Output,
}

impl<'a> Interrupts<'a> {
    pub(crate) fn watch(output: &'a Output) -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            output,
        })
    }

    /// Returns at the first. Cancel-safe.
    pub(crate) async fn first(&mut self) -> End {
        tokio::select! {
            _ = self.interrupt.recv() => End::Interrupted,
            _ = self.terminate.recv() => End::Interrupted,
            _ = self.hang_up.recv() => End::Interrupted,
            () = self.output.lost() => End::Unread,
        }
    }

    /// Returns when somebody does not want to wait for the end: Ctrl-C or SIGTERM. A terminal that closes may hang up
    /// twice, by the kernel and by the shell, and has nobody who is impatient. Cancel-safe.
    pub(crate) async fn second(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
