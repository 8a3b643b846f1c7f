//! Console output: records as text lines, and the thread that writes them.

use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::Level;

use crate::queue::Dropped;
use crate::record::{Origin, Record};
use crate::shared::Shared;

/// Capacity of the queue in bytes: the output of a serial line of 115,200 baud in six seconds. A longer line is
/// accepted if the queue is empty.
const MOST: usize = 64 << 10;

/// Queue between the threads that log, which never wait, and the thread that writes. A terminal may block writes, for
/// example after Ctrl-S; only the writing thread blocks then.
#[derive(Debug)]
pub(crate) struct Console {
    /// Minimum level for records of other programs, because a serial console is slow.
    programs: Level,
    state: Mutex<Backlog>,
    /// Notified when text is queued and when the queue becomes empty.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Backlog {
    text: Vec<u8>,
    dropped: u64,
    /// For each gap in the text, the record that reports it.
    gaps: Vec<Record>,
    is_writing: bool,
}

impl Backlog {
    fn add(&mut self, line: &str) {
        self.text.extend_from_slice(line.as_bytes());
        self.text.push(b'\n');
    }

    /// Ends a gap before the next line that is queued.
    fn end_gap(&mut self) {
        let missing = std::mem::take(&mut self.dropped);
        if missing > 0 {
            let text = format!("{missing} records before this one are not on the console");
            let gap = Record::now(Level::WARN, Origin::Module(module_path!().into()), text);
            self.add(&gap.display());
            self.gaps.push(gap);
        }
    }
}

impl Console {
    pub(crate) fn new(programs: Level) -> Self {
        Self { programs, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Queues a record if the console shows its level. Drops the record if the queue is full.
    pub(crate) fn push(&self, record: &Record) -> Result<(), Dropped> {
        if !self.shows(record) {
            return Ok(());
        }
        let line = record.display();
        let mut state = self.state();
        // After one dropped record, drop all until the thread takes the queue, so that there is one gap.
        if state.dropped > 0 || !state.text.is_empty() && state.text.len() + line.len() > MOST {
            state.dropped += 1;
            return Err(Dropped);
        }
        state.add(&line);
        self.changed.notify_all();
        Ok(())
    }

    pub(crate) fn push_always(&self, line: &str) {
        let mut state = self.state();
        state.end_gap();
        state.add(line);
        self.changed.notify_all();
    }

    /// Waits until all lines are written, at most for `limit`; returns `false` after the limit.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        let busy = |state: &mut Backlog| state.is_writing || !state.text.is_empty();
        let waited = self.changed.wait_timeout_while(self.state(), limit, busy);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Waits for text and takes it with its gaps. Call [`written`](Self::written) afterwards.
    fn take(&self) -> (Vec<u8>, Vec<Record>) {
        let empty = |state: &mut Backlog| state.text.is_empty();
        let mut state = self.changed.wait_while(self.state(), empty).unwrap_or_else(PoisonError::into_inner);
        state.end_gap();
        state.is_writing = true;
        (std::mem::take(&mut state.text), std::mem::take(&mut state.gaps))
    }

    fn written(&self) {
        self.state().is_writing = false;
        self.changed.notify_all();
    }

    fn shows(&self, record: &Record) -> bool {
        match record.origin {
            Origin::Module(_) => true,
            Origin::Program(_) => record.level <= self.programs,
            // The kernel writes its messages to the console itself, by its parameter `loglevel=`.
            Origin::Kernel | Origin::Kmsg => false,
        }
    }

    fn state(&self) -> MutexGuard<'_, Backlog> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs until the machine is off.
pub(crate) fn run(shared: &Shared, console: &Console, mut out: impl Write) {
    loop {
        let (text, gaps) = console.take();
        for gap in &gaps {
            shared.emit_elsewhere(gap);
        }
        // A failure of the console cannot be reported on the console.
        let _ = out.write_all(&text).and_then(|()| out.flush());
        console.written();
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use cluster::Rate;

    use super::*;
    use crate::fake_sink::FakeSink;
    use crate::limiter::SourceLimit;
    use crate::metrics::Reason;
    use crate::stream::Stream;

    const LIMIT: Duration = Duration::from_secs(60);

    /// More than twice the capacity of the queue, because the thread may take the queue when it is nearly full.
    const MANY: u64 = 20_000;

    const ALL: SourceLimit =
        SourceLimit { rate: Rate { burst: u32::MAX, per_second: 1000 }, window: Duration::from_secs(10) };

    /// A terminal that can block writes. Clones share it.
    #[derive(Clone, Default)]
    struct FakeTerminal(Arc<(Mutex<Screen>, Condvar)>);

    #[derive(Default)]
    struct Screen {
        text: Vec<u8>,
        is_stopped: bool,
    }

    impl FakeTerminal {
        fn stopped() -> Self {
            let terminal = Self::default();
            terminal.stop(true);
            terminal
        }

        fn stop(&self, is_stopped: bool) {
            self.0.0.lock().unwrap().is_stopped = is_stopped;
            self.0.1.notify_all();
        }

        fn lines(&self) -> Vec<String> {
            let screen = self.0.0.lock().unwrap();
            str::from_utf8(&screen.text).unwrap().lines().map(str::to_owned).collect()
        }
    }

    impl Write for FakeTerminal {
        /// Writes only a part, like a terminal.
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            let mut screen = self.0.1.wait_while(self.0.0.lock().unwrap(), |screen| screen.is_stopped).unwrap();
            let taken = text.len().min(1000);
            screen.text.extend_from_slice(&text[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn stream(terminal: &FakeTerminal) -> Stream {
        let stream = Stream::start(Vec::new(), ALL).unwrap();
        stream.show(Level::INFO, vec![Box::new(terminal.clone())]).unwrap();
        stream
    }

    fn say(stream: &Stream, message: impl Into<String>) {
        stream.log(Record::now(Level::INFO, Origin::Module("csi".into()), message));
    }

    /// Messages of lines, without time and level.
    fn said(lines: &[String]) -> Vec<&str> {
        lines.iter().map(|line| line.split_once("INFO ").map_or(line.as_str(), |(_, said)| said)).collect()
    }

    fn gap(line: &str) -> Option<u64> {
        let said = line.rsplit_once("WARN ").map_or(line, |(_, said)| said);
        said.strip_suffix(" records before this one are not on the console")?.parse().ok()
    }

    fn dropped(stream: &Stream) -> u64 {
        stream.metrics().dropped.with_label_values(&[Reason::Console.as_str()]).get()
    }

    #[test]
    fn the_console_filters_programs_by_level_and_omits_the_kernel() {
        let console = Console::new(Level::WARN);
        let shows = |level, origin| console.shows(&Record::now(level, origin, "x"));
        assert!(shows(Level::DEBUG, Origin::Module("csi".into())));
        assert!(shows(Level::WARN, Origin::Program("etcd".to_owned())));
        assert!(!shows(Level::INFO, Origin::Program("etcd".to_owned())));
        assert!(!shows(Level::ERROR, Origin::Kernel));
        assert!(!shows(Level::ERROR, Origin::Kmsg));
    }

    #[test]
    fn a_blocked_terminal_blocks_no_logger_and_gaps_are_reported() {
        let terminal = FakeTerminal::stopped();
        let stream = stream(&terminal);
        for number in 0..MANY {
            say(&stream, number.to_string());
        }
        assert!(terminal.lines().is_empty());
        let missing = dropped(&stream);
        assert!(missing > 0);

        terminal.stop(false);
        assert!(stream.wait_for_console(LIMIT));
        let lines = terminal.lines();
        let (mut next, mut reported) = (0, 0);
        for line in said(&lines) {
            let gap = gap(line).inspect(|gap| reported += gap);
            assert!(gap.is_some() || line == next.to_string(), "{line} instead of {next}");
            next += gap.unwrap_or(1);
        }
        assert_eq!((next, reported), (MANY, missing));

        say(&stream, "later");
        assert!(stream.wait_for_console(LIMIT));
        assert_eq!(said(&terminal.lines()).last(), Some(&"later"));
        assert_eq!(dropped(&stream), missing);
    }

    #[test]
    fn close_waits_for_the_console_up_to_the_limit() {
        let terminal = FakeTerminal::stopped();
        let stream = stream(&terminal);
        say(&stream, "last");
        assert!(!stream.wait_for_console(Duration::from_millis(10)));

        terminal.stop(false);
        assert!(stream.close(LIMIT));
        assert_eq!(said(&terminal.lines()), ["last"]);
    }

    #[test]
    fn printed_text_is_always_shown_without_secrets() {
        let terminal = FakeTerminal::stopped();
        let stream = stream(&terminal);
        for number in 0..MANY {
            say(&stream, number.to_string());
        }
        stream.print("error: no disk\u{1b}[2J\ncaused by: token abcdef.0123456789abcdef");
        terminal.stop(false);
        assert!(stream.wait_for_console(LIMIT));
        let lines = terminal.lines();
        assert!(lines.contains(&r"error: no disk\u{1b}[2J".to_owned()));
        assert!(lines.contains(&"caused by: token REDACTED".to_owned()));
    }

    fn record(length: usize) -> Record {
        Record::now(Level::INFO, Origin::Module("csi".into()), "x".repeat(length))
    }

    #[test]
    fn a_line_of_any_length_fits_into_an_empty_queue() {
        let console = Console::new(Level::INFO);
        assert!(console.push(&record(2 * MOST)).is_ok());
        assert!(console.push(&record(1)).is_err());
        let (text, gaps) = console.take();
        assert!(text.len() > 2 * MOST);
        assert_eq!(gaps.len(), 1);
        assert!(console.push(&record(1)).is_ok());
    }

    #[test]
    fn each_gap_is_reported_at_its_place() {
        let console = Console::new(Level::INFO);
        let fill = |missing| {
            console.push(&record(MOST)).unwrap();
            assert!((0..missing).all(|_| console.push(&record(1)).is_err()));
        };
        fill(2);
        let (first, reported) = console.take();
        // The first text is being written.
        fill(3);
        console.push_always("last words");
        assert!(console.push(&record(1)).is_err());
        let (second, reported_later) = console.take();

        let texts = [first, second].map(|text| String::from_utf8(text).unwrap());
        let lines = texts.iter().flat_map(|text| text.lines());
        let shown: Vec<_> = lines.map(|line| (gap(line), line.ends_with('x'))).collect();
        let (full, last) = ((None, true), (None, false));
        assert_eq!(shown, [full, (Some(2), false), full, (Some(3), false), last, (Some(1), false)]);
        assert_eq!([reported.len(), reported_later.len()], [1, 2]);
    }

    #[test]
    fn a_gap_of_the_console_is_reported_in_the_log() {
        let terminal = FakeTerminal::stopped();
        let kept = FakeSink::default();
        let stream = Stream::start(vec![Box::new(kept.clone())], ALL).unwrap();
        stream.show(Level::INFO, vec![Box::new(terminal.clone())]).unwrap();
        for number in 0..MANY {
            say(&stream, number.to_string());
        }
        terminal.stop(false);
        assert!(stream.wait_for_console(LIMIT));
        let reported: u64 = kept.records().iter().filter_map(|record| gap(&record.message)).sum();
        assert_eq!(reported, dropped(&stream));
        assert!(reported > 0);
    }
}
