//! How far it is: a living line on a terminal, plain lines elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use launch::Event;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often the last line of the log is looked at.
const LOOK: Duration = Duration::from_millis(250);
/// How often the elapsed time is drawn.
const TICK: Duration = Duration::from_millis(100);

/// A display of one undertaking.
pub(crate) struct Progress {
    /// Absent where the output is no terminal.
    bar: Option<ProgressBar>,
    start: Instant,
    log: PathBuf,
}

impl Progress {
    /// Begins; `log` is where the guest writes.
    pub(crate) fn new(what: &'static str, log: &Path) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| bar(what));
        Self { bar, start: Instant::now(), log: log.to_path_buf() }
    }

    /// A step of the boot.
    pub(crate) fn event(&self, event: &Event) {
        self.step(&event.to_string());
    }

    /// Something happened: it stays on the screen.
    pub(crate) fn step(&self, text: &str) {
        let line = format!("{:>6.1} s  {text}", self.start.elapsed().as_secs_f64());
        match &self.bar {
            Some(bar) => bar.println(line),
            None => eprintln!("{line}"),
        }
    }

    /// Shows the last line of the log, and never ends.
    pub(crate) async fn follow(&self) {
        let mut looks = tokio::time::interval(LOOK);
        loop {
            looks.tick().await;
            if let Some(bar) = &self.bar {
                // The log is not there before QEMU is.
                let last = qemu::console_tail(&self.log, 1).unwrap_or_default().pop();
                bar.set_message(printable(&last.unwrap_or_default()));
            }
        }
    }

    /// Takes the living line away.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_prefix(what);
    if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} {elapsed_precise}  {wide_msg:.dim}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(TICK);
    bar
}

/// The guest does not control the terminal.
fn printable(line: &str) -> String {
    line.chars().filter(|character| !character.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_line_of_the_guest_moves_the_cursor(line: String) {
            prop_assert!(!printable(&line).contains(|character: char| character.is_control()));
        }
    }
}
