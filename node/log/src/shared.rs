//! The state of the log that the clones of a stream and its threads share.

use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tracing::Level;

use crate::console::Console;
use crate::limiter::{Limiter, SourceLimit};
use crate::metrics::{Metrics, Reason};
use crate::queue::{Dropped, Queue};
use crate::record::{Origin, Record, uptime};

/// Receives every record, redacted. Must not block for long or log.
pub trait Sink: Send + Sync {
    fn take(&self, record: &Record);
}

pub(crate) struct Shared {
    sinks: Vec<Box<dyn Sink>>,
    /// The consoles; empty until the call of [`Stream::show`](crate::Stream::show).
    pub(crate) consoles: OnceLock<Vec<Arc<Console>>>,
    limiter: Mutex<Limiter>,
    pub(crate) queue: Queue,
    pub(crate) metrics: Metrics,
    /// Disconnected when the writing thread ends.
    pub(crate) running: Mutex<Option<Receiver<()>>>,
}

impl Shared {
    pub(crate) fn new(sinks: Vec<Box<dyn Sink>>, limit: SourceLimit, metrics: Metrics, running: Receiver<()>) -> Self {
        Self {
            sinks,
            consoles: OnceLock::new(),
            limiter: Mutex::new(Limiter::new(limit)),
            queue: Queue::default(),
            metrics,
            running: Mutex::new(Some(running)),
        }
    }

    pub(crate) fn consoles(&self) -> &[Arc<Console>] {
        self.consoles.get().map_or(&[], Vec::as_slice)
    }

    pub(crate) fn log(&self, record: Record) {
        let taken = {
            let mut limiter = self.limiter.lock().unwrap_or_else(PoisonError::into_inner);
            limiter.take(record.origin.group(), uptime(), record.level <= Level::WARN)
        };
        match taken {
            Ok(()) => self.emit(record),
            Err(source) => self.metrics.suppressed.with_label_values(&[source]).inc(),
        }
    }

    pub(crate) fn emit(&self, record: Record) {
        let record = record.clean();
        for console in self.consoles() {
            if let Err(Dropped) = console.push(&record) {
                self.metrics.dropped.with_label_values(&[Reason::Console.as_str()]).inc();
            }
        }
        self.emit_elsewhere(&record);
    }

    /// Logs a record to all outputs except the console.
    pub(crate) fn emit_elsewhere(&self, record: &Record) {
        self.metrics.records.with_label_values(&[record.word()]).inc();
        for sink in &self.sinks {
            sink.take(record);
        }
        if let Err(Dropped) = self.queue.push(record.line()) {
            self.metrics.dropped.with_label_values(&[Reason::Disk.as_str()]).inc();
        }
    }

    pub(crate) fn report_suppressed(&self) {
        let reported = self.limiter.lock().unwrap_or_else(PoisonError::into_inner).report(uptime());
        for (source, count) in reported {
            let text = format!("{count} lines of {source} not logged: rate limit exceeded");
            self.emit(Record::now(Level::WARN, Origin::Module(module_path!().into()), text));
        }
    }
}
