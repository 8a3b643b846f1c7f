//! `/init` of the system image: starts the node, and when it is asked to, ends it.
#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use announce::Announcement;
use node_core::boot;
use node_core::host::Host;
use node_core::power::{self, End};

fn main() -> ExitCode {
    let mut host = Host::default();
    let mut writer = None;
    let end = match boot::run(&mut host, &mut writer) {
        Ok(end) => end,
        Err(error) => {
            let message = chain(&error);
            println!("error: {}", message.replace('\n', "\ncaused by: "));
            host.tell(Announcement::Fatal { message });
            End::PowerOff
        }
    };
    drop(host);
    if let Some(writer) = writer {
        writer.finish();
    }
    // The kernel panics when PID 1 returns: power::end comes back only if it refuses to power off.
    let errno = power::end(end, Path::new("/data"));
    println!("error: cannot power off: {errno}");
    ExitCode::FAILURE
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
