//! VMs that run a Linux kernel. Without a root, the kernel panics after its start.

use std::env;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use qemu::{
    Accelerator, Boot, Card, Config, Disk, DiskModel, Link, Mac, Network, Program, Sink, StartError, Vm, console_tail,
};
use serde_json::json;
use tempfile::TempDir;

const LONG: Duration = Duration::from_secs(60);

/// Files of a test, and the QEMU that it runs.
struct Host {
    dir: TempDir,
    program: Program,
}

impl Host {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), program: Program::find().unwrap() }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn disk(&self, serial: &str) -> Disk {
        let path = self.file(serial);
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        Disk::new(serial.parse().unwrap(), path)
    }

    fn start(&self, config: &Config) -> Result<Vm, StartError> {
        Vm::start(&self.program, Accelerator::Tcg, config)
    }
}

/// A kernel that waits for its root forever.
fn waiting() -> Config {
    kernel("rootwait root=/dev/vdz")
}

fn kernel(more: &str) -> Config {
    let kernel = env::var_os("VMLINUZ").expect("VMLINUZ names a kernel").into();
    let command_line = format!("console=ttyS0 panic=-1 {more}");
    Config::new(Boot::Kernel { kernel, initrd: None, command_line })
}

#[test]
fn a_panic_of_the_guest_ends_the_vm_and_stands_on_the_console() {
    let host = Host::new();
    let mut config = kernel("root=/dev/vdz");
    config.console = Sink::File(host.file("console, log"));
    let vm = host.start(&config).unwrap();
    let exit = vm.wait(LONG).unwrap();
    assert!(exit.status.success(), "{exit}");
    let console = console_tail(&host.file("console, log"), 60).unwrap();
    assert!(console.iter().any(|line| line.contains("Kernel panic")), "{console:#?}");
}

#[test]
fn a_streamed_console_carries_what_the_guest_says() {
    use std::io::{BufRead, BufReader};

    let host = Host::new();
    let mut config = waiting();
    config.console = Sink::Stream;
    let vm = host.start(&config).unwrap();
    let console = vm.take_console().unwrap();
    assert!(vm.take_console().is_none());
    console.set_read_timeout(Some(LONG)).unwrap();
    let mut lines = BufReader::new(console).lines();
    assert!(lines.any(|line| line.unwrap().contains("Linux version")));
}

#[test]
fn the_disks_are_counted_and_quit_ends_the_vm() {
    let host = Host::new();
    let mut config = waiting();
    config.disks = vec![host.disk("one"), host.disk("two")];
    let vm = host.start(&config).unwrap();
    let stats = vm.block_stats().unwrap();
    let serials: Vec<_> = stats.keys().map(qemu::Serial::as_str).collect();
    assert_eq!(serials, ["one", "two"]);
    assert_eq!(vm.execute("query-status", json!({})).unwrap()["running"], json!(true));
    vm.quit().unwrap();
    assert!(vm.wait(LONG).unwrap().status.success());
    vm.quit().unwrap();
}

#[test]
fn a_guest_that_ignores_the_power_button_is_killed() {
    let host = Host::new();
    let vm = host.start(&waiting()).unwrap();
    assert_eq!(vm.exit(), None);
    let exit = vm.shut_down(Duration::from_millis(100));
    assert_eq!(exit.status.signal(), Some(9));
}

#[test]
fn a_vm_outlives_the_thread_that_started_it() {
    let host = Host::new();
    let config = waiting();
    let vm = thread::scope(|scope| scope.spawn(|| host.start(&config)).join().unwrap()).unwrap();
    assert_eq!(vm.execute("query-status", json!({})).unwrap()["running"], json!(true));
}

#[test]
fn a_missing_disk_is_reported_with_qemus_message() {
    let host = Host::new();
    let mut config = waiting();
    config.disks.push(Disk::new("data".parse().unwrap(), host.file("absent.img")));
    let error = host.start(&config).unwrap_err();
    assert!(matches!(&error, StartError::Ended(exit) if exit.stderr.contains("absent.img")), "{error:?}");
}

#[test]
fn two_vms_cannot_write_to_one_file() {
    let host = Host::new();
    let mut config = waiting();
    config.disks.push(host.disk("data"));
    let _first = host.start(&config).unwrap();
    let error = host.start(&config).unwrap_err();
    assert!(matches!(&error, StartError::Ended(exit) if exit.stderr.contains("lock")), "{error:?}");
}

#[test]
fn a_segment_forwards_a_host_port_to_the_vm() {
    use qemu::{Forward, Segment, free_port};
    use std::net::TcpStream;
    use std::os::unix::net::UnixDatagram;

    let host = Host::new();
    let forward = Forward { host: free_port().unwrap(), guest: 80 };
    let segment = Segment::start(&host.program, &[forward]).unwrap();
    let (wire, theirs) = UnixDatagram::pair().unwrap();
    wire.set_read_timeout(Some(LONG)).unwrap();
    let _plug = segment.connect(Mac::of(0), theirs).unwrap();
    let _caller = TcpStream::connect(("127.0.0.1", forward.host)).unwrap();
    // Before its first frame to 10.0.2.15, user networking asks for its Ethernet address by broadcast (RFC 826).
    let mut frame = [0; 100];
    let length = wire.recv(&mut frame).unwrap();
    assert!(length >= 42, "{length}");
    assert_eq!((&frame[..6], &frame[12..14], &frame[38..42]), (&[0xff; 6][..], &[8, 6][..], &[10, 0, 2, 15][..]));
    assert_eq!(segment.exit(), None);

    let error = Segment::start(&host.program, &[forward]).unwrap_err();
    assert!(matches!(&error, StartError::Ended(exit) if exit.stderr.contains("forward")), "{error:?}");
}

#[test]
fn what_a_vm_sends_is_captured() {
    let host = Host::new();
    let mut config = waiting();
    let capture = host.file("wire, first.pcap");
    config.network = Some(Network {
        card: Card::default(),
        mac: Some(Mac::of(3)),
        link: Link::Wire,
        capture: Some(capture.clone()),
    });
    let vm = host.start(&config).unwrap();
    let wire = vm.take_wire().unwrap();
    assert!(vm.take_wire().is_none());
    let filter = vm.execute("query-rx-filter", json!({})).unwrap();
    assert_eq!(filter[0]["main-mac"], json!("52:54:00:00:00:03"));
    let sent = [7; 60];
    wire.send(&sent).unwrap();
    let start = std::time::Instant::now();
    // pcap-savefile(5): a header of 24 bytes, then each frame after its header of 16 bytes.
    while std::fs::metadata(&capture).unwrap().len() < 24 + 16 + 60 {
        assert!(start.elapsed() < LONG, "nothing is captured");
        thread::yield_now();
    }
    assert!(std::fs::read(&capture).unwrap().ends_with(&sent));
}

#[test]
fn this_qemu_has_the_devices_of_other_machines() {
    let host = Host::new();
    let image = host.file("data.img");
    File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let nvme = DiskModel::Nvme { warnings: 0b1_1111 };
    for (model, card) in [(nvme, Card::E1000e), (DiskModel::Ahci, Card::Igb), (DiskModel::Virtio, Card::Vmxnet3)] {
        let mut config = waiting();
        config.disks = vec![Disk { model, ..Disk::new("data".parse().unwrap(), &image) }];
        config.network = Some(Network { card, mac: None, link: Link::Wire, capture: None });
        if let Err(error) = host.start(&config) {
            panic!("{model:?} {card:?}: {error:?}");
        }
    }
}
