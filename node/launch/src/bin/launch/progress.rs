//! How far it is: living lines on a terminal, plain ones elsewhere.

use crate::output::Output;
use announce::StageState;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use launch::{Event, Unfinished};
use std::cell::RefCell;
use std::convert::Infallible;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often the last line of the log is looked at.
const LOOK: Duration = Duration::from_millis(250);
/// How often the elapsed time is drawn.
const TICK: Duration = Duration::from_millis(100);

/// A display of all that happens, with one clock.
pub(crate) struct Progress<'a> {
    /// Absent where standard error is no terminal.
    bar: Option<ProgressBar>,
    output: &'a Output,
    start: Instant,
    log: PathBuf,
    unfinished: RefCell<Unfinished>,
}

impl<'a> Progress<'a> {
    /// Begins; `log` is where the guest writes.
    pub(crate) fn new(output: &'a Output, log: &Path) -> Self {
        let bar = std::io::stderr().is_terminal().then(bar);
        let unfinished = RefCell::default();
        Self { bar, output, start: Instant::now(), log: log.to_path_buf(), unfinished }
    }

    /// A step of the boot. What begins is shown as long as it lasts.
    pub(crate) fn event(&self, event: &Event) {
        let mut unfinished = self.unfinished.borrow_mut();
        unfinished.note(event);
        self.doing(&unfinished.to_string());
        if !matches!(event, Event::Stage { state: StageState::Started, .. }) {
            self.step(&event.to_string());
        }
    }

    /// What goes on now.
    pub(crate) fn doing(&self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_prefix(printable(text));
        }
    }

    /// Something happened: it stays on the screen.
    pub(crate) fn step(&self, text: &str) {
        let line = format!("{:>6.1} s  {}", self.start.elapsed().as_secs_f64(), printable(text));
        match &self.bar {
            Some(bar) => bar.println(line),
            None => self.output.tell(&line),
        }
    }

    /// Shows the last line of the log, and never ends.
    pub(crate) async fn follow(&self) -> Infallible {
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
}

/// Takes the living lines away.
impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed:>6}  {prefix}\n          {wide_msg:.dim}") {
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
