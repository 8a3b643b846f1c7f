//! The QEMU Machine Protocol: one JSON object a line, answers mixed with events.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

/// Deadline of one answer. A running QEMU answers in milliseconds, but a busy host may take long to start QEMU.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Reason why a command was not carried out.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors describe the fields")]
pub enum QmpError {
    /// QEMU has ended, or ends now.
    #[error("QEMU closed its control connection")]
    Closed,
    /// QEMU does not answer.
    #[error("QEMU did not answer {command} within {} s", ANSWER_LIMIT.as_secs())]
    Silent { command: String },
    /// The connection broke.
    #[error("the control connection to QEMU failed at {command}")]
    Broken { command: String, source: io::Error },
    /// QEMU rejected the command.
    #[error("QEMU rejected {command}: {reason}")]
    Refused { command: String, reason: String },
    /// The answer of QEMU is not a valid message.
    #[error("invalid answer of QEMU to {command}")]
    Answer { command: String, source: serde_json::Error },
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(untagged)]
enum Message {
    Greeting {
        #[serde(rename = "QMP")]
        _qmp: Value,
    },
    Return {
        #[serde(rename = "return")]
        value: Value,
        id: Option<u64>,
    },
    Error {
        error: Refusal,
        id: Option<u64>,
    },
    Event {
        #[serde(rename = "event")]
        _event: String,
    },
}

#[derive(Debug, PartialEq, Deserialize)]
struct Refusal {
    desc: String,
}

/// A connection in command mode.
#[derive(Debug)]
pub(crate) struct Qmp {
    stream: BufReader<UnixStream>,
    /// Received part of a message. A time limit may end a call in the middle of a message.
    received: Vec<u8>,
    last_id: u64,
}

impl Qmp {
    pub(crate) fn open(stream: UnixStream) -> Result<Self, QmpError> {
        let opened =
            stream.set_read_timeout(Some(ANSWER_LIMIT)).and_then(|()| stream.set_write_timeout(Some(ANSWER_LIMIT)));
        opened.map_err(|source| QmpError::Broken { command: "qmp_capabilities".into(), source })?;
        let mut qmp = Self { stream: BufReader::new(stream), received: Vec::new(), last_id: 0 };
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    pub(crate) fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value, QmpError> {
        self.last_id += 1;
        let line = format!("{}\n", json!({"execute": command, "arguments": arguments, "id": self.last_id}));
        self.stream.get_mut().write_all(line.as_bytes()).map_err(|source| broken(command, source))?;
        loop {
            match self.receive(command)? {
                Message::Return { value, id } if id == Some(self.last_id) => return Ok(value),
                Message::Error { error, id } if id.is_none() || id == Some(self.last_id) => {
                    return Err(QmpError::Refused { command: command.to_owned(), reason: error.desc });
                }
                // Late answers to a command that timed out are skipped too.
                Message::Greeting { .. } | Message::Event { .. } | Message::Return { .. } | Message::Error { .. } => {}
            }
        }
    }

    fn receive(&mut self, command: &str) -> Result<Message, QmpError> {
        self.stream.read_until(b'\n', &mut self.received).map_err(|source| broken(command, source))?;
        if !self.received.ends_with(b"\n") {
            return Err(QmpError::Closed);
        }
        let message = serde_json::from_slice(&self.received);
        self.received.clear();
        message.map_err(|source| QmpError::Answer { command: command.to_owned(), source })
    }
}

fn broken(command: &str, source: io::Error) -> QmpError {
    let command = command.to_owned();
    match source.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => QmpError::Silent { command },
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => QmpError::Closed,
        _ => QmpError::Broken { command, source },
    }
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;
    use std::thread;

    use super::*;

    /// Simulates QEMU: sends the first text at once and each other text after a command, then closes the connection.
    fn fake_qemu(says: &'static [&'static str]) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        thread::spawn(move || {
            let mut theirs = BufReader::new(theirs);
            let mut command = String::new();
            for (index, text) in says.iter().enumerate() {
                if index > 0 {
                    theirs.read_line(&mut command).unwrap();
                }
                theirs.get_mut().write_all(text.as_bytes()).unwrap();
            }
            theirs.get_ref().shutdown(Shutdown::Write).unwrap();
            theirs.read_line(&mut command).unwrap();
        });
        ours
    }

    #[test]
    fn events_and_late_answers_are_skipped() {
        let stream = fake_qemu(&[
            "{\"QMP\": {\"version\": {}, \"capabilities\": []}}\n",
            "{\"return\": {}, \"id\": 1}\n",
            "{\"timestamp\": {}, \"event\": \"RESUME\"}\n{\"return\": 5, \"id\": 1}\n{\"return\": [7], \"id\": 2}\n",
        ]);
        let mut qmp = Qmp::open(stream).unwrap();
        assert_eq!(qmp.execute("query-cpus-fast", &json!({})).unwrap(), json!([7]));
    }

    #[test]
    fn a_refusal_carries_qemus_words() {
        let stream = fake_qemu(&[
            "{\"QMP\": {}}\n",
            "{\"return\": {}, \"id\": 1}\n",
            "{\"error\": {\"class\": \"CommandNotFound\", \"desc\": \"The command dance has not been found\"}, \"id\": 2}\n",
        ]);
        let error = Qmp::open(stream).unwrap().execute("dance", &json!({})).unwrap_err();
        assert_eq!(error.to_string(), "QEMU rejected dance: The command dance has not been found");
    }

    #[test]
    fn the_end_of_qemu_is_distinguished_from_an_invalid_answer() {
        assert!(matches!(Qmp::open(fake_qemu(&["{\"QMP\": {}}\n", "{\"retu"])), Err(QmpError::Closed)));
        assert!(matches!(Qmp::open(fake_qemu(&["hello\n"])), Err(QmpError::Answer { .. })));
    }
}
