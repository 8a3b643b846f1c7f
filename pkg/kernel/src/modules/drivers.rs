//! Modules that are loaded for the devices of the machine.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::modules::alias::{ALIASES, Pattern, parse_line};
use crate::modules::catalog::{Catalog, ModuleName};
use crate::modules::load::{LoadError, read};
use crate::modules::order::{LineError, OrderError};

/// The kernel's directory of buses with their devices.
pub const BUSES: &str = "/sys/bus";

/// Maximum number of passes over the buses. A driver such as that of a USB controller shows devices with drivers of
/// their own, which may be controllers again.
const ROUNDS: usize = 8;

/// A device that needs a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Name of the bus, such as `pci`.
    pub bus: String,
    /// Name on the bus, such as `0000:00:02.0`.
    pub name: String,
    /// Text that the patterns of drivers are compared with.
    pub modalias: String,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({})", self.bus, self.name, self.modalias)
    }
}

/// The driver of a device cannot be loaded. The source contains the errno.
#[derive(Debug, thiserror::Error)]
#[error("cannot load the driver {module} of the device {device}")]
pub struct DriverError {
    /// The driver.
    pub module: ModuleName,
    /// The first device that needs it.
    pub device: Device,
    /// The reason.
    pub source: LoadError,
}

/// Result of loading drivers.
#[derive(Debug, Default)]
pub struct DriverReport {
    /// Loaded drivers, in the order of loading.
    pub loaded: Vec<ModuleName>,
    /// Drivers that cannot be loaded. Later calls do not try them again.
    pub failed: Vec<DriverError>,
}

/// Loads each driver of a module directory when a device needs it.
#[derive(Debug)]
pub struct Drivers {
    catalog: Catalog,
    aliases: Vec<(Pattern, ModuleName)>,
    /// Drivers that were loaded or failed.
    tried: BTreeSet<ModuleName>,
    /// Devices whose drivers were looked up by [`Self::load_present`].
    seen: BTreeSet<String>,
}

impl Drivers {
    /// Reads the lists of a directory with drivers. Loads nothing.
    ///
    /// # Errors
    /// [`LoadError::Order`], [`LoadError::Parse`]: `dir` is not a directory of drivers, or its lists are damaged.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, LoadError> {
        let catalog = Catalog::open(dir)?;
        let path = catalog.dir().join(ALIASES);
        let text = read(&path)?;
        let mut aliases = Vec::new();
        for (index, line) in text.lines().enumerate() {
            match parse_line(line) {
                Some((pattern, module)) if catalog.has(&module) => aliases.push((pattern, module)),
                _ => {
                    let source = OrderError { line: index + 1, text: line.to_owned(), problem: LineError::Name };
                    return Err(LoadError::Parse { path, source });
                }
            }
        }
        Ok(Self { catalog, aliases, tried: BTreeSet::new(), seen: BTreeSet::new() })
    }

    /// Loads the drivers of the devices below `buses` ([`BUSES`]), and of those that appear meanwhile. A further call
    /// skips devices that were looked up before. Devices that the kernel no longer has, or cannot describe, are
    /// skipped.
    pub fn load_present(&mut self, buses: &Path) -> DriverReport {
        let mut report = DriverReport::default();
        for _ in 0..ROUNDS {
            let before = report.loaded.len();
            for device in devices(buses) {
                if self.seen.insert(device.modalias.clone()) {
                    self.load_for(&device, &mut report);
                }
            }
            if report.loaded.len() == before {
                break;
            }
        }
        report
    }

    /// Loads the drivers of a device that are not loaded yet, and adds them to the report.
    pub fn load_for(&mut self, device: &Device, report: &mut DriverReport) {
        for module in self.drivers(&device.modalias) {
            if !self.tried.insert(module.clone()) {
                continue;
            }
            match self.catalog.load(std::slice::from_ref(&module)) {
                // The module was loaded before, or is built into the kernel.
                Ok(inserted) if inserted.loaded.is_empty() => {}
                Ok(_) => report.loaded.push(module),
                Err(source) => report.failed.push(DriverError { module, device: device.clone(), source }),
            }
        }
    }

    /// The modules with a pattern that matches.
    fn drivers(&self, modalias: &str) -> BTreeSet<ModuleName> {
        let matching = self.aliases.iter().filter(|(pattern, _)| pattern.matches(modalias));
        matching.map(|(_, module)| module.clone()).collect()
    }
}

/// All devices with a modalias.
fn devices(buses: &Path) -> Vec<Device> {
    let names = |directory: &Path| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    let mut found = Vec::new();
    for bus in names(buses) {
        let directory = buses.join(&bus).join("devices");
        for name in names(&directory) {
            if let Ok(modalias) = fs::read_to_string(directory.join(&name).join("modalias")) {
                let modalias = modalias.trim_end().to_owned();
                found.push(Device { bus: bus.clone(), name, modalias });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;
    use crate::modules::catalog::CATALOG;
    use crate::modules::order::ORDER;

    /// A module directory whose drivers have no files.
    fn directory(aliases: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(ORDER), "granary_core.ko.xz\ngranary_a.ko.xz\ngranary_b.ko.xz\n").unwrap();
        let catalog = "granary_a granary_core.ko.xz granary_a.ko.xz\ngranary-b granary_b.ko.xz\nbuilt_in\n";
        fs::write(dir.path().join(CATALOG), catalog).unwrap();
        fs::write(dir.path().join(ALIASES), aliases).unwrap();
        dir
    }

    /// Buses with these devices, with their modalias if they have one.
    fn buses(devices: &[(&str, &str, Option<&str>)]) -> tempfile::TempDir {
        let buses = tempfile::tempdir().unwrap();
        for (bus, name, modalias) in devices {
            let device = buses.path().join(bus).join("devices").join(name);
            fs::create_dir_all(&device).unwrap();
            if let Some(modalias) = modalias {
                fs::write(device.join("modalias"), format!("{modalias}\n")).unwrap();
            }
        }
        buses
    }

    #[test]
    fn a_driver_that_cannot_be_loaded_is_reported_once_with_its_device() {
        let dir = directory("pci:v0001* granary_a\npci:v0001d02* granary_b\nacpi*:QEMU* built_in\n");
        let buses = buses(&[
            ("pci", "0000:00:02.0", Some("pci:v0001d01")),
            ("pci", "0000:00:03.0", Some("pci:v0001d03")),
            ("acpi", "QEMU0002:00", Some("acpi:QEMU0002:")),
            ("cpu", "cpu0", None),
            ("usb", "1-1", Some("usb:v0001")),
        ]);
        let mut drivers = Drivers::open(dir.path()).unwrap();
        let report = drivers.load_present(buses.path());
        assert!(report.loaded.is_empty(), "{report:?}");
        let [error] = &report.failed[..] else { panic!("{report:?}") };
        let text = error.to_string();
        assert!(text.starts_with("cannot load the driver granary_a of the device pci 0000:00:0"), "{text}");
        let cause = error.source().unwrap().to_string();
        assert!(cause.contains("granary_core.ko.xz"), "{cause}");

        // No device is new, and another device of a failed driver reports nothing.
        let report = drivers.load_present(buses.path());
        assert!(report.loaded.is_empty() && report.failed.is_empty(), "{report:?}");
        let mut report = DriverReport::default();
        let device = |modalias: &str| Device { bus: "pci".into(), name: "late".into(), modalias: modalias.into() };
        drivers.load_for(&device("pci:v0001d04"), &mut report);
        assert!(report.failed.is_empty(), "{report:?}");
        drivers.load_for(&device("pci:v0001d02"), &mut report);
        assert_eq!(report.failed[0].module.as_str(), "granary_b");
    }

    #[test]
    fn a_machine_without_buses_needs_no_driver() {
        let dir = directory("");
        let report = Drivers::open(dir.path()).unwrap().load_present(Path::new("/nowhere"));
        assert!(report.loaded.is_empty() && report.failed.is_empty());
    }

    #[test]
    fn a_damaged_list_is_named_with_its_line() {
        for wrong in ["pci:*", "pci:* unknown", "pci:* a/b"] {
            let dir = directory(&format!("pci:v1* granary_a\n{wrong}\n"));
            let error = Drivers::open(dir.path()).unwrap_err();
            let LoadError::Parse { path, source } = error else { panic!("{error:?}") };
            assert_eq!((path, source.line), (dir.path().join(ALIASES), 2), "{wrong}");
        }
    }
}
