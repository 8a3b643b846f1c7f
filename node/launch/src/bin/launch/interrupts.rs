//! Signals and closed output.

use crate::output::Output;
use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupt {
    /// Ctrl-C, SIGTERM, or a terminal that hangs up.
    Interrupted,
    OutputClosed,
}

/// The source of signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The user of a terminal or a pipe.
    Terminal,
    /// `stop`, which may be called twice. The output is a log file.
    Background,
}

pub(crate) struct Interrupts<'a> {
    source: Source,
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
    output: &'a Output,
}

impl<'a> Interrupts<'a> {
    pub(crate) fn watch(output: &'a Output, source: Source) -> io::Result<Self> {
        Ok(Self {
            source,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            output,
        })
    }

    /// Waits for the first one. Cancel-safe.
    pub(crate) async fn first(&mut self) -> Interrupt {
        tokio::select! {
            _ = self.interrupt.recv() => Interrupt::Interrupted,
            _ = self.terminate.recv() => Interrupt::Interrupted,
            _ = self.hang_up.recv() => Interrupt::Interrupted,
            () = self.output.lost(), if self.source == Source::Terminal => Interrupt::OutputClosed,
        }
    }

    /// Waits for another Ctrl-C or, outside of the background, SIGTERM. Ignores SIGHUP, which the kernel and the shell both send when a terminal closes.
    /// Cancel-safe.
    pub(crate) async fn second(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv(), if self.source == Source::Terminal => {}
        }
    }
}
