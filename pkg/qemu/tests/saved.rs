//! Guests that are saved and restored: a Linux kernel that waits for its root forever.

use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use qemu::{
    Accelerator, AttachError, Boot, Config, Disk, Program, RestoreError, SaveError, Saved, Sink, Vm, Wrap, overlay,
};
use serde_json::json;
use tempfile::TempDir;
use units::Bytes;

const LONG: Duration = Duration::from_secs(60);
/// Text on the console when the kernel has found its devices.
const WAITS: &str = "Waiting for root device";
/// Text on the console when the kernel finds a virtio disk: vendor and device.
const FOUND: &str = "[1af4:1042]";

/// One saved guest for all tests, with a disk of 1 MiB.
static SAVED: LazyLock<(TempDir, Saved)> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    let saved = save(dir.path());
    (dir, saved)
});

fn program() -> Program {
    Program::find().unwrap()
}

fn config(disk: Disk) -> Config {
    let kernel = env::var_os("VMLINUZ").expect("VMLINUZ names a kernel").into();
    let command_line = "console=ttyS0 panic=-1 rootwait root=/dev/vdz".into();
    let mut config = Config::new(Boot::Kernel { kernel, initrd: None, command_line });
    config.memory = Bytes::new(256 << 20);
    config.console = Sink::Stream;
    config.disks = vec![disk];
    config.spare_ports = 1;
    config
}

fn base(dir: &Path) -> PathBuf {
    dir.join("base.img")
}

fn save(dir: &Path) -> Saved {
    File::create(base(dir)).unwrap().set_len(1 << 20).unwrap();
    let config = config(Disk::new("data".parse().unwrap(), base(dir)));
    let vm = Vm::start_savable(&program(), Accelerator::Tcg, &config, dir).unwrap();
    says(&vm, WAITS);
    vm.save().unwrap()
}

/// The configuration of the saved guest, its disk as an overlay in `dir`.
fn restored(dir: &Path) -> Config {
    let changes = dir.join("changes.qcow2");
    overlay(&changes, Bytes::new(1 << 20)).unwrap();
    let mut disk = Disk::new("data".parse().unwrap(), base(SAVED.0.path()));
    disk.wrap = Wrap::Overlay(changes);
    config(disk)
}

fn restore(config: &Config) -> Result<Vm, RestoreError> {
    Vm::restore(&program(), Accelerator::Tcg, config, &SAVED.1)
}

#[track_caller]
fn says(vm: &Vm, text: &str) {
    let console = vm.take_console().unwrap();
    console.set_read_timeout(Some(LONG)).unwrap();
    let mut lines = BufReader::new(console).lines();
    assert!(lines.any(|line| line.unwrap().contains(text)), "the console ends without {text:?}");
}

/// A disk that a test attaches.
fn disk(dir: &Path, name: &str) -> Disk {
    let path = dir.join(name);
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    Disk::new(name.parse().unwrap(), path)
}

#[test]
fn two_guests_run_from_one_state_with_different_generation_ids() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let vms = dirs.each_ref().map(|dir| restore(&restored(dir.path())).unwrap());
    for (vm, dir) in vms.iter().zip(&dirs) {
        assert_eq!(vm.execute("query-status", json!({})).unwrap()["status"], json!("paused"));
        vm.attach(&disk(dir.path(), "attached")).unwrap();
        vm.resume().unwrap();
    }
    for vm in &vms {
        says(vm, FOUND);
    }
    let [first, second] = vms.each_ref().map(|vm| vm.execute("query-vm-generation-id", json!({})).unwrap());
    assert_ne!(first["guid"], second["guid"]);
}

#[test]
fn a_restored_guest_does_not_change_the_saved_one() {
    let modified = || fs::metadata(SAVED.0.path().join("state")).unwrap().modified().unwrap();
    let before = modified();
    let dir = tempfile::tempdir().unwrap();
    let vm = restore(&restored(dir.path())).unwrap();
    vm.attach(&disk(dir.path(), "attached")).unwrap();
    vm.resume().unwrap();
    says(&vm, FOUND);
    drop(vm);
    assert_eq!(modified(), before);
}

#[test]
fn disks_are_attached_until_no_port_is_free() {
    let dir = tempfile::tempdir().unwrap();
    let vm = restore(&restored(dir.path())).unwrap();
    let error = vm.attach(&Disk::new("data".parse().unwrap(), dir.path())).unwrap_err();
    assert!(matches!(error, AttachError::Config { .. }), "{error}");
    vm.attach(&disk(dir.path(), "first")).unwrap();
    let serials: Vec<String> = vm.block_stats().unwrap().keys().map(ToString::to_string).collect();
    assert_eq!(serials, ["data", "first"]);
    let error = vm.attach(&disk(dir.path(), "second")).unwrap_err();
    assert!(matches!(error, AttachError::NoPort(serial) if serial.as_str() == "second"));
}

#[test]
fn another_machine_is_rejected_with_the_argument_that_differs() {
    let dir = tempfile::tempdir().unwrap();
    let fits = restored(dir.path());
    let differs = |change: fn(&mut Config)| {
        let mut config = fits.clone();
        change(&mut config);
        restore(&config).unwrap_err().to_string()
    };
    let error = differs(|config| config.cpus = 1.try_into().unwrap());
    assert!(error.contains("-smp 2") && error.contains("-smp 1"), "{error}");
    let error = differs(|config| config.memory = Bytes::new(512 << 20));
    assert!(error.contains("-m 268435456B") && error.contains("-m 536870912B"), "{error}");
    let error = differs(|config| config.disks.clear());
    assert!(error.contains("virtio-blk-pci"), "{error}");
    let error = differs(|config| config.spare_ports = 2);
    assert!(error.contains("pcie-root-port,id=spare1"), "{error}");
}

#[test]
fn a_damaged_state_is_reported_in_qemus_words() {
    let dir = tempfile::tempdir().unwrap();
    for file in ["state", "machine.json"] {
        fs::copy(SAVED.0.path().join(file), dir.path().join(file)).unwrap();
    }
    let state = dir.path().join("state");
    let half = fs::metadata(&state).unwrap().len() / 2;
    File::options().write(true).open(&state).unwrap().set_len(half).unwrap();
    let config = restored(dir.path());
    let error = Vm::restore(&program(), Accelerator::Tcg, &config, &Saved::open(dir.path()).unwrap()).unwrap_err();
    assert!(matches!(&error, RestoreError::Failed(reason) if reason.contains("load")), "{error:?}");
}

#[test]
fn a_guest_that_was_not_started_for_it_cannot_be_saved() {
    let dir = tempfile::tempdir().unwrap();
    let vm = Vm::start(&program(), Accelerator::Tcg, &restored(dir.path())).unwrap();
    assert!(matches!(vm.save(), Err(SaveError::NotSavable)));
}
