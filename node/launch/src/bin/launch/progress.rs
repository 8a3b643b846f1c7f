//! Progress: live lines on a terminal, otherwise plain lines.

use crate::output::Output;
use cluster::announcement::StageState;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use launch::{Event, Unfinished};
use std::cell::{OnceCell, RefCell};
use std::convert::Infallible;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_millis(250);
const TICK: Duration = Duration::from_millis(100);

pub(crate) struct Progress<'a> {
    /// `None` if standard error is not a terminal with a cursor.
    display: Option<MultiProgress>,
    output: &'a Output,
    start: Instant,
    lanes: Vec<Lane>,
}

struct Lane {
    node: String,
    log: PathBuf,
    /// Progress bar, created with the first text.
    bar: OnceCell<ProgressBar>,
    unfinished: RefCell<Unfinished>,
}

impl<'a> Progress<'a> {
    pub(crate) fn new(output: &'a Output, nodes: Vec<(String, PathBuf)>) -> Self {
        // The display writes nothing if it cannot draw: `TERM` may be `dumb` or unset.
        let display = Some(MultiProgress::with_draw_target(ProgressDrawTarget::stderr()));
        let display = display.filter(|display| !display.is_hidden());
        let lane = |(node, log)| Lane { node, log, bar: OnceCell::new(), unfinished: RefCell::default() };
        let lanes = nodes.into_iter().map(lane).collect();
        Self { display, output, start: Instant::now(), lanes }
    }

    /// Shows an event of a node. A started stage stays visible until it ends.
    pub(crate) fn event(&self, node: &str, event: &Event) {
        let Some(lane) = self.lanes.iter().find(|lane| lane.node == node) else { return };
        let mut unfinished = lane.unfinished.borrow_mut();
        unfinished.note(event);
        self.draw(lane, &self.of_node(lane, &unfinished.to_string()));
        if !matches!(event, Event::Stage { state: StageState::Started, .. }) {
            self.step(&self.of_node(lane, &event.to_string()));
        }
    }

    pub(crate) fn show(&self, text: &str) {
        for (index, lane) in self.lanes.iter().enumerate() {
            if index == 0 {
                self.draw(lane, text);
            } else if lane.bar.get().is_some() {
                self.draw(lane, &lane.node);
            }
        }
    }

    pub(crate) fn step(&self, text: &str) {
        self.print_error(&format!("{:>6.1} s  {}", self.start.elapsed().as_secs_f64(), printable(text)));
    }

    /// Prints lines above the live ones.
    pub(crate) fn print_error(&self, text: &str) {
        match &self.display {
            // Ignore errors: printing the result detects a closed output.
            Some(display) => _ = display.println(text),
            None => self.output.print_error(text),
        }
    }

    /// Prints a line of the result above the live ones, which would overwrite it.
    pub(crate) fn print(&self, text: &str) {
        match &self.display {
            // `suspend` would panic if the terminal is closed.
            Some(display) => _ = display.println(text),
            None => self.output.print(text),
        }
    }

    /// Shows the last line of each log. Never returns.
    pub(crate) async fn follow(&self) -> Infallible {
        let mut ticks = tokio::time::interval(INTERVAL);
        loop {
            ticks.tick().await;
            for lane in &self.lanes {
                if let Some(bar) = lane.bar.get() {
                    // The log does not exist before QEMU starts.
                    let last = qemu::console_tail(&lane.log, 1).unwrap_or_default().pop();
                    bar.set_message(printable(&last.unwrap_or_default()));
                }
            }
        }
    }

    /// Prefixes the text with the name of the node if there are several nodes.
    fn of_node(&self, lane: &Lane, text: &str) -> String {
        match self.lanes.iter().map(|lane| lane.node.len()).max() {
            Some(width) if self.lanes.len() > 1 => format!("{:width$}  {text}", lane.node),
            _ => text.to_owned(),
        }
    }

    fn draw(&self, lane: &Lane, text: &str) {
        if let Some(display) = &self.display {
            let bar = lane.bar.get_or_init(|| {
                let bar = display.add(bar(self.start.elapsed()));
                bar.enable_steady_tick(TICK);
                bar
            });
            bar.set_prefix(printable(text));
        }
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        for bar in self.lanes.iter().filter_map(|lane| lane.bar.get()) {
            bar.finish_and_clear();
        }
    }
}

fn bar(elapsed: Duration) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()).with_elapsed(elapsed);
    match ProgressStyle::with_template("{spinner} {elapsed:>6}  {prefix}\n          {wide_msg:.dim}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn printable(line: &str) -> String {
    line.chars().filter(|character| !character.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines_of(nodes: &[&str]) -> Vec<String> {
        let output = Output::new();
        let progress = Progress::new(&output, nodes.iter().map(|name| ((*name).to_owned(), PathBuf::new())).collect());
        progress.lanes.iter().map(|lane| progress.of_node(lane, "etcd: ready")).collect()
    }

    #[test]
    fn lines_of_clusters_have_names_of_nodes() {
        assert_eq!(lines_of(&["granary"]), ["etcd: ready"]);
        assert_eq!(lines_of(&["granary", "granary-1"]), ["granary    etcd: ready", "granary-1  etcd: ready"]);
    }

    proptest! {
        #[test]
        fn lines_have_no_control_characters(line: String) {
            prop_assert!(!printable(&line).contains(|character: char| character.is_control()));
        }
    }
}
