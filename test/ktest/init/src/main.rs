//! PID 1 of a kernel test's guest: prepares the system, runs the test program, reports the result to the host, powers
//! off.
#![forbid(unsafe_code)]

mod host;
mod output;
mod program;
mod relay;
mod system;
mod unpack;
mod wait;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use ktest_init::{PORT, SOCKET, StepError, Unpack, Word};
use nix::sys::reboot::{RebootMode, reboot};
use nix::unistd::{getpid, sync};

use crate::host::{Host, Task};

const BASE_MODULES: &str = "/base-modules";
const MODULES: &str = "/modules";

/// Time limit for devices to appear while the kernel finds them.
const DEVICE_LIMIT: Duration = Duration::from_secs(30);

/// Time limit for the next order. The host sends it at once; a guest that was started by hand has no host.
const NEXT_ORDER_LIMIT: Duration = Duration::from_secs(10);

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
            host.send(&Word::Fault(causes));
            // Waits until the host has received the fault.
            host.next_task(NEXT_ORDER_LIMIT);
        }
    }
    sync();
    let refused = reboot(RebootMode::RB_POWER_OFF);
    eprintln!("error: cannot power off: {refused:?}");
    // The kernel panics when PID 1 ends; that ends the VM too.
    ExitCode::FAILURE
}

fn open() -> Result<Arc<Host>, StepError> {
    system::mount_all()?;
    let host = Host::connect(DEVICE_LIMIT).map_err(StepError::of(format!("open the port {PORT} to the host")))?;
    Ok(Arc::new(host))
}

/// Prepares everything that does not depend on the payload, then carries out the host's tasks. The host may save the
/// guest between the two.
fn work(host: &Arc<Host>) -> Result<(), StepError> {
    system::bring_up_loopback()?;
    load(BASE_MODULES)?;
    let relay = relay::start(Arc::clone(host));
    relay.map_err(StepError::of(format!("listen at {SOCKET} for requests of tests")))?;
    host.send(&Word::Ready);
    let first = host.first_task().ok_or("the host gave no order");
    let mut next = Some(first.map_err(StepError::of("run a test"))?);
    let mut is_prepared = false;
    while let Some(task) = next {
        match task {
            Task::Unpack(Unpack { disk, time }) => {
                system::set_clock(time)?;
                for disk in system::disks(&[disk], DEVICE_LIMIT)? {
                    unpack::from_disk(&disk, Path::new("/"))?;
                }
            }
            Task::Run(run) => {
                if !is_prepared {
                    load(MODULES)?;
                    is_prepared = true;
                }
                system::check_tools(&run.tools)?;
                let disks = system::disks(&run.disks, DEVICE_LIMIT)?;
                let outcome = program::run(host, &run, &disks)?;
                host.send(&Word::Exit(outcome));
            }
        }
        next = host.next_task(NEXT_ORDER_LIMIT);
    }
    Ok(())
}

fn load(directory: &str) -> Result<(), StepError> {
    let report = kernel::modules::load(directory).map_err(StepError::of("load the kernel modules"))?;
    for module in &report.without_hardware {
        eprintln!("no hardware for the module {module}");
    }
    Ok(())
}

fn causes(fault: &StepError) -> Vec<String> {
    std::iter::successors(Some(fault as &dyn Error), |&error| error.source()).map(ToString::to_string).collect()
}
