//! `/init` of the system image: starts the node, and when it is asked to, ends it.
#![forbid(unsafe_code)]

use std::env;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{self, ExitCode};
use std::time::Duration;

use cluster::announcement::Announcement;
use node_core::boot::{self, BootState};
use node_core::guard;
use node_core::host::Host;
use node_core::power;
use node_core::status::chain;
use nodelog::Stream;

fn main() -> ExitCode {
    // The kernel gives PID 1 arguments of its own.
    if process::id() != 1
        && let Some(ended) = guard::self_test(env::args_os()).or_else(|| csi::guard(env::args_os()))
    {
        return ended;
    }
    let mut state = BootState::default();
    // A panic of PID 1 is a panic of the kernel, with nothing unmounted.
    let end = catch_unwind(AssertUnwindSafe(|| boot::run(&mut state)));
    // Pods stay restricted until `power::leave` has ended them.
    let BootState { host, writer, log, on_failure, guard: _guard } = state;
    let log = log.as_ref();
    let end = match end {
        Ok(Ok(end)) => end,
        failed => {
            let message = match failed {
                Ok(Err(error)) => chain(&error, "\n"),
                _ => "the node's program panicked; its message stands above".to_owned(),
            };
            fatal(&host, log, message);
            on_failure
        }
    };
    drop(host);
    if let Some(writer) = writer {
        writer.finish(PATIENCE);
    }
    // Its file is on the data disk, which is unmounted now.
    if log.is_some_and(|log| !log.close(PATIENCE)) {
        print(log, "the end of the log was not written to the disk in time");
    }
    // The last two are mounts of the data disk on a node with a CNI plugin of the administrator.
    power::leave(["/ephemeral", "/data", "/opt/cni/bin", "/etc/cni/net.d"].map(Path::new));
    // File systems that could not be unmounted are reported there only.
    wait_for_console(log);
    // Comes back only if the kernel refuses to power off.
    let errno = power::off(end);
    print(log, &format!("error: cannot power off: {errno}"));
    wait_for_console(log);
    ExitCode::FAILURE
}

/// For the host to read the last announcements, and for the disk to store the end of the log.
const PATIENCE: Duration = Duration::from_secs(2);

/// For the console to show them: a serial line is slow. A terminal that was
/// stopped (Ctrl-S) must not keep the machine on.
const CONSOLE_PATIENCE: Duration = Duration::from_secs(10);

/// Details of the line before them, such as the problems of a configuration, are indented.
fn fatal(host: &Host, log: Option<&Stream>, message: String) {
    let message = nodelog::redact(&message).into_owned();
    for (number, line) in message.lines().enumerate() {
        match number {
            0 => print(log, &format!("error: {line}")),
            _ if line.starts_with(' ') => print(log, line),
            _ => print(log, &format!("caused by: {line}")),
        }
    }
    host.announce(Announcement::Fatal { message });
}

/// On the console, after what was logged. Before there is a log nothing runs yet that could be held up.
fn print(log: Option<&Stream>, text: &str) {
    match log {
        Some(log) => log.print(text),
        // `println!` panics when the console is gone.
        None => drop(writeln!(io::stdout(), "{text}")),
    }
}

fn wait_for_console(log: Option<&Stream>) {
    if let Some(log) = log {
        log.wait_for_console(CONSOLE_PATIENCE);
    }
}
