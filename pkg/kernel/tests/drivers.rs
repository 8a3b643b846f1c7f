//! Loads drivers of devices that appear. The kernel decompresses the modules.

use std::fs;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use kernel::modules::{BUSES, DriverReport, Drivers, ModuleName, Uevent, Uevents};
use nix::errno::Errno;
use nix::kmod::{DeleteModuleFlags, delete_module};

/// Directory with the drivers of the target.
const DIRECTORY: &str = "/drivers";
const DISK: &str = "/sys/class/block/vda";
const LIMIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);

fn until<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(done) = attempt() {
            return done;
        }
        assert!(Instant::now() < end, "{what}");
        thread::sleep(PAUSE);
    }
}

fn names(report: &DriverReport) -> Vec<&str> {
    assert!(report.failed.is_empty(), "{report:?}");
    report.loaded.iter().map(ModuleName::as_str).collect()
}

#[test]
fn a_device_that_appears_gets_its_driver() {
    let uevents = Uevents::open().unwrap();
    let (sender, events) = mpsc::channel();
    // The thread ends with the program.
    thread::spawn(move || while sender.send(uevents.receive().unwrap()).is_ok() {});
    // The driver of the disk is one of the guest's modules, and is not loaded again.
    assert_eq!(names(&Drivers::open(DIRECTORY).unwrap().load_present(Path::new(BUSES))), [""; 0]);

    // The virtio device is on a PCI device.
    let device = fs::canonicalize(Path::new(DISK).join("device")).unwrap();
    fs::write(device.parent().unwrap().join("remove"), "1").unwrap();
    until("the driver is not used any more", || match delete_module(c"virtio_blk", DeleteModuleFlags::O_NONBLOCK) {
        Ok(()) => Some(()),
        Err(Errno::EAGAIN | Errno::EBUSY) => None,
        Err(errno) => panic!("{errno}"),
    });
    assert!(!Path::new(DISK).exists());

    let mut drivers = Drivers::open(DIRECTORY).unwrap();
    assert_eq!(names(&drivers.load_present(Path::new(BUSES))), [""; 0]);
    fs::write("/sys/bus/pci/rescan", "1").unwrap();
    let mut report = DriverReport::default();
    while report.loaded.is_empty() && report.failed.is_empty() {
        if let Uevent::Device(device) = events.recv_timeout(LIMIT).expect("a message about the disk") {
            drivers.load_for(&device, &mut report);
        }
    }
    assert_eq!(names(&report), ["virtio_blk"]);
    until("the disk", || Path::new(DISK).exists().then_some(()));
}
