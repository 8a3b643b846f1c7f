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

/// Sender of the signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The user of a terminal or a pipe.
    Terminal,
    /// The user of a terminal or a pipe, or `stop`, which may be called twice.
    KeptTerminal,
    /// The command `stop`. The output is a log file.
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

    /// Waits for the first interrupt. Cancel-safe.
    pub(crate) async fn first(&mut self) -> Interrupt {
        tokio::select! {
            _ = self.interrupt.recv() => Interrupt::Interrupted,
            _ = self.terminate.recv() => Interrupt::Interrupted,
            _ = self.hang_up.recv() => Interrupt::Interrupted,
            () = self.output.lost(), if self.source != Source::Background => Interrupt::OutputClosed,
        }
    }

    /// Waits for another Ctrl-C, or for another SIGTERM if `stop` does not send it. Ignores SIGHUP, which the kernel
    /// and the shell both send when a terminal closes. Cancel-safe.
    pub(crate) async fn second(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv(), if self.source == Source::Terminal => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::{Signal, raise};
    use std::time::Duration;
    use tokio::time::timeout;

    /// Regression test: the second `stop` of a cluster in the foreground cut the power of its nodes.
    #[tokio::test]
    async fn a_second_stop_does_not_cut_the_power() {
        let output = Output::new();
        for (source, cuts) in [(Source::Terminal, true), (Source::KeptTerminal, false), (Source::Background, false)] {
            let mut interrupts = Interrupts::watch(&output, source).unwrap();
            // The runtime handles the signal, so the signal does not end the test.
            raise(Signal::SIGTERM).unwrap();
            assert_eq!(interrupts.first().await, Interrupt::Interrupted);
            raise(Signal::SIGTERM).unwrap();
            let second = timeout(Duration::from_millis(300), interrupts.second()).await;
            assert_eq!(second.is_ok(), cuts, "{source:?}");
        }
    }
}
