//! PID 1 reaps orphans, and only orphans.

use std::convert::Infallible;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use envtest::{Seen, eventually};
use nix::sys::prctl::set_child_subreaper;
use node_core::orphans;
use supervisor::{Settings, Supervisor};
use tokio::time::pause;

const LIMIT: Duration = Duration::from_secs(60);

/// This process inherits orphans like PID 1.
#[tokio::test]
async fn an_orphan_is_reaped_and_a_child_is_left_to_its_parent() {
    set_child_subreaper(true).unwrap();
    let orphan = orphan();
    let mut child = Command::new("/bin/sh").args(["-c", "exit 7"]).spawn().unwrap();
    for process in [orphan, child.id()] {
        becomes(process, Some('Z')).await;
    }

    // From here on, the grace period takes no time: the clock advances whenever no task runs.
    pause();
    let tree = Supervisor::start("orphans", Settings::default(), orphans::run);
    tree.handle().healthy().await.unwrap();
    assert_eq!([orphan, child.id()].map(state), [Some('Z'); 2], "a service may await both");
    assert_eq!(child.wait().unwrap().code(), Some(7));
    becomes(orphan, None).await;
    tree.stop(LIMIT).await.unwrap();
}

fn orphan() -> u32 {
    // The process ends when its input is closed. A shell gives a background process another standard input.
    let script = "exec 3<&0; (read -r line <&3) >/dev/null & echo $!";
    let mut shell = Command::new("/bin/sh");
    let mut parent = shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
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
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}
