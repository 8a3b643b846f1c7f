//! The DevTools protocol, JSON messages that end with a zero byte:
//! <https://chromedevtools.github.io/devtools-protocol/>.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::process::{ChildStdin, ChildStdout};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Deadline of an answer: a page is small, but the machine may be busy.
const LIMIT: Duration = Duration::from_secs(120);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0} is not set; run the program by its Bazel target")]
    Missing(&'static str),
    #[error("cannot start the browser")]
    Start(#[source] io::Error),
    #[error("the browser has ended; its last output: {said}")]
    Gone { said: String },
    #[error("the browser did not answer {request} within {LIMIT:?}")]
    Late {
        /// The request, or the expected event.
        request: String,
    },
    #[error("the browser rejected {request}: {answer}")]
    Refused { request: String, answer: Value },
    #[error("invalid answer of the browser to {request}")]
    Answer { request: String, source: serde_json::Error },
    #[error("the browser's picture is not in base64")]
    Picture(#[from] base64::DecodeError),
}

#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) name: String,
    pub(crate) facts: Value,
}

/// The two pipes of a browser. The drop ends the browser.
pub(crate) struct Connection {
    requests: ChildStdin,
    messages: Receiver<Value>,
    last: u64,
    pub(crate) events: Vec<Event>,
}

impl Connection {
    pub(crate) fn new(requests: ChildStdin, answers: ChildStdout) -> io::Result<Self> {
        let (sender, messages) = mpsc::channel();
        // The thread ends when the browser closes the pipe.
        thread::Builder::new().name("browser".into()).spawn(move || {
            for message in BufReader::new(answers).split(0) {
                let Some(message) = message.ok().and_then(|message| serde_json::from_slice(&message).ok()) else {
                    return;
                };
                if sender.send(message).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { requests, messages, last: 0, events: Vec::new() })
    }

    pub(crate) fn call(&mut self, session: Option<&str>, request: &str, parameters: Value) -> Result<Value, Error> {
        self.last += 1;
        let mut message = json!({"id": self.last, "method": request, "params": parameters});
        if let Some(session) = session {
            message["sessionId"] = session.into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.requests.write_all(&bytes).and_then(|()| self.requests.flush()).map_err(|_| gone())?;
        let deadline = Instant::now() + LIMIT;
        loop {
            let mut message = self.next(deadline, request)?;
            if message["id"] != self.last {
                self.keep(message);
            } else if let Some(answer) = message.get("error") {
                return Err(Error::Refused { request: request.to_owned(), answer: answer.clone() });
            } else {
                return Ok(message["result"].take());
            }
        }
    }

    pub(crate) fn wait(&mut self, name: &str) -> Result<(), Error> {
        let deadline = Instant::now() + LIMIT;
        while !self.events.iter().any(|event| event.name == name) {
            let message = self.next(deadline, name)?;
            self.keep(message);
        }
        Ok(())
    }

    fn keep(&mut self, mut message: Value) {
        if let Some(name) = message["method"].as_str().map(str::to_owned) {
            self.events.push(Event { name, facts: message["params"].take() });
        }
    }

    fn next(&self, deadline: Instant, request: &str) -> Result<Value, Error> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.messages.recv_timeout(left).map_err(|error| match error {
            RecvTimeoutError::Timeout => Error::Late { request: request.to_owned() },
            RecvTimeoutError::Disconnected => gone(),
        })
    }
}

/// The owner of the process adds the browser's output.
fn gone() -> Error {
    Error::Gone { said: String::new() }
}
