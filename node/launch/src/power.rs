//! Power-off of guests.

use crate::console::Console;
use crate::error::ShutdownError;
use qemu::{Exit, Vm};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::spawn_blocking;

/// Time limit for QEMU to exit after it closed the port for announcements.
pub(crate) const QEMU_EXIT: Duration = Duration::from_secs(10);
/// Interval of presses. A press is lost until a program in the guest reads the button. A node ignores all presses after
/// the first.
const PRESS_AGAIN: Duration = Duration::from_secs(2);

/// Presses the power button until the guest has powered off, and kills the guest after `limit`. Dropping the future
/// kills the guest.
pub(crate) async fn off(vm: Arc<Vm>, limit: Duration, console: &Path) -> Result<(), ShutdownError> {
    let kill = KillOnDrop(Arc::clone(&vm));
    let ended = spawn_blocking(move || press(&vm, limit)).await;
    drop(kill);
    match ended {
        Ok(exit) if exit.status.success() => Ok(()),
        Ok(exit) => Err(ShutdownError::Killed { exit, console: Console::read(console) }),
        Err(error) => Err(ShutdownError::Panicked(error)),
    }
}

fn press(vm: &Vm, limit: Duration) -> Exit {
    let start = Instant::now();
    let mut silent: Option<Instant> = None;
    loop {
        match vm.powerdown() {
            Ok(()) => silent = None,
            Err(_) => _ = silent.get_or_insert_with(Instant::now),
        }
        let left = time_left(limit.saturating_sub(start.elapsed()), silent.map(|since| since.elapsed()));
        match vm.wait(left.min(PRESS_AGAIN)) {
            Some(exit) => return exit,
            None if left.is_zero() => return vm.shut_down(Duration::ZERO),
            None => {}
        }
    }
}

/// Time until the guest is killed. A QEMU process that has accepted no command for some time is about to exit.
fn time_left(of_guest: Duration, silent: Option<Duration>) -> Duration {
    let of_qemu = silent.map(|silent| QEMU_EXIT.saturating_sub(silent));
    of_qemu.map_or(of_guest, |left| left.min(of_guest))
}

/// Kills the guest. Data that the guest did not flush may be lost.
pub(crate) async fn cut(vm: Arc<Vm>) {
    vm.kill();
    _ = spawn_blocking(move || vm.wait(QEMU_EXIT)).await;
}

struct KillOnDrop(Arc<Vm>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        self.0.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: the time limit for QEMU's exit included the shutdown, so QEMU was killed while it closed its
    /// disks if the shutdown took longer than 10 s.
    #[test]
    fn a_qemu_that_ends_late_has_its_time() {
        let seconds = Duration::from_secs;
        assert_eq!(time_left(seconds(60), None), seconds(60));
        assert_eq!(time_left(seconds(60), Some(Duration::ZERO)), QEMU_EXIT);
        assert_eq!(time_left(seconds(60), Some(seconds(4))), QEMU_EXIT - seconds(4));
        assert_eq!(time_left(seconds(60), Some(seconds(11))), Duration::ZERO);
        assert_eq!(time_left(seconds(3), Some(seconds(4))), seconds(3));
    }
}
