//! Reaps the processes that PID 1 inherits when their parent ends.
//!
//! The service that started a child waits for it within milliseconds. If this module reaped such a child, its exit
//! status would be lost. Therefore only a zombie that is older than [`GRACE`] is an orphan.

use std::collections::HashMap;
use std::time::Duration;
use std::{fs, io};

use kernel::text::Stat;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid};
use supervisor::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};

/// Time that a service's child may stay unreaped. A zombie costs one entry of the process table.
const GRACE: Duration = Duration::from_secs(10);

/// A child that has ended. The kernel does not reuse its process ID before it is reaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Zombie {
    pid: i32,
    /// Start time in clock ticks since boot, which distinguishes a reused process ID.
    start: u64,
}

/// Service that checks for zombies after each `SIGCHLD`, and when the grace period of a zombie ends.
pub async fn run(cx: Context) -> Result<(), io::Error> {
    let mut ended = signal(SignalKind::child())?;
    let mut seen: HashMap<Zombie, Instant> = HashMap::new();
    cx.healthy();
    loop {
        let zombies = zombies()?;
        seen.retain(|zombie, _| zombies.contains(zombie));
        let now = Instant::now();
        for zombie in zombies {
            if now.duration_since(*seen.entry(zombie).or_insert(now)) >= GRACE {
                match waitpid(Pid::from_raw(zombie.pid), Some(WaitPidFlag::WNOHANG)) {
                    // The main thread of a program whose other threads still run looks like a zombie too.
                    Ok(WaitStatus::StillAlive) => {
                        seen.insert(zombie, now);
                    }
                    Ok(_) => tracing::debug!(pid = zombie.pid, "orphan reaped"),
                    // ECHILD: its parent has reaped the process meanwhile.
                    Err(_) => {}
                }
            }
        }
        let next = seen
            .values()
            .min()
            .map_or(GRACE * 6, |first| (*first + GRACE).saturating_duration_since(now))
            .max(Duration::from_secs(1));
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            _ = ended.recv() => {}
            () = sleep(next) => {}
        }
    }
}

fn zombies() -> io::Result<Vec<Zombie>> {
    let parent = getpid().as_raw();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        // A process may end between the two calls.
        let Ok(text) = fs::read(format!("/proc/{pid}/stat")) else { continue };
        // The process chooses its name, which may have any bytes, and the kernel cuts names within a character.
        if let Some(stat) = Stat::parse(&String::from_utf8_lossy(&text))
            && stat.state == 'Z'
            && stat.parent == parent
        {
            found.push(Zombie { pid, start: stat.start });
        }
    }
    Ok(found)
}
