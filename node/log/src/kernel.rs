//! The thread that reads what the kernel says.

use std::fs::File;
use std::io::{self, Read};
use std::thread;
use std::time::SystemTime;

use kerneltext::Message;
use nix::errno::Errno;
use tracing::Level;

use crate::kmsg;
use crate::metrics::Reason;
use crate::record::{Origin, Record, uptime};
use crate::stream::Stream;

/// No record is longer, `PRINTKRB_RECORD_MAX` (1024) and its fields; the kernel refuses a shorter buffer.
const LONGEST: usize = 8 << 10;

/// Begins with the oldest message that the kernel still has. The thread blocks in read(2) until the machine is off.
///
/// What we print never comes back here: the console is a terminal, and nobody of us writes to `/dev/kmsg`. A disk that
/// fails makes the kernel speak, and that is written to the disk: once a second at most, since a write that failed is
/// tried again then.
pub(crate) fn follow(stream: Stream) -> io::Result<()> {
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
            // EPIPE: the next one was overwritten. What is read now is the oldest that is left.
            Err(error) if error.kind() == io::ErrorKind::Interrupted || is(&error, Errno::EPIPE) => continue,
            Err(error) => {
                let mut record = Record::now(Level::WARN, Origin::Kernel, "the kernel's messages cannot be read");
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
            let text = format!("{lost} messages of the kernel were overwritten before they were read");
            stream.log(Record::now(Level::WARN, Origin::Kernel, text));
        }
        stream.log(kmsg::record(message, SystemTime::now(), uptime()));
    }
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno as i32)
}
