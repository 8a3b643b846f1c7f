//! `/init` of the system image: starts the node, and when it is asked to, ends it.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use announce::Announcement;
use node_core::boot::{self, Begun};
use node_core::host::Host;
use node_core::power;

fn main() -> ExitCode {
    let mut begun = Begun::default();
    // A panic of PID 1 is a panic of the kernel, with nothing unmounted.
    let end = catch_unwind(AssertUnwindSafe(|| boot::run(&mut begun)));
    let Begun { host, writer, log, on_failure } = begun;
    let end = match end {
        Ok(Ok(end)) => end,
        failed => {
            let message = match failed {
                Ok(Err(error)) => chain(&error),
                _ => "the node's program panicked; its message stands above".to_owned(),
            };
            fatal(&host, message);
            on_failure
        }
    };
    drop(host);
    if let Some(writer) = writer {
        writer.finish(PATIENCE);
    }
    // Its file is on the data disk, which is unmounted now.
    if let Some(log) = log
        && !log.close(PATIENCE)
    {
        print("the disk did not take the end of the log in time");
    }
    // Comes back only if the kernel refuses to power off.
    let errno = power::end(end, &[Path::new("/ephemeral"), Path::new("/data")]);
    print(&format!("error: cannot power off: {errno}"));
    ExitCode::FAILURE
}

/// How long the machine may take to hear the last words, and the disk to take them.
const PATIENCE: Duration = Duration::from_secs(2);

/// What belongs to the line before it, such as the problems of a configuration, is indented.
fn fatal(host: &Host, message: String) {
    let message = nodelog::redact(&message).into_owned();
    for (number, line) in message.lines().enumerate() {
        match number {
            0 => print(&format!("error: {line}")),
            _ if line.starts_with(' ') => print(line),
            _ => print(&format!("caused by: {line}")),
        }
    }
    host.tell(Announcement::Fatal { message });
}

/// `println!` panics when the console is gone.
fn print(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// The error and its causes, a line each.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push('\n');
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
