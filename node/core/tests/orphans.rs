//! PID 1 reaps orphans, and only orphans.

use std::convert::Infallible;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use envtest::{Seen, eventually};
use nix::sys::prctl::set_child_subreaper;
use node_core::orphans;
use supervisor::{Settings, Supervisor};
use tokio::time::pause;

const LIMIT: Duration = Duration::from_secs(60);

/// This process inherits orphans like PID 1. Regression: an orphan whose name is not UTF-8 stayed a zombie.
#[tokio::test]
async fn an_orphan_is_reaped_and_a_child_is_left_to_its_parent() {
    set_child_subreaper(true).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    // The kernel names a process after the file that it executes.
    let odd = scratch.path().join(OsStr::from_bytes(b"\xff"));
    symlink("/bin/sh", &odd).unwrap();
    let orphans = [orphan(Path::new("/bin/sh")), orphan(&odd)];
    let mut child = Command::new("/bin/sh").args(["-c", "exit 7"]).spawn().unwrap();
    let all = [orphans[0], orphans[1], child.id()];
    for process in all {
        becomes(process, Some('Z')).await;
    }

    // From here on, the grace period takes no time: the clock advances whenever no task runs.
    pause();
    let tree = Supervisor::start("orphans", Settings::default(), orphans::run);
    tree.handle().healthy().await.unwrap();
    assert_eq!(all.map(state), [Some('Z'); 3], "a service may await each of them");
    assert_eq!(child.wait().unwrap().code(), Some(7));
    for orphan in orphans {
        becomes(orphan, None).await;
    }
    tree.stop(LIMIT).await.unwrap();
}

fn orphan(shell: &Path) -> u32 {
    // The process ends when its input is closed. A shell gives a background process another standard input.
    let script = "exec 3<&0; (read -r line <&3) >/dev/null & echo $!";
    let mut shell = Command::new(shell);
    let shell = shell.arg0("sh").args(["-c", script]);
    let mut parent = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let input = parent.stdin.take();
    let mut process = String::new();
    BufReader::new(parent.stdout.take().unwrap()).read_line(&mut process).unwrap();
    assert!(parent.wait().unwrap().success());
    drop(input);
    process.trim().parse().unwrap()
}

async fn becomes(process: u32, wanted: Option<char>) {
    eventually(LIMIT, &format!("state {wanted:?} of process {process}"), async || {
        let now = state(process);
        Ok::<_, Infallible>(if now == wanted { Seen::Done(()) } else { Seen::NotYet(format!("{now:?}")) })
    })
    .await
    .unwrap();
}

/// State of a process as in proc_pid_stat(5); `None` if the process does not exist.
fn state(process: u32) -> Option<char> {
    let stat = fs::read(format!("/proc/{process}/stat")).ok()?;
    String::from_utf8_lossy(&stat).rsplit_once(") ")?.1.chars().next()
}
