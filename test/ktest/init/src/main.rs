//! PID 1 of a kernel test's guest: makes the system ready, runs the test program, tells the host what
//! came of it, powers off.
#![forbid(unsafe_code)]

mod host;
mod output;
mod program;
mod system;
mod wait;

use std::error::Error;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use ktest_init::{Outcome, PORT, Run, Word};
use nix::sys::reboot::{RebootMode, reboot};
use nix::unistd::{getpid, sync};

use crate::host::Host;

/// For what appears while the kernel finds its devices.
const DEVICE_LIMIT: Duration = Duration::from_secs(30);

/// The host ends the VM by itself, but a test that was started by hand has no host.
const POWER_OFF_LIMIT: Duration = Duration::from_secs(10);

/// Why the test program was not run to its end.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("cannot make the guest ready")]
    System(#[from] system::SetupError),
    #[error("cannot load the kernel modules")]
    Modules(#[from] kmod::LoadError),
    #[error("cannot open the port {PORT} to the host")]
    Port(#[source] io::Error),
    #[error("cannot run the test program")]
    Program(#[from] program::RunError),
    #[error("the host gave no order to run a test")]
    NoOrder,
}

fn main() -> ExitCode {
    if getpid().as_raw() != 1 {
        eprintln!("error: this is the first process of a test's guest; start it as /init of an initramfs");
        return ExitCode::FAILURE;
    }
    let (host, fault) = match open() {
        Ok(host) => {
            let fault = work(&host).err();
            (Some(host), fault)
        }
        Err(fault) => (None, Some(fault)),
    };
    if let Some(fault) = fault {
        let causes = causes(&fault);
        eprintln!("error: {}", causes.join("\ncaused by: "));
        if let Some(host) = &host {
            host.tell(&Word::Fault(causes));
        }
    }
    if let Some(host) = host {
        host.wait_for_power_off(POWER_OFF_LIMIT);
    }
    sync();
    let refused = reboot(RebootMode::RB_POWER_OFF);
    eprintln!("error: cannot power off: {refused:?}");
    // The kernel panics when PID 1 ends; that ends the VM too.
    ExitCode::FAILURE
}

/// Far enough to speak with the host.
fn open() -> Result<Host, Fault> {
    system::mount_all()?;
    Host::connect(DEVICE_LIMIT).map_err(Fault::Port)
}

fn work(host: &Host) -> Result<(), Fault> {
    let run = host.first_order().ok_or(Fault::NoOrder)?;
    let outcome = execute(host, &run)?;
    host.tell(&Word::Exit(outcome));
    Ok(())
}

fn execute(host: &Host, run: &Run) -> Result<Outcome, Fault> {
    let report = kmod::load("/modules")?;
    for module in &report.without_hardware {
        eprintln!("no hardware for the module {module}");
    }
    let disks = system::disks(&run.disks, DEVICE_LIMIT)?;
    system::check_tools(&run.tools)?;
    Ok(program::run(host, run, &disks)?)
}

fn causes(fault: &Fault) -> Vec<String> {
    std::iter::successors(Some(fault as &dyn Error), |&error| error.source()).map(ToString::to_string).collect()
}
