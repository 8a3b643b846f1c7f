//! Drivers of the machine's devices: of those present at boot, and of those that appear later.

use std::path::Path;
use std::thread;

use kernel::modules::{BUSES, DriverReport, Drivers, ModuleName, Uevent, Uevents};
use tracing::{error, info};

use crate::error::StepError;
use crate::status::chain;

const DIRECTORY: &str = "/usr/lib/modules/drivers";

/// Loads the drivers of present devices. Then a thread loads the drivers of devices that appear, until the machine is
/// off. A driver that fails to load is only logged: the node may not need its device.
pub(crate) fn start() -> Result<(), StepError> {
    // Opened first, so that a device that appears meanwhile is not missed.
    let uevents = Uevents::open().map_err(StepError::of("cannot open the socket for messages about devices"))?;
    let mut drivers =
        Drivers::open(DIRECTORY).map_err(StepError::of("cannot read the list of drivers in the image"))?;
    log(&drivers.load_present(Path::new(BUSES)));
    let follow = move || follow(&uevents, &mut drivers);
    let thread = thread::Builder::new().name("drivers".into()).spawn(follow);
    thread.map(drop).map_err(StepError::of("cannot start the thread for devices that appear"))
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
