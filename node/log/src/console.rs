//! The log as lines for a person, and the thread that writes them.

use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::Level;

use crate::queue::Dropped;
use crate::record::{Origin, Record};
use crate::stream::Shared;

/// Bytes that wait: what a serial line of 115,200 baud takes in six seconds. A longer line fits if no other waits.
const MOST: usize = 64 << 10;

/// Between those who log, which never wait here, and the thread that writes. A terminal takes nothing while it is
/// stopped (Ctrl-S), or its line is held up: only the thread stands still then.
#[derive(Debug)]
pub(crate) struct Console {
    /// From which level on other programs are heard: a serial console is slow, and they have much to say.
    programs: Level,
    state: Mutex<State>,
    /// Something waits, or nothing does any more.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    text: Vec<u8>,
    /// Records that belong after the text, and had no room.
    dropped: u64,
    /// Of each gap in the text, the record that stands there for what is missing.
    gaps: Vec<Record>,
    is_writing: bool,
}

impl State {
    fn add(&mut self, line: &str) {
        self.text.extend_from_slice(line.as_bytes());
        self.text.push(b'\n');
    }

    /// What comes next has room, or is written whether it has any.
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

    /// Shows a record if it is one for the console, or drops it and says so.
    pub(crate) fn push(&self, record: &Record) -> Result<(), Dropped> {
        if !self.shows(record) {
            return Ok(());
        }
        let line = record.display();
        let mut state = self.state();
        // Once one is dropped the others are as well, until the thread takes what waits: a gap has one place.
        if state.dropped > 0 || !state.text.is_empty() && state.text.len() + line.len() > MOST {
            state.dropped += 1;
            return Err(Dropped);
        }
        state.add(&line);
        self.changed.notify_all();
        Ok(())
    }

    /// Shows a line, however much waits.
    pub(crate) fn push_always(&self, line: &str) {
        let mut state = self.state();
        state.end_gap();
        state.add(line);
        self.changed.notify_all();
    }

    /// Waits until all is written, at most so long; whether it is.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        let busy = |state: &mut State| state.is_writing || !state.text.is_empty();
        let waited = self.changed.wait_timeout_while(self.state(), limit, busy);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// What waits, with the gaps in it. Waits for it; it is [`written`](Self::written) next.
    fn take(&self) -> (Vec<u8>, Vec<Record>) {
        let empty = |state: &mut State| state.text.is_empty();
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
            // The kernel prints its messages there itself, as `loglevel=` of its command line says.
            Origin::Kernel | Origin::Kmsg => false,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Until the machine is off.
pub(crate) fn run(shared: &Shared, console: &Console, mut out: impl Write) {
    loop {
        let (text, gaps) = console.take();
        for gap in &gaps {
            shared.emit_elsewhere(gap);
        }
        // There is nobody to tell that the console is gone.
        let _ = out.write_all(&text).and_then(|()| out.flush());
        console.written();
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use super::*;
    use crate::kept::Kept;
    use crate::metrics::Reason;
    use crate::rate::Rate;
    use crate::stream::Stream;

    const LIMIT: Duration = Duration::from_secs(60);

    /// Lines that fill the queue twice: the thread may have taken it when it was nearly full.
    const MANY: u64 = 20_000;

    /// Nobody is cut off.
    const ALL: Rate = Rate { burst: u32::MAX, per_second: 1000, window: Duration::from_secs(10) };

    /// A terminal that takes nothing while it is stopped. All clones are the same.
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
        /// As a terminal: a part of it.
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
        stream.show(Level::INFO, terminal.clone()).unwrap();
        stream
    }

    fn say(stream: &Stream, message: impl Into<String>) {
        stream.log(Record::now(Level::INFO, Origin::Module("csi".into()), message));
    }

    /// What is said in the lines, without the time and level before.
    fn said(lines: &[String]) -> Vec<&str> {
        lines.iter().map(|line| line.split_once("INFO ").map_or(line.as_str(), |(_, said)| said)).collect()
    }

    /// How many records are missing, if that is what is said.
    fn gap(line: &str) -> Option<u64> {
        let said = line.rsplit_once("WARN ").map_or(line, |(_, said)| said);
        said.strip_suffix(" records before this one are not on the console")?.parse().ok()
    }

    fn dropped(stream: &Stream) -> u64 {
        stream.metrics().dropped.with_label_values(&[Reason::Console.as_str()]).get()
    }

    #[test]
    fn programs_are_heard_from_a_level_on_and_the_kernel_speaks_for_itself() {
        let console = Console::new(Level::WARN);
        let shows = |level, origin| console.shows(&Record::now(level, origin, "x"));
        assert!(shows(Level::DEBUG, Origin::Module("csi".into())));
        assert!(shows(Level::WARN, Origin::Program("etcd".to_owned())));
        assert!(!shows(Level::INFO, Origin::Program("etcd".to_owned())));
        assert!(!shows(Level::ERROR, Origin::Kernel));
        assert!(!shows(Level::ERROR, Origin::Kmsg));
    }

    #[test]
    fn a_stopped_terminal_stops_nobody_and_when_it_goes_on_it_is_told_what_is_missing() {
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
        let (mut next, mut told) = (0, 0);
        for line in said(&lines) {
            let gap = gap(line).inspect(|gap| told += gap);
            assert!(gap.is_some() || line == next.to_string(), "{line} instead of {next}");
            next += gap.unwrap_or(1);
        }
        assert_eq!((next, told), (MANY, missing));

        say(&stream, "later");
        assert!(stream.wait_for_console(LIMIT));
        assert_eq!(said(&terminal.lines()).last(), Some(&"later"));
        assert_eq!(dropped(&stream), missing);
    }

    #[test]
    fn the_end_waits_for_the_console_as_long_as_it_may() {
        let terminal = FakeTerminal::stopped();
        let stream = stream(&terminal);
        say(&stream, "last");
        assert!(!stream.wait_for_console(Duration::from_millis(10)));

        terminal.stop(false);
        assert!(stream.close(LIMIT));
        assert_eq!(said(&terminal.lines()), ["last"]);
    }

    #[test]
    fn last_words_are_shown_whatever_waits_without_time_and_secrets() {
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
    fn one_line_of_any_length_fits_if_none_waits() {
        let console = Console::new(Level::INFO);
        assert!(console.push(&record(2 * MOST)).is_ok());
        assert!(console.push(&record(1)).is_err());
        let (text, gaps) = console.take();
        assert!(text.len() > 2 * MOST);
        assert_eq!(gaps.len(), 1);
        assert!(console.push(&record(1)).is_ok());
    }

    #[test]
    fn every_gap_is_told_where_it_is() {
        let console = Console::new(Level::INFO);
        let fill = |missing| {
            console.push(&record(MOST)).unwrap();
            assert!((0..missing).all(|_| console.push(&record(1)).is_err()));
        };
        fill(2);
        let (first, told) = console.take();
        // While that is written:
        fill(3);
        console.push_always("last words");
        assert!(console.push(&record(1)).is_err());
        let (second, told_later) = console.take();

        let texts = [first, second].map(|text| String::from_utf8(text).unwrap());
        let lines = texts.iter().flat_map(|text| text.lines());
        let shown: Vec<_> = lines.map(|line| (gap(line), line.ends_with('x'))).collect();
        let (full, last) = ((None, true), (None, false));
        assert_eq!(shown, [full, (Some(2), false), full, (Some(3), false), last, (Some(1), false)]);
        assert_eq!([told.len(), told_later.len()], [1, 2]);
    }

    #[test]
    fn a_gap_of_the_console_is_in_the_rest_of_the_log() {
        let terminal = FakeTerminal::stopped();
        let kept = Kept::default();
        let stream = Stream::start(vec![Box::new(kept.clone())], ALL).unwrap();
        stream.show(Level::INFO, terminal.clone()).unwrap();
        for number in 0..MANY {
            say(&stream, number.to_string());
        }
        terminal.stop(false);
        assert!(stream.wait_for_console(LIMIT));
        let told: u64 = kept.records().iter().filter_map(|record| gap(&record.message)).sum();
        assert_eq!(told, dropped(&stream));
        assert!(told > 0);
    }
}
