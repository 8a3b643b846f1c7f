//! `/init` of the system image: starts the node, and shuts it down on request.
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
    // The kernel gives PID 1 its own arguments.
    if process::id() != 1
        && let Some(ended) = guard::self_test(env::args_os()).or_else(|| csi::guard(env::args_os()))
    {
        return ended;
    }
    let mut state = BootState::default();
    // A panic of PID 1 would panic the kernel, with all file systems mounted.
    let end = catch_unwind(AssertUnwindSafe(|| boot::run(&mut state)));
    // Pods stay restricted until `power::leave` has ended them.
    let BootState { host, writer, log, on_failure, guard: _guard } = state;
    let log = log.as_ref();
    let end = match end {
        Ok(Ok(end)) => end,
        failed => {
            let message = match failed {
                Ok(Err(error)) => chain(&error, "\n"),
                _ => "the node's program panicked; the message is above".to_owned(),
            };
            fatal(&host, log, message);
            on_failure
        }
    };
    drop(host);
    if let Some(writer) = writer {
        writer.finish(PATIENCE);
    }
    // The log file is on the data disk, which is unmounted next.
    if log.is_some_and(|log| !log.close(PATIENCE)) {
        print(log, "the end of the log was not written to the disk in time");
    }
    // The last two are mounts of the data disk on a node with a CNI plugin of the administrator.
    power::leave(["/ephemeral", "/data", "/opt/cni/bin", "/etc/cni/net.d"].map(Path::new));
    // The console is the only place for reports of file systems that could not be unmounted.
    wait_for_console(log);
    // Returns only if the kernel rejects the power-off.
    let errno = power::off(end);
    print(log, &format!("error: cannot power off: {errno}"));
    wait_for_console(log);
    ExitCode::FAILURE
}

/// Time for the host to read the last announcements, and for the disk to store the end of the log.
const PATIENCE: Duration = Duration::from_secs(2);

/// Time for the console to print the rest: a serial line is slow. A stopped terminal (Ctrl-S) must not keep the machine
/// on.
const CONSOLE_PATIENCE: Duration = Duration::from_secs(10);

/// Prints and announces the error. Indented lines are details of the previous line, such as the problems of a
/// configuration.
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

/// Prints on the console, after the logged records. Before the log starts, no service runs that a slow console could
/// delay.
fn print(log: Option<&Stream>, text: &str) {
    match log {
        Some(log) => log.print(text),
        // `println!` panics if the console is gone.
        None => drop(writeln!(io::stdout(), "{text}")),
    }
}

fn wait_for_console(log: Option<&Stream>) {
    if let Some(log) = log {
        log.wait_for_console(CONSOLE_PATIENCE);
    }
}
