//! Power-off of guests.

use crate::console::Console;
use crate::error::ShutdownError;
use qemu::{Exit, Vm};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::spawn_blocking;

/// Time limit of QEMU's end after it closed the port for announcements.
pub(crate) const QEMU_EXIT: Duration = Duration::from_secs(10);
/// A press is lost until a program in the guest reads the button. A node ignores the presses after the first.
const PRESS_AGAIN: Duration = Duration::from_secs(2);

/// Presses the power button until the guest is off; kills it after `limit`. If the future is dropped, the guest is
/// cut off.
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
    loop {
        // If QEMU does not accept a command, it is about to end.
        let limit = if vm.powerdown().is_ok() { limit } else { QEMU_EXIT.min(limit) };
        let left = limit.saturating_sub(start.elapsed());
        match vm.wait(left.min(PRESS_AGAIN)) {
            Some(exit) => return exit,
            None if left.is_zero() => return vm.shut_down(Duration::ZERO),
            None => {}
        }
    }
}

/// Ends the guest at once; data that it did not flush may be lost.
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
