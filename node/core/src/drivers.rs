//! Drivers of the machine's devices: of those present at the boot, then of those that appear.

use std::io;
use std::path::Path;
use std::thread;

use kernel::modules::{BUSES, DriverReport, Drivers, LoadError, ModuleName, Uevent, Uevents};
use tracing::{error, info};

use crate::status::chain;

const DIRECTORY: &str = "/usr/lib/modules/drivers";

#[derive(Debug, thiserror::Error)]
pub enum DriversError {
    #[error("cannot read which drivers the image has")]
    Open(#[from] LoadError),
    #[error("cannot open the socket for messages about devices")]
    Socket(#[source] io::Error),
    #[error("cannot start the thread for devices that appear")]
    Thread(#[source] io::Error),
}

/// Loads the drivers of the devices that the machine has, then, in a thread that runs until the machine is off, of those that
/// appear. A driver that cannot be loaded is logged: the node may not need its device.
pub(crate) fn start() -> Result<(), DriversError> {
    // First, so that no device is missed that appears meanwhile.
    let uevents = Uevents::open().map_err(DriversError::Socket)?;
    let mut drivers = Drivers::open(DIRECTORY)?;
    log(&drivers.load_present(Path::new(BUSES)));
    let follow = move || follow(&uevents, &mut drivers);
    thread::Builder::new().name("drivers".into()).spawn(follow).map_err(DriversError::Thread)?;
    Ok(())
}

fn follow(uevents: &Uevents, drivers: &mut Drivers) {
    loop {
        match uevents.receive() {
            Ok(Uevent::Other) => {}
            Ok(Uevent::Lost) => log(&drivers.load_present(Path::new(BUSES))),
            Ok(Uevent::Device(device)) => {
                let mut report = DriverReport::default();
                drivers.load_for(&device, &mut report);
                log(&report);
            }
            Err(error) => {
                error!(%error, "cannot receive messages about devices; a device that appears gets its driver at the next boot");
                return;
            }
        }
    }
}

fn log(report: &DriverReport) {
    if !report.loaded.is_empty() {
        let loaded: Vec<_> = report.loaded.iter().map(ModuleName::as_str).collect();
        info!(loaded = loaded.join(", "), "drivers loaded");
    }
    for failed in &report.failed {
        error!("{}", chain(failed, ": "));
    }
}
