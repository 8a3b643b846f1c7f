//! The one stream of records.

use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tracing::Level;

use crate::console::{self, Console};
use crate::files::Bounds;
use crate::kernel;
use crate::layer::Layer;
use crate::metrics::{Metrics, Reason};
use crate::queue::{Dropped, Queue};
use crate::rate::{Limiter, Rate};
use crate::record::{Origin, Record, escape, uptime};
use crate::redact::redact;
use crate::writer;

/// Somebody who gets every record, without secrets. Must not wait long, nor log by itself.
pub trait Sink: Send + Sync {
    /// One more.
    fn take(&self, record: &Record);
}

/// Why there is no stream.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Two metrics of one name.
    #[error("cannot count what is logged")]
    Metrics(#[from] prometheus::Error),
    /// A thread that writes.
    #[error("cannot start a thread of the log")]
    Thread(#[source] io::Error),
}

/// The log. All clones are the same.
///
/// ```
/// use nodelog::{Origin, Rate, Record, Stream};
/// use tracing::Level;
///
/// let stream = Stream::start(Vec::new(), Rate::default())?;
/// stream.log(Record::now(Level::INFO, Origin::Program("etcd".into()), "ready"));
/// # Ok::<(), nodelog::StartError>(())
/// ```
#[derive(Clone)]
pub struct Stream(Arc<Shared>);

pub(crate) struct Shared {
    sinks: Vec<Box<dyn Sink>>,
    /// If it is shown on one.
    console: OnceLock<Arc<Console>>,
    limiter: Mutex<Limiter>,
    pub(crate) queue: Queue,
    pub(crate) metrics: Metrics,
    /// Disconnected when the thread has ended.
    running: Mutex<Option<Receiver<()>>>,
}

impl Stream {
    /// Begins, with these sinks, and a rate for each who speaks.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(sinks: Vec<Box<dyn Sink>>, rate: Rate) -> Result<Self, StartError> {
        let (runs, running) = mpsc::sync_channel::<()>(0);
        let shared = Arc::new(Shared {
            sinks,
            console: OnceLock::new(),
            limiter: Mutex::new(Limiter::new(rate)),
            queue: Queue::default(),
            metrics: Metrics::new()?,
            running: Mutex::new(Some(running)),
        });
        let its_own = Arc::clone(&shared);
        let run = move || {
            let _runs = runs;
            writer::run(&its_own);
        };
        thread::Builder::new().name("log".into()).spawn(run).map_err(StartError::Thread)?;
        Ok(Self(shared))
    }

    /// Logs a record, unless who said it has said too much.
    pub fn log(&self, record: Record) {
        self.0.log(record);
    }

    /// Shows it on a console from now on, of other programs what is of this level or worse. A second one gets nothing.
    ///
    /// A thread of its own writes, until the machine is off: a console that takes nothing holds nobody up. What it does
    /// not take in time is dropped, counted, and the count is told.
    ///
    /// # Errors
    /// [`StartError::Thread`].
    pub fn show(&self, programs: Level, out: impl Write + Send + 'static) -> Result<(), StartError> {
        let console = Arc::new(Console::new(programs));
        if self.0.console.set(Arc::clone(&console)).is_err() {
            return Ok(());
        }
        let shared = Arc::clone(&self.0);
        let run = move || console::run(&shared, &console, out);
        thread::Builder::new().name("console".into()).spawn(run).map_err(StartError::Thread)?;
        Ok(())
    }

    /// Shows a text on the console as it is, after all that was said before, and without secrets: the last words of a
    /// node, for which there is always room.
    pub fn print(&self, text: &str) {
        let Some(console) = self.0.console.get() else { return };
        for line in redact(text).lines() {
            let mut shown = String::new();
            escape(&mut shown, line);
            console.push_always(&shown);
        }
    }

    /// Waits until the console has all that was said, at most so long; whether it has.
    pub fn wait_for_console(&self, limit: Duration) -> bool {
        self.0.console.get().is_none_or(|console| console.wait(limit))
    }

    /// For [`tracing`].
    pub fn layer(&self) -> Layer {
        Layer::new(self.clone())
    }

    /// Writes into this directory from now on, beginning with what was said before. It has to be there, and nobody else
    /// may write files of such names into it.
    pub fn keep(&self, directory: impl Into<PathBuf>, bounds: Bounds) {
        self.0.queue.place(directory.into(), bounds);
    }

    /// Reads what the kernel says, from the oldest message that it still has. Needs `CAP_SYSLOG` or root.
    ///
    /// # Errors
    /// `/dev/kmsg` cannot be opened, or the thread cannot be started.
    pub fn follow_kernel(&self) -> io::Result<()> {
        kernel::follow(self.clone())
    }

    /// What is counted.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Writes what waits, and closes the file, so that its disk can be unmounted. What is said later goes to the sinks
    /// and the console only. Waits for the disk, and for the console, no longer than `limit`; whether it was enough for
    /// the disk.
    pub fn close(&self, limit: Duration) -> bool {
        let start = Instant::now();
        self.0.queue.close();
        let running = self.0.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        let is_written = running.is_none_or(|running| running.recv_timeout(limit) != Err(RecvTimeoutError::Timeout));
        self.wait_for_console(limit.saturating_sub(start.elapsed()));
        is_written
    }

    pub(crate) fn lost(&self, reason: Reason, count: u64) {
        self.0.metrics.dropped.with_label_values(&[reason.as_str()]).inc_by(count);
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").finish_non_exhaustive()
    }
}

impl Shared {
    fn log(&self, record: Record) {
        let source = record.origin.group();
        let may = {
            let mut limiter = self.limiter.lock().unwrap_or_else(PoisonError::into_inner);
            limiter.take(source, uptime(), record.level <= Level::WARN)
        };
        if may {
            self.emit(record);
        } else {
            self.metrics.suppressed.with_label_values(&[source]).inc();
        }
    }

    /// Whatever the rate is.
    pub(crate) fn emit(&self, record: Record) {
        let record = record.clean();
        if let Some(console) = self.console.get()
            && let Err(Dropped) = console.push(&record)
        {
            self.metrics.dropped.with_label_values(&[Reason::Console.as_str()]).inc();
        }
        self.emit_elsewhere(&record);
    }

    /// To all but the console, which has it.
    pub(crate) fn emit_elsewhere(&self, record: &Record) {
        self.metrics.records.with_label_values(&[record.word()]).inc();
        for sink in &self.sinks {
            sink.take(record);
        }
        if let Err(Dropped) = self.queue.push(record.line()) {
            self.metrics.dropped.with_label_values(&[Reason::Disk.as_str()]).inc();
        }
    }

    /// Who was cut off, if it is time to tell.
    pub(crate) fn tell_suppressed(&self) {
        let told = self.limiter.lock().unwrap_or_else(PoisonError::into_inner).report(uptime());
        for (source, count) in told {
            let text = format!("{count} lines of {source} not logged: too many at once");
            self.emit(Record::now(Level::WARN, Origin::Module(module_path!().into()), text));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;
    use units::Bytes;

    use super::*;
    use crate::kept::Kept;
    use crate::record::Field;
    use crate::redact::REDACTED;

    fn messages(kept: &Kept) -> Vec<String> {
        kept.records().into_iter().map(|record| record.message).collect()
    }

    fn stream(rate: Rate) -> (Stream, Kept) {
        let kept = Kept::default();
        (Stream::start(vec![Box::new(kept.clone())], rate).unwrap(), kept)
    }

    fn said(message: &str) -> Record {
        Record::now(Level::INFO, Origin::Program("kubelet".to_owned()), message)
    }

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn what_is_said_before_the_disk_is_there_is_written_when_it_is() {
        let scratch = tempfile::tempdir().unwrap();
        let (stream, _) = stream(Rate::default());
        stream.log(said("early"));
        stream.keep(scratch.path(), Bounds::within(Bytes::MIB));
        stream.log(said("late"));
        assert!(stream.close(LIMIT));
        stream.log(said("too late"));
        let text = fs::read_to_string(scratch.path().join("00000000.jsonl")).unwrap();
        let found: Vec<String> = text
            .lines()
            .map(|line| {
                serde_json::from_str::<serde_json::Value>(line).unwrap()["message"].as_str().unwrap().to_owned()
            })
            .collect();
        assert_eq!(found, ["early", "late"]);
        assert_eq!(stream.metrics().written.get(), text.len() as u64);
    }

    #[test]
    fn without_a_disk_the_end_does_not_wait() {
        let (stream, kept) = stream(Rate::default());
        stream.log(said("x"));
        assert!(stream.close(LIMIT));
        assert_eq!(messages(&kept), ["x"]);
    }

    #[test]
    fn who_says_too_much_is_cut_off_and_that_is_told() {
        let (stream, kept) = stream(Rate { burst: 8, per_second: 0, window: Duration::ZERO });
        for number in 0..100 {
            stream.log(said(&number.to_string()));
        }
        // The thread looks once more before it ends, if it has not told yet.
        assert!(stream.close(LIMIT));
        let messages = messages(&kept);
        assert_eq!(messages[..6], ["0", "1", "2", "3", "4", "5"]);
        let told: u64 = messages[6..]
            .iter()
            .map(|message| message.strip_suffix(" lines of kubelet not logged: too many at once").unwrap())
            .map(|count| count.parse::<u64>().unwrap())
            .sum();
        assert_eq!(told, 94);
        assert_eq!(stream.metrics().suppressed.with_label_values(&["kubelet"]).get(), 94);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn no_sink_and_no_file_sees_a_secret(before in ".{0,30}", secret in "eyJ[A-Za-z0-9]{20}\\.[A-Za-z0-9]{30}") {
            let scratch = tempfile::tempdir().unwrap();
            let (stream, kept) = stream(Rate::default());
            stream.keep(scratch.path(), Bounds::within(Bytes::MIB));
            let text = format!("{before}{secret}");
            let field: Field = ("error".into(), text.clone());
            stream.log(Record { fields: vec![field], ..said(&text) });
            prop_assert!(stream.close(LIMIT));
            let written = fs::read_to_string(scratch.path().join("00000000.jsonl")).unwrap();
            prop_assert!(!written.contains(&secret) && written.contains(REDACTED));
            let shown = kept.records()[0].display();
            prop_assert!(!shown.contains(&secret), "{}", shown);
        }
    }
}
