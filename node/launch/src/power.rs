//! How a guest ends.

use crate::console::Console;
use crate::error::ShutdownError;
use qemu::{Exit, Vm};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::spawn_blocking;

/// QEMU closes the port for announcements before it ends; then it has this long.
pub(crate) const LAST_WORDS: Duration = Duration::from_secs(10);
/// A press is lost as long as nothing in the guest watches the button. A node that heard one passes over others.
const PRESS_AGAIN: Duration = Duration::from_secs(2);

/// Presses the power button until the guest is off; kills it after `limit`. If the future is dropped, the guest is
/// cut off.
pub(crate) async fn off(vm: Arc<Vm>, limit: Duration, console: &Path) -> Result<(), ShutdownError> {
    let cut = Cut(Arc::clone(&vm));
    let ended = spawn_blocking(move || press(&vm, limit)).await;
    drop(cut);
    match ended {
        Ok(exit) if exit.status.success() => Ok(()),
        Ok(exit) => Err(ShutdownError::Killed { exit, console: Console::read(console) }),
        Err(error) => Err(ShutdownError::Panicked(error)),
    }
}

fn press(vm: &Vm, limit: Duration) -> Exit {
    let start = Instant::now();
    loop {
        // If QEMU takes no command any more, it is about to end.
        let patience = if vm.powerdown().is_ok() { limit } else { LAST_WORDS.min(limit) };
        let left = patience.saturating_sub(start.elapsed());
        match vm.wait(left.min(PRESS_AGAIN)) {
            Some(exit) => return exit,
            None if left.is_zero() => return vm.shut_down(Duration::ZERO),
            None => {}
        }
    }
}

/// Ends the guest at once: what it had not flushed may be lost.
pub(crate) async fn cut(vm: Arc<Vm>) {
    vm.kill();
    _ = spawn_blocking(move || vm.wait(LAST_WORDS)).await;
}

/// Kills the guest on drop; nothing if it has ended.
struct Cut(Arc<Vm>);

impl Drop for Cut {
    fn drop(&mut self) {
        self.0.kill();
    }
}
