//! The protocol between the host and the guest of a kernel test, and the format of [`write_log`]s.
//!
//! Messages are JSON, one per line, through the virtio-serial port [`PORT`]: the host sends [`Order`]s, the guest
//! answers with [`Word`]s. The output of the test uses this port, because the serial console is slow and mixed with
//! kernel messages. A test in the guest sends a [`Request`] for the host to init at [`SOCKET`], which forwards it.
//!
//! Fuzz targets compile this crate and its dependencies again, with instrumentation: keep them few.
#![forbid(unsafe_code)]

mod request;
pub mod write_log;

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, BufRead, Write};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use request::{Answer, BlockStats, PowerCut, Request, SOCKET};

pub const PORT: &str = "dev.granary.ktest";

/// A step of the guest or of its host that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step}")]
pub struct StepError {
    step: String,
    source: Box<dyn Error + Send + Sync>,
}

impl StepError {
    /// For `map_err`. A cause is an error or a text.
    pub fn of<E: Into<Box<dyn Error + Send + Sync>>>(step: impl Into<String>) -> impl FnOnce(E) -> Self {
        let step = step.into();
        |cause| Self { step, source: cause.into() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Order {
    /// Unpack the payload. The first order to a restored guest, which was saved without a payload.
    Unpack(Unpack),
    Run(Run),
    /// Answer to [`Word::Ask`].
    Answer(Answer),
    Dump,
    PowerOff,
}

/// The payload, which a restored guest lacks, and the current time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unpack {
    /// Serial number of the disk with the payload, a cpio archive.
    pub disk: String,
    /// The time of the host, since the Unix epoch.
    pub time: Duration,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    pub arguments: Vec<String>,
    pub environment: BTreeMap<String, String>,
    pub disks: Vec<String>,
    pub tools: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Word {
    /// The guest waits for its first order and can be saved.
    Ready,
    Stdout(String),
    Stderr(String),
    Exit(Outcome),
    /// The program cannot be run: each cause of the failure, the outermost first.
    Fault(Vec<String>),
    Dumped,
    /// A test's request. The guest sends no other request before [`Order::Answer`].
    Ask(Request),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Outcome {
    Code(i32),
    Signal(i32),
}

pub fn send(mut port: impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    port.write_all(&line)
}

/// Receives a message. `pending` keeps the beginning of an incomplete line: pass the same buffer to each call.
pub fn receive<T: DeserializeOwned>(port: &mut impl BufRead, pending: &mut Vec<u8>) -> io::Result<T> {
    port.read_until(b'\n', pending)?;
    if !pending.ends_with(b"\n") {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let message = serde_json::from_slice(pending);
    pending.clear();
    Ok(message?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_whatever_is_in_it() {
        let mut line = Vec::new();
        let word = Word::Stdout("one\ntwo \u{1f980}\r\n".into());
        send(&mut line, &word).unwrap();
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        assert_eq!(receive::<Word>(&mut line.as_slice(), &mut Vec::new()).unwrap(), word);
    }

    #[test]
    fn half_a_message_waits_for_its_other_half() {
        let mut pending = Vec::new();
        let error = receive::<Order>(&mut &b"\"du"[..], &mut pending).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(receive::<Order>(&mut &b"mp\"\n"[..], &mut pending).unwrap(), Order::Dump);
        assert_eq!(pending, b"");
    }

    #[test]
    fn statistics_are_compared_by_what_was_done_in_between() {
        let earlier = BlockStats { reads: 4, flushes: 1, read_bytes: 4096, read_ns: 900, ..BlockStats::default() };
        let now = BlockStats {
            reads: 5,
            writes: 2,
            flushes: 1,
            read_bytes: 4608,
            written_bytes: 8192,
            read_ns: 1000,
            write_ns: 20,
            flush_ns: 30,
        };
        let between = BlockStats { reads: 1, flushes: 0, read_bytes: 512, read_ns: 100, ..now };
        assert_eq!(now.since(earlier), between);
    }

    #[test]
    fn an_invalid_message_is_rejected() {
        let error = receive::<Word>(&mut &b"hello\n"[..], &mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
