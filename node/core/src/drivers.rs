//! Drivers of the machine's devices: of those present at boot, and of those that appear later.

use std::path::Path;
use std::{io, iter, thread};

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
    let follow = move || {
        let messages = iter::repeat_with(|| uevents.receive());
        if let Err(error) = follow(messages, &mut drivers, Path::new(BUSES), log) {
            error!(%error, "cannot receive messages about devices; a device that appears gets its driver at the next boot");
        }
    };
    let thread = thread::Builder::new().name("drivers".into()).spawn(follow);
    thread.map(drop).map_err(StepError::of("cannot start the thread for devices that appear"))
}

/// Loads the drivers of devices that appear, until a message cannot be received.
fn follow(
    messages: impl Iterator<Item = io::Result<Uevent>>,
    drivers: &mut Drivers,
    buses: &Path,
    mut publish: impl FnMut(&DriverReport),
) -> io::Result<()> {
    for message in messages {
        match message? {
            Uevent::Other => {}
            Uevent::Lost => publish(&drivers.load_present(buses)),
            Uevent::Device(device) => {
                let mut report = DriverReport::default();
                drivers.load_for(&device, &mut report);
                publish(&report);
            }
        }
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use std::fs;

    use kernel::modules::{ALIASES, CATALOG, Device, ORDER};

    use super::*;

    /// The drivers have no files, so that the report of each look names the driver that it fails to load.
    #[test]
    fn devices_that_appear_get_drivers_until_the_socket_fails() {
        let image = tempfile::tempdir().unwrap();
        let lists = [
            (ORDER, "granary_a.ko\ngranary_b.ko\n"),
            (CATALOG, "granary_a granary_a.ko\ngranary_b granary_b.ko\n"),
            (ALIASES, "pci:v000A* granary_a\npci:v000B* granary_b\n"),
        ];
        for (name, text) in lists {
            fs::write(image.path().join(name), text).unwrap();
        }
        let buses = tempfile::tempdir().unwrap();
        let missed = buses.path().join("pci/devices/0000:00:03.0");
        fs::create_dir_all(&missed).unwrap();
        fs::write(missed.join("modalias"), "pci:v000Bd01\n").unwrap();

        let device = Device { bus: "pci".into(), name: "0000:00:02.0".into(), modalias: "pci:v000Ad01".into() };
        let failure = Err(io::Error::other("the socket fails"));
        let messages = [Ok(Uevent::Other), Ok(Uevent::Device(device)), Ok(Uevent::Lost), failure, Ok(Uevent::Lost)];
        let mut messages = messages.into_iter();
        let mut reports = Vec::new();
        let publish = |report: &DriverReport| {
            let failed = report.failed.iter().map(|failed| failed.module.as_str().to_owned());
            reports.push(failed.collect::<Vec<_>>());
        };
        let mut drivers = Drivers::open(image.path()).unwrap();
        let error = follow(&mut messages, &mut drivers, buses.path(), publish).unwrap_err();
        assert_eq!(error.to_string(), "the socket fails");
        assert_eq!(reports, [["granary_a"], ["granary_b"]]);
        assert_eq!(messages.len(), 1, "a message after the failure was read");
    }
}
