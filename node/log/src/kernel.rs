//! The thread that reads the kernel log.

use std::fs::File;
use std::io::{self, Read};
use std::thread;
use std::time::SystemTime;

use kernel::text::Message;
use nix::errno::Errno;
use tracing::Level;

use crate::kmsg;
use crate::metrics::Reason;
use crate::record::{Origin, Record, uptime};
use crate::stream::Stream;

/// Maximum record length, `PRINTKRB_RECORD_MAX` (1024) plus fields; reads with a shorter buffer fail.
const LONGEST: usize = 8 << 10;

impl Stream {
    /// Logs the kernel log from its oldest message. Requires `CAP_SYSLOG` or root. Fails if `/dev/kmsg` cannot be
    /// opened or the thread cannot be started.
    pub fn follow_kernel(&self) -> io::Result<()> {
        follow(self.clone())
    }
}

/// Starts with the oldest message in the kernel's buffer. The thread blocks in read(2) until the machine is off.
///
/// There is no feedback loop: the console is a terminal, and nothing in this program writes to `/dev/kmsg`. Kernel
/// messages about a failing log disk are logged to that disk, at most once per second, because failed writes are
/// retried then.
fn follow(stream: Stream) -> io::Result<()> {
    let messages = File::open("/dev/kmsg")?;
    thread::Builder::new().name("kernel-log".into()).spawn(move || read(messages, &stream))?;
    Ok(())
}

fn read(mut messages: File, stream: &Stream) {
    let mut buffer = vec![0; LONGEST];
    let mut expected = 0;
    loop {
        let record = match messages.read(&mut buffer) {
            Ok(length) => &buffer[..length],
            // EPIPE: the next record was overwritten; the next read returns the oldest one that is left.
            Err(error) if error.kind() == io::ErrorKind::Interrupted || is(&error, Errno::EPIPE) => continue,
            Err(error) => {
                let mut record = Record::now(Level::WARN, Origin::Kernel, "cannot read the kernel log");
                record.fields.push(("error".into(), error.to_string()));
                stream.log(record);
                return;
            }
        };
        let Some(message) = Message::parse(record) else { continue };
        let lost = message.sequence.saturating_sub(expected);
        expected = message.sequence.saturating_add(1);
        if lost > 0 {
            stream.lost(Reason::Kernel, lost);
            let text = format!("{lost} kernel messages were overwritten before they were read");
            stream.log(Record::now(Level::WARN, Origin::Kernel, text));
        }
        stream.log(kmsg::record(message, SystemTime::now(), uptime()));
    }
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno as i32)
}
