//! Reaps the processes that PID 1 inherits when their parent ends.
//!
//! Our own children are awaited by whoever started them, within milliseconds; reaping one of them here
//! would take its exit status away. A zombie that is still there after [`GRACE`] has nobody else.

use std::collections::HashMap;
use std::time::Duration;
use std::{fs, io};

use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid};
use supervisor::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};

/// How long an own child may stay unreaped. A zombie costs one entry of the process table.
const GRACE: Duration = Duration::from_secs(10);

/// A child that has ended. Its number is not given away before it is reaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Zombie {
    pid: i32,
    /// Clock ticks since boot: tells a reused number apart.
    start: u64,
}

/// The service: looks after each `SIGCHLD`, and once more when the grace is over.
///
/// # Errors
/// The signal cannot be watched.
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
                    // ECHILD: its parent was quicker after all.
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
        if let Ok(text) = fs::read_to_string(format!("/proc/{pid}/stat"))
            && let Some((state, its_parent, start)) = parse(&text)
            && state == 'Z'
            && its_parent == parent
        {
            found.push(Zombie { pid, start });
        }
    }
    Ok(found)
}

/// State, parent and start time of `/proc/PID/stat`, proc_pid_stat(5). The name in brackets may hold
/// anything, brackets and line feeds included.
fn parse(stat: &str) -> Option<(char, i32, u64)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    let start = fields.nth(17)?.parse().ok()?;
    Some((state, parent, start))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_confuse() {
        let stat = "42 (a) Z 7 (b)) Z 1 42 42 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 987 0 0\n";
        assert_eq!(parse(stat), Some(('Z', 1, 987)));
    }

    #[test]
    fn this_process_is_no_zombie() {
        let text = fs::read_to_string("/proc/self/stat").unwrap();
        let (state, _, start) = parse(&text).unwrap();
        assert_ne!(state, 'Z');
        assert!(start > 0);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,100}") {
            let _ = parse(&text);
        }
    }
}
