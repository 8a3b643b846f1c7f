//! What the node announces while it runs.

use crate::console::Console;
use crate::error::BootError;
use crate::power;
use cluster::announcement::Announcement;
use qemu::Vm;
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::task::spawn_blocking;

pub(crate) type Announcements = Lines<BufReader<UnixStream>>;

pub(crate) fn of(port: std::os::unix::net::UnixStream) -> Result<Announcements, BootError> {
    port.set_nonblocking(true).map_err(BootError::Port)?;
    let port = UnixStream::from_std(port).map_err(BootError::Port)?;
    Ok(BufReader::new(port).lines())
}

/// The next announcement that is understood. Cancel-safe.
pub(crate) async fn next(from: &mut Announcements, vm: &Arc<Vm>, console: &Path) -> Result<Announcement, BootError> {
    // A reset of the connection is its end, too.
    while let Ok(Some(line)) = from.next_line().await {
        // A newer node tells more.
        if let Ok(announcement) = Announcement::from_line(&line) {
            return Ok(announcement);
        }
    }
    // The port is closed by QEMU's end only.
    let ending = Arc::clone(vm);
    let exit = spawn_blocking(move || ending.shut_down(power::LAST_WORDS)).await.map_err(BootError::Panicked)?;
    Err(BootError::Ended { exit, console: Console::read(console) })
}

/// Reads to the guest's end, so that it never waits for a reader; returns why it could not go on.
pub(crate) async fn drain(mut announcements: Announcements) -> Option<String> {
    let mut fatal = None;
    while let Ok(Some(line)) = announcements.next_line().await {
        if let Ok(Announcement::Fatal { message }) = Announcement::from_line(&line) {
            fatal = Some(message);
        }
    }
    fatal
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream as Pair;

    #[tokio::test]
    async fn the_last_fatal_message_is_kept_and_other_lines_are_passed_over() {
        let (mut guest, host) = Pair::pair().unwrap();
        let fatal = Announcement::Fatal { message: "the data disk is gone".into() };
        guest.write_all(b"noise\n{\"kind\":\"poem\"}\n").unwrap();
        guest.write_all(fatal.to_line().unwrap().as_bytes()).unwrap();
        drop(guest);
        assert_eq!(drain(of(host).unwrap()).await.as_deref(), Some("the data disk is gone"));
    }
}
