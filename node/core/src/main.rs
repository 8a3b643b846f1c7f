//! `/init` of the system image: starts the node, and when it is asked to, ends it.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use announce::Announcement;
use node_core::boot;
use node_core::host::Host;
use node_core::power::{self, End};

fn main() -> ExitCode {
    let mut host = Host::default();
    let mut writer = None;
    // A panic of PID 1 is a panic of the kernel, with nothing unmounted.
    let end = match catch_unwind(AssertUnwindSafe(|| boot::run(&mut host, &mut writer))) {
        Ok(Ok(end)) => end,
        Ok(Err(error)) => fatal(&host, chain(&error)),
        Err(_) => fatal(&host, "the node's program panicked; its message stands above".to_owned()),
    };
    drop(host);
    if let Some(writer) = writer {
        writer.finish(PATIENCE);
    }
    // Comes back only if the kernel refuses to power off.
    let errno = power::end(end, &[Path::new("/ephemeral"), Path::new("/data")]);
    print(&format!("error: cannot power off: {errno}"));
    ExitCode::FAILURE
}

/// How long the machine may take to hear the last words.
const PATIENCE: Duration = Duration::from_secs(2);

fn fatal(host: &Host, message: String) -> End {
    print(&format!("error: {}", message.replace('\n', "\ncaused by: ")));
    host.tell(Announcement::Fatal { message });
    End::PowerOff
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
