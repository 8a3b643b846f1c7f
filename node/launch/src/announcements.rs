//! Announcements of the node.

use crate::console::Console;
use crate::error::{BootError, StepError};
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
    port.set_nonblocking(true).map_err(StepError::of("read the announcements of the node"))?;
    let port = UnixStream::from_std(port).map_err(StepError::of("read the announcements of the node"))?;
    Ok(BufReader::new(port).lines())
}

/// The next valid announcement. Cancel-safe.
pub(crate) async fn next(from: &mut Announcements, vm: &Arc<Vm>, console: &Path) -> Result<Announcement, BootError> {
    // A connection reset also means that QEMU has ended.
    while let Ok(Some(line)) = from.next_line().await {
        // Ignore unknown lines: a newer node may send other announcements.
        if let Ok(announcement) = Announcement::from_line(&line) {
            return Ok(announcement);
        }
    }
    // QEMU keeps the port open until QEMU itself ends.
    let ending = Arc::clone(vm);
    let exit =
        spawn_blocking(move || ending.shut_down(power::QEMU_EXIT)).await.map_err(StepError::of("wait for QEMU"))?;
    Err(BootError::Ended { exit, console: Console::read(console) })
}

/// Reads announcements until the guest ends, so that the guest never blocks on a full port. Returns the last fatal
/// error.
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
    async fn drain_returns_the_fatal_error_and_ignores_other_lines() {
        let (mut guest, host) = Pair::pair().unwrap();
        let fatal = Announcement::Fatal { message: "the data disk is gone".into() };
        guest.write_all(b"noise\n{\"kind\":\"poem\"}\n").unwrap();
        guest.write_all(fatal.to_line().unwrap().as_bytes()).unwrap();
        drop(guest);
        assert_eq!(drain(of(host).unwrap()).await.as_deref(), Some("the data disk is gone"));
    }
}
