//! How far it is: living lines on a terminal, plain ones elsewhere.

use crate::output::Output;
use cluster::announcement::StageState;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use launch::{Event, Unfinished};
use std::cell::{OnceCell, RefCell};
use std::convert::Infallible;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How often the last line of each log is looked at.
const LOOK: Duration = Duration::from_millis(250);
/// How often the elapsed time is drawn.
const TICK: Duration = Duration::from_millis(100);

/// A display of all that happens, with one clock.
pub(crate) struct Progress<'a> {
    /// Absent where standard error is no terminal, or one without a cursor.
    display: Option<MultiProgress>,
    output: &'a Output,
    start: Instant,
    lanes: Vec<Lane>,
}

/// What is shown of one node.
struct Lane {
    node: String,
    /// Where the guest writes.
    log: PathBuf,
    /// From its first event on; the first node has it from the beginning.
    bar: OnceCell<ProgressBar>,
    unfinished: RefCell<Unfinished>,
}

impl<'a> Progress<'a> {
    /// Begins, with the nodes' names and logs.
    pub(crate) fn new(output: &'a Output, nodes: Vec<(String, PathBuf)>) -> Self {
        // Where it cannot draw it writes nothing at all: `TERM` may be `dumb`, or unset.
        let display = Some(MultiProgress::with_draw_target(ProgressDrawTarget::stderr()));
        let display = display.filter(|display| !display.is_hidden());
        let lane = |(node, log)| Lane { node, log, bar: OnceCell::new(), unfinished: RefCell::default() };
        let lanes = nodes.into_iter().map(lane).collect();
        Self { display, output, start: Instant::now(), lanes }
    }

    /// A step of a node's boot. What begins is shown as long as it lasts.
    pub(crate) fn event(&self, node: &str, event: &Event) {
        let Some(lane) = self.lanes.iter().find(|lane| lane.node == node) else { return };
        let mut unfinished = lane.unfinished.borrow_mut();
        unfinished.note(event);
        self.draw(lane, &self.of_node(lane, &unfinished.to_string()));
        if !matches!(event, Event::Stage { state: StageState::Started, .. }) {
            self.step(&self.of_node(lane, &event.to_string()));
        }
    }

    /// What goes on now, with all nodes.
    pub(crate) fn doing(&self, text: &str) {
        for (index, lane) in self.lanes.iter().enumerate() {
            if index == 0 {
                self.draw(lane, text);
            } else if lane.bar.get().is_some() {
                self.draw(lane, &lane.node);
            }
        }
    }

    /// Something happened: it stays on the screen.
    pub(crate) fn step(&self, text: &str) {
        self.tell(&format!("{:>6.1} s  {}", self.start.elapsed().as_secs_f64(), printable(text)));
    }

    /// Lines about how it goes, or went wrong, above the living ones.
    pub(crate) fn tell(&self, text: &str) {
        match &self.display {
            // A terminal that cannot be written to is noticed by the lines of the result.
            Some(display) => _ = display.println(text),
            None => self.output.tell(text),
        }
    }

    /// A line of the result, above the living ones: one written between them is gone when they are drawn again.
    pub(crate) fn say(&self, text: &str) {
        match &self.display {
            // As with a step; `suspend` would panic where the terminal is gone.
            Some(display) => _ = display.println(text),
            None => self.output.say(text),
        }
    }

    /// Shows the last line of each log, and never ends.
    pub(crate) async fn follow(&self) -> Infallible {
        let mut looks = tokio::time::interval(LOOK);
        loop {
            looks.tick().await;
            for lane in &self.lanes {
                if let Some(bar) = lane.bar.get() {
                    // The log is not there before QEMU is.
                    let last = qemu::console_tail(&lane.log, 1).unwrap_or_default().pop();
                    bar.set_message(printable(&last.unwrap_or_default()));
                }
            }
        }
    }

    /// A text about one node. A node without others needs no name.
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

/// Takes the living lines away.
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

/// The guest does not control the terminal.
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
    fn lines_name_their_node_where_there_are_several() {
        assert_eq!(lines_of(&["granary"]), ["etcd: ready"]);
        assert_eq!(lines_of(&["granary", "granary-1"]), ["granary    etcd: ready", "granary-1  etcd: ready"]);
    }

    proptest! {
        #[test]
        fn no_line_of_the_guest_moves_the_cursor(line: String) {
            prop_assert!(!printable(&line).contains(|character: char| character.is_control()));
        }
    }
}
