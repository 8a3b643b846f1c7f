//! PID 1 of the stub guest.
#![forbid(unsafe_code)]

mod api;
mod button;
mod port;

use crate::button::Button;
use crate::port::Port;
use cluster::announcement::{Announcement, StageState};
use e2e::launcher::{PRESSED, Stub, VARIABLE, WAITING};
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use nix::unistd::pause;
use std::env;
use std::error::Error;
use std::process::ExitCode;

fn main() -> ExitCode {
    // For the launcher, this line marks the end of the kernel's start.
    println!("initramfs: started");
    let ended = run();
    println!("error: {ended:?}");
    // The kernel panics when PID 1 exits, which also ends the VM.
    ExitCode::FAILURE
}

/// Runs the stub. Returns only with an error.
fn run() -> Result<(), Box<dyn Error>> {
    let name = env::var(VARIABLE)?;
    let stub = Stub::named(&name).map_err(|error| format!("{VARIABLE}={name}: {error}"))?;
    if stub == Stub::Hangs {
        loop {
            pause();
        }
    }
    for (kind, path) in [("devtmpfs", "/dev"), ("sysfs", "/sys")] {
        mount(Some(kind), path, Some(kind), MsFlags::empty(), None::<&str>)?;
    }
    kernel::modules::load("/modules")?;
    let button = Button::open()?;
    let mut port = Port::open()?;
    port.announce(&stage("init", StageState::Ready))?;
    port.announce(&stage("data-disk", StageState::Started))?;
    port.announce(&stage("data-disk", StageState::Ready))?;
    if stub == Stub::Ready {
        let kubeconfig = api::start()?;
        port.announce(&Announcement::Credentials { kubeconfig })?;
    }
    println!("{WAITING}");
    loop {
        button.wait_for_press()?;
        println!("{PRESSED}");
        if stub != Stub::IgnoresButton {
            reboot(RebootMode::RB_POWER_OFF)?;
        }
    }
}

fn stage(name: &str, state: StageState) -> Announcement {
    // The launcher does not read the time.
    Announcement::Stage { name: name.to_owned(), state, at_ms: 0 }
}
