//! The thread that writes to the disk and reports suppressed and dropped records.

use std::collections::VecDeque;
use std::time::Duration;

use tracing::Level;

use crate::files::Files;
use crate::record::{Origin, Record};
use crate::shared::Shared;

/// Interval of writes and of retries after a failed write. Writes are therefore few and large.
const TICK: Duration = Duration::from_secs(1);

pub(crate) fn run(shared: &Shared) {
    let mut writer = Writer::default();
    loop {
        let wanted = writer.wants_lines();
        let taken = shared.queue.take(TICK, wanted);
        writer.missing += taken.dropped;
        writer.lines.extend(taken.lines);
        if let Some((directory, bounds)) = taken.place {
            writer.files = Some(Files::new(directory, bounds));
        }
        writer.write(shared);
        shared.report_suppressed();
        // When the lines of a failed write are on the disk, the lines that are still in the queue follow.
        if taken.is_closed && (wanted || !writer.wants_lines()) {
            return;
        }
    }
}

#[derive(Debug, Default)]
struct Writer {
    /// `None` until the disk is mounted.
    files: Option<Files>,
    lines: VecDeque<Vec<u8>>,
    /// Dropped lines that were not reported yet.
    missing: u64,
    /// The last write failed and was reported.
    has_failed: bool,
}

impl Writer {
    fn wants_lines(&self) -> bool {
        self.files.is_some() && self.lines.is_empty()
    }

    fn write(&mut self, shared: &Shared) {
        let Some(files) = &mut self.files else { return };
        if self.lines.is_empty() {
            return;
        }
        let written = files.append(self.lines.iter().map(Vec::as_slice));
        shared.metrics.written.inc_by(written.bytes as u64);
        let mut done = 0;
        while let Some(line) = self.lines.front()
            && done + line.len() <= written.bytes
        {
            done += line.len();
            self.lines.pop_front();
        }
        match written.error {
            Some(_) if self.has_failed => {}
            Some(error) => {
                self.has_failed = true;
                let text = "cannot write the log to the disk, will retry every second";
                let mut record = Record::now(Level::WARN, Origin::Module(module_path!().into()), text);
                record.fields.push(("path".into(), files.directory().display().to_string()));
                record.fields.push(("error".into(), error.to_string()));
                shared.emit(record);
            }
            None => {
                self.has_failed = false;
                let missing = std::mem::take(&mut self.missing);
                if missing > 0 {
                    let text = format!("{missing} records before this one are not in the log on the disk");
                    shared.emit(Record::now(Level::WARN, Origin::Module(module_path!().into()), text));
                }
            }
        }
    }
}
