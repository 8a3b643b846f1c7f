//! [`Stream`].

use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tracing::Level;

use crate::console::{self, Console};
use crate::files::Bounds;
use crate::limiter::SourceLimit;
use crate::metrics::{Metrics, Reason};
use crate::record::{Record, escape};
use crate::redact::redact;
use crate::shared::{Shared, Sink};
use crate::writer;

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot create the metrics of the log")]
    Metrics(#[from] prometheus::Error),
    #[error("cannot start a log thread")]
    Thread(#[source] io::Error),
}

/// The log. Clones share it.
///
/// ```
/// use nodelog::{Origin, Record, SourceLimit, Stream};
/// use tracing::Level;
///
/// let stream = Stream::start(Vec::new(), SourceLimit::default())?;
/// stream.log(Record::now(Level::INFO, Origin::Program("etcd".into()), "ready"));
/// # Ok::<(), nodelog::StartError>(())
/// ```
#[derive(Clone)]
pub struct Stream(Arc<Shared>);

impl Stream {
    /// Starts the stream with these sinks and a limit for each source.
    pub fn start(sinks: Vec<Box<dyn Sink>>, limit: SourceLimit) -> Result<Self, StartError> {
        let (runs, running) = mpsc::sync_channel::<()>(0);
        let shared = Arc::new(Shared::new(sinks, limit, Metrics::new()?, running));
        let its_own = Arc::clone(&shared);
        let run = move || {
            let _runs = runs;
            writer::run(&its_own);
        };
        thread::Builder::new().name("log".into()).spawn(run).map_err(StartError::Thread)?;
        Ok(Self(shared))
    }

    /// Logs a record, unless its source exceeds its limit.
    pub fn log(&self, record: Record) {
        self.0.log(record);
    }

    /// Also writes the records to consoles. Records of other programs appear only from level `programs` on. Only the
    /// first call has an effect.
    ///
    /// Each console has a thread that writes until the machine is off, so a blocked console blocks neither logging nor
    /// another console. Records beyond the capacity of its queue are dropped, counted and reported.
    pub fn show(&self, programs: Level, outputs: Vec<Box<dyn Write + Send>>) -> Result<(), StartError> {
        let consoles: Vec<_> = outputs.iter().map(|_| Arc::new(Console::new(programs))).collect();
        if self.0.consoles.set(consoles.clone()).is_err() {
            return Ok(());
        }
        for (console, out) in consoles.into_iter().zip(outputs) {
            let shared = Arc::clone(&self.0);
            let run = move || console::run(&shared, &console, out);
            thread::Builder::new().name("console".into()).spawn(run).map_err(StartError::Thread)?;
        }
        Ok(())
    }

    /// Writes the last message of a node to the consoles, unchanged except for secrets, after all earlier records. The
    /// message is never dropped.
    pub fn print(&self, text: &str) {
        for line in redact(text).lines() {
            let mut shown = String::new();
            escape(&mut shown, line);
            for console in self.0.consoles() {
                console.push_always(&shown);
            }
        }
    }

    /// Waits until the consoles have shown all records, at most for `limit`; returns `false` after the limit.
    pub fn wait_for_console(&self, limit: Duration) -> bool {
        let start = Instant::now();
        self.0.consoles().iter().all(|console| console.wait(limit.saturating_sub(start.elapsed())))
    }

    /// Writes all records, including earlier ones, to an existing directory. No other program may create log files in
    /// it.
    pub fn keep(&self, directory: impl Into<PathBuf>, bounds: Bounds) {
        self.0.queue.place(directory.into(), bounds);
    }

    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Writes the queued lines and closes the file, so that its disk can be unmounted. Later records go to the sinks
    /// and the console only. Waits for disk and console at most `limit`; returns whether all lines are on the disk.
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

#[cfg(test)]
mod tests {
    use std::fs;

    use cluster::Rate;
    use proptest::prelude::*;
    use units::Bytes;

    use super::*;
    use crate::fake_sink::FakeSink;
    use crate::record::{Field, Origin};
    use crate::redact::REDACTED;

    fn messages(kept: &FakeSink) -> Vec<String> {
        kept.records().into_iter().map(|record| record.message).collect()
    }

    fn stream(limit: SourceLimit) -> (Stream, FakeSink) {
        let kept = FakeSink::default();
        (Stream::start(vec![Box::new(kept.clone())], limit).unwrap(), kept)
    }

    fn said(message: &str) -> Record {
        Record::now(Level::INFO, Origin::Program("kubelet".to_owned()), message)
    }

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn records_before_the_disk_is_mounted_are_written_later() {
        let scratch = tempfile::tempdir().unwrap();
        let (stream, _) = stream(SourceLimit::default());
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

    /// Regression: the last lines of a node whose log directory was full until the shutdown were lost.
    #[test]
    fn lines_behind_a_failed_write_are_written_at_the_end() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("log");
        let (stream, kept) = stream(SourceLimit::default());
        stream.keep(&directory, Bounds::within(Bytes::MIB));
        stream.log(said("first"));
        let end = Instant::now() + LIMIT;
        while !messages(&kept).iter().any(|message| message.starts_with("cannot write the log")) {
            assert!(Instant::now() < end, "{:?}", messages(&kept));
            thread::sleep(Duration::from_millis(10));
        }
        stream.log(said("last"));
        fs::create_dir(&directory).unwrap();
        assert!(stream.close(LIMIT));
        let text = fs::read_to_string(directory.join("00000000.jsonl")).unwrap();
        let at = |message: &str| text.find(&format!("\"message\":\"{message}\""));
        assert!(at("first").is_some() && at("first") < at("last"), "{text}");
    }

    #[test]
    fn close_does_not_wait_without_a_disk() {
        let (stream, kept) = stream(SourceLimit::default());
        stream.log(said("x"));
        assert!(stream.close(LIMIT));
        assert_eq!(messages(&kept), ["x"]);
    }

    #[test]
    fn a_source_above_its_rate_is_suppressed_and_reported() {
        let rate = Rate { burst: 8, per_second: 0 };
        let (stream, kept) = stream(SourceLimit { rate, window: Duration::ZERO });
        for number in 0..100 {
            stream.log(said(&number.to_string()));
        }
        // The thread reports once more before it ends.
        assert!(stream.close(LIMIT));
        let messages = messages(&kept);
        assert_eq!(messages[..6], ["0", "1", "2", "3", "4", "5"]);
        let reported: u64 = messages[6..]
            .iter()
            .map(|message| message.strip_suffix(" lines of kubelet not logged: rate limit exceeded").unwrap())
            .map(|count| count.parse::<u64>().unwrap())
            .sum();
        assert_eq!(reported, 94);
        assert_eq!(stream.metrics().suppressed.with_label_values(&["kubelet"]).get(), 94);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn sinks_and_files_contain_no_secrets(before in ".{0,30}", secret in "eyJ[A-Za-z0-9]{20}\\.[A-Za-z0-9]{30}") {
            let scratch = tempfile::tempdir().unwrap();
            let (stream, kept) = stream(SourceLimit::default());
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
