//! Messages between the program and its guard, over a `SOCK_SEQPACKET` pair, which keeps the boundaries of messages and
//! reports the end of the other process.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};

use crate::error::{FreezeError, Operation};

/// Buffer size, above any message that a socket accepts by default (net.core.wmem_default, 212,992 bytes).
const LONGEST: usize = 1 << 18;

/// The request of [`Frozen::thaw`](crate::Frozen::thaw).
const THAW: &[u8] = b"thaw";

/// Bytes of a number in a message.
const NUMBER: usize = size_of::<u64>();

/// The first message to the guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) budget: Duration,
    pub(crate) cgroups: Vec<PathBuf>,
}

impl Request {
    fn encode(&self) -> Vec<u8> {
        let mut message = nanoseconds(self.budget).to_vec();
        for path in &self.cgroups {
            message.extend_from_slice(path.as_os_str().as_bytes());
            message.push(0);
        }
        message
    }

    fn decode(message: &[u8]) -> Option<Self> {
        let (budget, paths) = duration(message)?;
        let paths = paths.strip_suffix(&[0]).map(|paths| paths.split(|byte| *byte == 0));
        let cgroups = paths.into_iter().flatten().map(|path| OsStr::from_bytes(path).into()).collect();
        Some(Self { budget, cgroups })
    }
}

/// Replies of the guard: the first is `Frozen` or an error, the second `Thawed` or an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// The cgroups were frozen after this time. The rest of the budget is left.
    Frozen(Duration),
    /// The duration of the pause.
    Thawed(Duration),
    /// The budget was exceeded. Contains the duration of the pause, and the time until all processes were frozen, if
    /// they were.
    Late {
        total: Duration,
        freeze: Option<Duration>,
    },
    AlreadyFrozen(PathBuf),
    ThawedByOther(PathBuf),
    Failed {
        operation: Operation,
        path: PathBuf,
        errno: Errno,
    },
}

impl Reply {
    fn encode(&self) -> Vec<u8> {
        let with_path = |tag: &[u8], path: &PathBuf| [tag, path.as_os_str().as_bytes()].concat();
        match self {
            Self::Frozen(time) => [&b"F"[..], &nanoseconds(*time)].concat(),
            Self::Thawed(time) => [&b"T"[..], &nanoseconds(*time)].concat(),
            Self::Late { total, freeze: None } => [&b"L"[..], &nanoseconds(*total)].concat(),
            Self::Late { total, freeze: Some(freeze) } => {
                [&b"L"[..], &nanoseconds(*total), &nanoseconds(*freeze)].concat()
            }
            Self::AlreadyFrozen(path) => with_path(b"A", path),
            Self::ThawedByOther(path) => with_path(b"O", path),
            Self::Failed { operation, path, errno } => {
                let number = Operation::ALL.iter().position(|other| other == operation).unwrap_or_default();
                let numbers = [&b"E"[..], &[number as u8], &(*errno as i32).to_le_bytes()].concat();
                with_path(&numbers, path)
            }
        }
    }

    fn decode(message: &[u8]) -> Option<Self> {
        let (tag, rest) = message.split_first()?;
        let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
        Some(match tag {
            b'F' => Self::Frozen(duration(rest)?.0),
            b'T' => Self::Thawed(duration(rest)?.0),
            b'L' => {
                let (total, rest) = duration(rest)?;
                Self::Late { total, freeze: duration(rest).map(|(time, _)| time) }
            }
            b'A' => Self::AlreadyFrozen(path(rest)),
            b'O' => Self::ThawedByOther(path(rest)),
            b'E' => {
                let (number, rest) = rest.split_first()?;
                let operation = *Operation::ALL.get(usize::from(*number))?;
                let (errno, rest) = rest.split_first_chunk()?;
                Self::Failed { operation, path: path(rest), errno: Errno::from_raw(i32::from_le_bytes(*errno)) }
            }
            _ => return None,
        })
    }

    /// Converts an error of the guard. `None`: an error that does not occur there. Without a reply, the program returns
    /// [`FreezeError::Guard`].
    pub(crate) fn of(error: FreezeError) -> Option<Self> {
        match error {
            FreezeError::Cgroup { operation, path, errno } => Some(Self::Failed { operation, path, errno }),
            FreezeError::AlreadyFrozen { path } => Some(Self::AlreadyFrozen(path)),
            FreezeError::Thawed { path } => Some(Self::ThawedByOther(path)),
            FreezeError::Start(_) | FreezeError::TooMany | FreezeError::Late { .. } | FreezeError::Guard => None,
        }
    }

    /// The error that the reply reports. An unexpected reply is an error of the guard.
    pub(crate) fn into_error(self, budget: Duration) -> FreezeError {
        match self {
            Self::Frozen(_) | Self::Thawed(_) => FreezeError::Guard,
            Self::Late { total, freeze } => FreezeError::Late { budget, freeze, total },
            Self::AlreadyFrozen(path) => FreezeError::AlreadyFrozen { path },
            Self::ThawedByOther(path) => FreezeError::Thawed { path },
            Self::Failed { operation, path, errno } => FreezeError::Cgroup { operation, path, errno },
        }
    }
}

/// One end of the socket pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connection<'a>(BorrowedFd<'a>);

impl<'a> Connection<'a> {
    pub(crate) fn new(socket: &'a impl AsFd) -> Self {
        Self(socket.as_fd())
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'a> {
        self.0
    }

    /// Sends the request. `EMSGSIZE`: the request is too large.
    pub(crate) fn send_request(&self, request: &Request) -> Result<(), Errno> {
        self.send(&request.encode())
    }

    pub(crate) fn send_thaw(&self) -> Result<(), Errno> {
        self.send(THAW)
    }

    pub(crate) fn send_reply(&self, reply: &Reply) -> Result<(), Errno> {
        self.send(&reply.encode())
    }

    /// Receives the request. `None`: the program has ended, or did not send one.
    pub(crate) fn receive_request(&self) -> Option<Request> {
        Request::decode(&self.receive().ok()?)
    }

    /// Receives a reply. `None`: the guard has ended, or did not send one.
    pub(crate) fn receive_reply(&self) -> Option<Reply> {
        Reply::decode(&self.receive().ok()?)
    }

    /// Whether the next message asks to thaw. `false`: the program has ended.
    pub(crate) fn receive_thaw(&self) -> bool {
        self.receive().is_ok_and(|message| message == THAW)
    }

    fn send(&self, message: &[u8]) -> Result<(), Errno> {
        loop {
            match send(self.0.as_raw_fd(), message, MsgFlags::MSG_NOSIGNAL) {
                Err(Errno::EINTR) => {}
                sent => return sent.map(drop),
            }
        }
    }

    /// Receives a message, which is empty when the other end is closed.
    fn receive(&self) -> Result<Vec<u8>, Errno> {
        let mut message = vec![0; LONGEST];
        loop {
            match recv(self.0.as_raw_fd(), &mut message, MsgFlags::empty()) {
                // The kernel returns ECONNRESET once if the other end was closed before it had read all messages.
                // Messages from that end may still be queued.
                Err(Errno::EINTR | Errno::ECONNRESET) => {}
                received => {
                    message.truncate(received?);
                    return Ok(message);
                }
            }
        }
    }
}

fn nanoseconds(time: Duration) -> [u8; NUMBER] {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).to_le_bytes()
}

fn duration(message: &[u8]) -> Option<(Duration, &[u8])> {
    let (number, rest) = message.split_first_chunk::<NUMBER>()?;
    Some((Duration::from_nanos(u64::from_le_bytes(*number)), rest))
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    use super::*;

    #[test]
    fn a_reply_of_a_guard_that_has_ended_is_received() {
        let (program, guard) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        Connection::new(&program).send_thaw().unwrap();
        let late = Reply::Late { total: Duration::from_secs(2), freeze: None };
        Connection::new(&guard).send_reply(&late).unwrap();
        drop(guard);
        assert_eq!(Connection::new(&program).receive_reply(), Some(late));
        assert_eq!(Connection::new(&program).receive_reply(), None);
    }

    #[test]
    fn messages_are_decoded_to_what_was_encoded() {
        let paths = |all: &[&str]| all.iter().map(PathBuf::from).collect::<Vec<_>>();
        for cgroups in [paths(&[]), paths(&["/a"]), paths(&["/a", "/b c/d"])] {
            let request = Request { budget: Duration::from_millis(2500), cgroups };
            assert_eq!(Request::decode(&request.encode()), Some(request));
        }
        let (time, path) = (Duration::from_nanos(12_345_678_901), PathBuf::from("/a/b"));
        let failed = |operation| Reply::Failed { operation, path: path.clone(), errno: Errno::EPERM };
        let replies = [
            Reply::Frozen(time),
            Reply::Thawed(time),
            Reply::Late { total: time, freeze: Some(time / 2) },
            Reply::Late { total: time, freeze: None },
            Reply::AlreadyFrozen(path.clone()),
            Reply::ThawedByOther(path.clone()),
        ];
        for reply in replies.into_iter().chain(Operation::ALL.map(failed)) {
            assert_eq!(Reply::decode(&reply.encode()), Some(reply));
        }
    }

    #[test]
    fn the_errors_of_the_guard_are_sent() {
        let path = || PathBuf::from("/a/b");
        let cgroup = FreezeError::Cgroup { operation: Operation::Freeze, path: path(), errno: Errno::EPERM };
        for error in [cgroup, FreezeError::AlreadyFrozen { path: path() }, FreezeError::Thawed { path: path() }] {
            let text = error.to_string();
            let reply = Reply::of(error).expect("a reply");
            assert_eq!(reply.into_error(Duration::ZERO).to_string(), text);
        }
        assert_eq!(Reply::of(FreezeError::Guard), None);
    }

    #[test]
    fn other_messages_are_not_decoded() {
        for message in [&b""[..], b"x", b"F123", b"L", b"E", b"E\x09abcdpath", b"E\x01ab"] {
            assert_eq!(Reply::decode(message), None, "{message:?}");
        }
        assert_eq!(Request::decode(b"short"), None);
    }
}
