//! The output of a program, on a pipe or a terminal.

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{Winsize, openpty};
use std::fs::File;
use std::io::{self, Read, Write};
use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Pipe,
    Terminal,
    /// Terminal without a cursor, on which the launcher does not redraw lines.
    DumbTerminal,
}

/// Reader of a program's output. Dropping it closes the pipe or terminal.
#[derive(Debug)]
pub struct Screen {
    stream: File,
    text: String,
    /// Incomplete UTF-8 character at the end of the input.
    begun: Vec<u8>,
    over: bool,
}

impl Screen {
    /// Opens a screen. Returns it with the descriptor that a program writes to.
    pub(crate) fn open(kind: Kind) -> (Self, OwnedFd) {
        let (reader, writer) = match kind {
            Kind::Pipe => {
                let (reader, writer) = io::pipe().expect("a pipe can be created");
                (OwnedFd::from(reader), OwnedFd::from(writer))
            }
            Kind::Terminal | Kind::DumbTerminal => {
                let size = Winsize { ws_row: 40, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
                let both = openpty(Some(&size), None).expect("a terminal can be created");
                // A program that inherits the other end of its own terminal never observes that the terminal is closed.
                for end in [&both.master, &both.slave] {
                    fcntl(end, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).expect("a descriptor has flags");
                }
                (both.master, both.slave)
            }
        };
        (Self { stream: File::from(reader), text: String::new(), begun: Vec::new(), over: false }, writer)
    }

    /// Types Ctrl-C on the terminal. Its foreground processes get SIGINT.
    pub fn type_ctrl_c(&mut self) {
        self.stream.write_all(b"\x03").expect("a terminal is open for writing");
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn wait_for(&mut self, wanted: &str, limit: Duration) {
        let start = Instant::now();
        let mut from = 0;
        while !self.text[from..].contains(wanted) {
            // The text may end with the beginning of `wanted`. Continue the search there, because a terminal is redrawn
            // ten times a second and its text grows fast.
            from = self.text.floor_char_boundary(self.text.len().saturating_sub(wanted.len()));
            let left = limit.saturating_sub(start.elapsed());
            assert!(!left.is_zero(), "no {wanted:?} within {limit:?}, but {:?}", self.text);
            assert!(!self.over, "the output ended without {wanted:?}: {:?}", self.text);
            self.read(left);
        }
    }

    pub fn rest(&mut self, limit: Duration) {
        let start = Instant::now();
        while !self.over {
            let left = limit.saturating_sub(start.elapsed());
            assert!(!left.is_zero(), "the output did not end within {limit:?}: {:?}", self.text);
            self.read(left);
        }
    }

    /// Reads the available output, or waits for output.
    fn read(&mut self, limit: Duration) {
        let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.stream.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) | Err(Errno::EINTR) => return,
            Ok(_) => {}
            Err(errno) => panic!("cannot wait for output: {errno}"),
        }
        let mut piece = [0; 4096];
        match self.stream.read(&mut piece) {
            Ok(0) => self.over = true,
            Ok(count) => self.add(&piece[..count]),
            // All programs have closed the terminal, pty(7).
            Err(error) if error.raw_os_error() == Some(Errno::EIO as i32) => self.over = true,
            Err(error) => panic!("cannot read output: {error}"),
        }
    }

    fn add(&mut self, piece: &[u8]) {
        self.begun.extend_from_slice(piece);
        let whole = match str::from_utf8(&self.begun) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Ok(_) | Err(_) => self.begun.len(),
        };
        let begun = self.begun.split_off(whole);
        self.text.push_str(&String::from_utf8_lossy(&mem::replace(&mut self.begun, begun)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_secs(10);

    #[test]
    fn a_text_that_comes_in_pieces_is_found() {
        let (mut screen, writer) = Screen::open(Kind::Pipe);
        let mut writer = File::from(writer);
        // The arrow has three bytes, so a read may split it.
        for piece in "granary → granary-1".as_bytes().chunks(9) {
            writer.write_all(piece).unwrap();
            screen.read(SHORT);
        }
        screen.wait_for("y → g", SHORT);
        assert_eq!(screen.text(), "granary → granary-1");
    }

    #[test]
    #[should_panic(expected = "ended without")]
    fn a_text_that_cannot_come_any_more_is_not_waited_for() {
        let (mut screen, writer) = Screen::open(Kind::Pipe);
        drop(writer);
        screen.wait_for("never", SHORT);
    }
}
