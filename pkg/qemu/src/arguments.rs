//! Conversion of a configuration to the arguments of QEMU.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::accelerator::Accelerator;
use crate::config::{Boot, Config, PortName, Sink};
use crate::disk::{Access, Cache, Disk, DiskModel, IoError, Operation, Serial, Times, Wrap};
use crate::network::{Forward, Link, Network};

/// An invalid configuration of a VM.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A file name is not UTF-8. QEMU reads the file names of disks as JSON.
    #[error("the file name {} is not UTF-8, which QEMU requires", .0.display())]
    NotUtf8(PathBuf),
    /// Two disks have the same serial number, which identifies a disk.
    #[error("two disks have the serial number {0}")]
    SameSerial(Serial),
    /// Two ports have the same name, which identifies a port.
    #[error("two ports have the name {0}")]
    SamePort(PortName),
}

/// Start of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The guest boots.
    Boot,
    /// The guest boots with the device that a saved guest needs.
    Savable,
    /// QEMU loads a saved guest before it runs.
    Saved,
}

/// Descriptors that QEMU inherits: its ends of the streams.
pub(crate) struct Streams {
    pub(crate) qmp: RawFd,
    pub(crate) console: Option<RawFd>,
    /// One for each port that is a stream, in the order of the ports.
    pub(crate) ports: Vec<RawFd>,
    pub(crate) wire: Option<RawFd>,
}

pub(crate) fn arguments(
    accelerator: Accelerator,
    config: &Config,
    streams: &Streams,
    origin: Origin,
) -> Result<Vec<OsString>, ConfigError> {
    check(config)?;
    let mut all = Arguments(Vec::new());
    all.0.extend(accelerator.arguments().map(OsString::from));
    all.0.extend(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"].map(OsString::from));
    all.add("-m", format!("{}B", config.memory.get()));
    if origin != Origin::Boot {
        all.add("-device", GENERATION);
    }
    if origin == Origin::Saved {
        all.add("-incoming", "defer");
    }
    all.add("-smp", config.cpus.to_string());
    all.add("-chardev", format!("socket,id=qmp,fd={}", streams.qmp));
    all.add("-mon", "chardev=qmp,mode=control");
    all.add("-device", "virtio-rng-pci");
    boot(&mut all, &config.boot)?;
    for (index, disk) in config.disks.iter().enumerate() {
        add_disk(&mut all, disk, index, &config.boot)?;
    }
    if let Some(network) = &config.network {
        add_network(&mut all, network, streams.wire)?;
    }
    all.add("-chardev", chardev("console", &config.console, streams.console)?);
    all.add("-serial", "chardev:console");
    add_ports(&mut all, config, streams)?;
    for file in &config.firmware_files {
        // In this syntax, `,,` stands for a comma.
        let path = utf8(&file.content)?.replace(',', ",,");
        all.add("-fw_cfg", format!("name={},file={path}", file.name));
    }
    for device in &config.devices {
        all.add("-device", device);
    }
    for number in 0..config.spare_ports {
        // Chassis and slot identify a port; 0 is the root complex.
        let slot = number + 1;
        all.add("-device", format!("pcie-root-port,id={},chassis={slot},slot={slot}", spare_port(number)));
    }
    Ok(all.0)
}

/// ID of a port for a device that is attached while the guest runs.
pub(crate) fn spare_port(number: u8) -> String {
    format!("spare{number}")
}

/// Options whose values a saved guest depends on: its devices, and the command line that its kernel has read.
const MACHINE: [&str; 7] = ["-accel", "-cpu", "-machine", "-m", "-smp", "-device", "-append"];
/// Virtual Machine Generation ID: the kernel reseeds its random number generator when the ID changes.
const GENERATION: &str = "vmgenid,guid=auto";

/// The part of the arguments that must be the same when a guest is saved and when it is restored, in their order.
pub(crate) fn machine(arguments: &[OsString]) -> Vec<(String, String)> {
    let pairs = arguments.windows(2).filter(|pair| MACHINE.iter().any(|option| pair[0] == *option));
    pairs.map(|pair| (pair[0].to_string_lossy().into_owned(), pair[1].to_string_lossy().into_owned())).collect()
}

struct Arguments(Vec<OsString>);

impl Arguments {
    fn add(&mut self, option: &str, value: impl Into<OsString>) {
        self.0.extend([option.into(), value.into()]);
    }
}

fn check(config: &Config) -> Result<(), ConfigError> {
    let mut serials = BTreeSet::new();
    if let Some(disk) = config.disks.iter().find(|disk| !serials.insert(&disk.serial)) {
        return Err(ConfigError::SameSerial(disk.serial.clone()));
    }
    let mut names = BTreeSet::new();
    match config.ports.iter().find(|port| !names.insert(&port.name)) {
        Some(port) => Err(ConfigError::SamePort(port.name.clone())),
        None => Ok(()),
    }
}

fn boot(all: &mut Arguments, boot: &Boot) -> Result<(), ConfigError> {
    match boot {
        Boot::Kernel { kernel, initrd, command_line } => {
            all.add("-machine", "q35");
            all.add("-kernel", kernel);
            if let Some(initrd) = initrd {
                all.add("-initrd", initrd);
            }
            all.add("-append", command_line);
        }
        Boot::Firmware { code, variables, oem_strings } => {
            all.add("-machine", "q35,pflash0=code,pflash1=variables");
            let node = |name: &str, path: &Path, read_only: bool| -> Result<String, ConfigError> {
                let file = json!({"driver": "file", "filename": utf8(path)?});
                Ok(json!({"driver": "raw", "node-name": name, "read-only": read_only, "file": file}).to_string())
            };
            all.add("-blockdev", node("code", code, true)?);
            all.add("-blockdev", node("variables", variables, false)?);
            for text in oem_strings {
                // In this syntax, `,,` stands for a comma.
                all.add("-smbios", format!("type=11,value={}", text.replace(',', ",,")));
            }
        }
    }
    Ok(())
}

/// Name of a disk's node in QEMU's block layer.
pub(crate) fn node_name(serial: &Serial) -> String {
    format!("disk-{serial}")
}

fn add_disk(all: &mut Arguments, disk: &Disk, index: usize, boot: &Boot) -> Result<(), ConfigError> {
    all.add("-blockdev", node(disk)?.to_string());
    let mut device = device(disk);
    if index == 0 && matches!(boot, Boot::Firmware { .. }) {
        device["bootindex"] = json!(1);
    }
    all.add("-device", device.to_string());
    Ok(())
}

pub(crate) fn device(disk: &Disk) -> Value {
    let mut device =
        json!({"driver": disk.model.driver(), "drive": node_name(&disk.serial), "serial": disk.serial.as_str()});
    match disk.model {
        DiskModel::VirtioOneQueue => device["num-queues"] = json!(1),
        DiskModel::Nvme { warnings } => device["smart_critical_warning"] = json!(warnings),
        DiskModel::Virtio | DiskModel::Ahci => {}
    }
    device
}

/// Nodes inside a node inherit its cache and access.
pub(crate) fn node(disk: &Disk) -> Result<Value, ConfigError> {
    let file = json!({"driver": "file", "filename": utf8(&disk.path)?});
    let mut node = match &disk.wrap {
        Wrap::None => json!({"driver": "raw", "file": file}),
        Wrap::Overlay(overlay) => {
            let changes = json!({"driver": "file", "filename": utf8(overlay)?, "discard": "unmap"});
            let base = json!({"driver": "raw", "read-only": true, "file": file});
            json!({"driver": "qcow2", "file": changes, "backing": base})
        }
        Wrap::Errors(errors) => {
            let rules: Vec<Value> = errors.iter().map(rule).collect();
            json!({"driver": "raw", "file": {"driver": "blkdebug", "image": file, "inject-error": rules}})
        }
        Wrap::WriteLog(log) => {
            let log = json!({"driver": "file", "filename": utf8(log)?});
            json!({"driver": "blklogwrites", "file": file, "log": log})
        }
    };
    node["node-name"] = json!(node_name(&disk.serial));
    node["read-only"] = json!(disk.access == Access::ReadOnly);
    node["discard"] = json!("unmap");
    node["cache"] = json!({"no-flush": disk.cache == Cache::Unsafe});
    Ok(node)
}

fn rule(error: &IoError) -> Value {
    let operation = match error.operation {
        Operation::Read => "read",
        Operation::Write => "write",
        Operation::Flush => "flush",
        Operation::Discard => "discard",
    };
    let mut rule = json!({
        "event": "none",
        "iotype": operation,
        "errno": error.errno as i32,
        "once": error.times == Times::Once,
    });
    if let Some(sector) = error.sector {
        rule["sector"] = json!(sector);
    }
    rule
}

fn add_network(all: &mut Arguments, network: &Network, wire: Option<RawFd>) -> Result<(), ConfigError> {
    let link = match (&network.link, wire) {
        (Link::User { forwards }, _) => user("network", forwards),
        (Link::Wire, Some(descriptor)) => frames("network", descriptor),
        (Link::Wire, None) => hub("network", None),
    };
    all.add("-netdev", link.to_string());
    // An empty `romfile`: nothing boots from the network, and firmware starts faster.
    let mut device = json!({"driver": network.card.driver(), "netdev": "network", "romfile": ""});
    if let Some(mac) = network.mac {
        device["mac"] = json!(mac.to_string());
    }
    all.add("-device", device.to_string());
    if let Some(path) = &network.capture {
        let dump = json!({"qom-type": "filter-dump", "id": "capture", "netdev": "network", "file": utf8(path)?});
        all.add("-object", dump.to_string());
    }
    Ok(())
}

/// Arguments of a QEMU without a VM, which provides user networking at the other end of the wire.
pub(crate) fn gateway(forwards: &[Forward], qmp: RawFd, wire: RawFd) -> Vec<OsString> {
    let mut all = Arguments(Vec::new());
    all.0.extend(["-nodefaults", "-no-user-config", "-display", "none", "-machine", "none"].map(OsString::from));
    all.add("-chardev", format!("socket,id=qmp,fd={qmp}"));
    all.add("-mon", "chardev=qmp,mode=control");
    all.add("-netdev", user("outside", forwards).to_string());
    all.add("-netdev", frames("wire", wire).to_string());
    // A hub connects the two back ends, because QEMU connects only a device and a back end directly.
    all.add("-netdev", hub("first", Some("outside")).to_string());
    all.add("-netdev", hub("second", Some("wire")).to_string());
    all.0
}

fn user(id: &str, forwards: &[Forward]) -> Value {
    let forward = |rule: &Forward| json!({"str": format!("tcp:127.0.0.1:{}-:{}", rule.host, rule.guest)});
    let forwards: Vec<Value> = forwards.iter().map(forward).collect();
    json!({"type": "user", "id": id, "hostfwd": forwards})
}

/// A back end that carries each frame in a datagram.
fn frames(id: &str, descriptor: RawFd) -> Value {
    json!({"type": "dgram", "id": id, "local": {"type": "fd", "str": descriptor.to_string()}})
}

fn hub(id: &str, end: Option<&str>) -> Value {
    let mut port = json!({"type": "hubport", "id": id, "hubid": 0});
    if let Some(end) = end {
        port["netdev"] = json!(end);
    }
    port
}

fn add_ports(all: &mut Arguments, config: &Config, streams: &Streams) -> Result<(), ConfigError> {
    if config.ports.is_empty() {
        return Ok(());
    }
    all.add("-device", "virtio-serial-pci");
    let mut descriptors = streams.ports.iter().copied();
    for (index, port) in config.ports.iter().enumerate() {
        let id = format!("port{index}");
        let descriptor = if port.sink == Sink::Stream { descriptors.next() } else { None };
        all.add("-chardev", chardev(&id, &port.sink, descriptor)?);
        let device = json!({"driver": "virtserialport", "chardev": id, "name": port.name.as_str()});
        all.add("-device", device.to_string());
    }
    Ok(())
}

fn chardev(id: &str, sink: &Sink, descriptor: Option<RawFd>) -> Result<String, ConfigError> {
    Ok(match (sink, descriptor) {
        (Sink::Stream, Some(descriptor)) => format!("socket,id={id},fd={descriptor}"),
        // In this syntax, `,,` stands for a comma.
        (Sink::File(path), _) => format!("file,id={id},path={}", utf8(path)?.replace(',', ",,")),
        (Sink::Discard, _) | (Sink::Stream, None) => format!("null,id={id}"),
    })
}

fn utf8(path: &Path) -> Result<&str, ConfigError> {
    path.to_str().ok_or_else(|| ConfigError::NotUtf8(path.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use nix::errno::Errno;
    use proptest::prelude::*;

    use super::*;
    use crate::accelerator::EMULATED;
    use crate::config::{FirmwareFile, Port};
    use crate::network::{Card, Mac};

    const STREAMS: Streams = Streams { qmp: 7, console: None, ports: Vec::new(), wire: None };

    fn direct() -> Config {
        Config::new(Boot::Kernel {
            kernel: "vmlinuz".into(),
            initrd: Some("initramfs".into()),
            command_line: "console=ttyS0 a=b,c".into(),
        })
    }

    fn built(config: &Config) -> Vec<String> {
        built_with(config, &STREAMS, Origin::Boot)
    }

    fn built_with(config: &Config, streams: &Streams, origin: Origin) -> Vec<String> {
        let all = arguments(Accelerator::Tcg, config, streams, origin).unwrap();
        all.into_iter().map(|argument| argument.into_string().unwrap()).collect()
    }

    fn values<'a>(all: &'a [String], option: &str) -> Vec<&'a str> {
        all.windows(2).filter(|pair| pair[0] == option).map(|pair| pair[1].as_str()).collect()
    }

    fn json_of(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_kernel_is_started_directly() {
        let all = built(&direct());
        assert_eq!(values(&all, "-machine"), ["q35"]);
        assert_eq!(values(&all, "-accel"), ["tcg,thread=multi"]);
        assert_eq!(values(&all, "-cpu"), [EMULATED]);
        assert_eq!(values(&all, "-kernel"), ["vmlinuz"]);
        assert_eq!(values(&all, "-initrd"), ["initramfs"]);
        assert_eq!(values(&all, "-append"), ["console=ttyS0 a=b,c"]);
        assert_eq!(values(&all, "-m"), ["1073741824B"]);
        assert_eq!(values(&all, "-smp"), ["2"]);
        assert_eq!(values(&all, "-chardev"), ["socket,id=qmp,fd=7", "null,id=console"]);
        assert!(all.contains(&"-nodefaults".into()) && all.contains(&"-no-user-config".into()));
        assert_eq!(values(&all, "-netdev"), [""; 0]);
    }

    #[test]
    fn a_restored_guest_has_the_machine_of_the_saved_one() {
        let built = |origin| arguments(Accelerator::Tcg, &direct(), &STREAMS, origin).unwrap();
        let (saved, restored) = (built(Origin::Savable), built(Origin::Saved));
        assert_eq!(machine(&saved), machine(&restored));
        assert_ne!(machine(&saved), machine(&built(Origin::Boot)));
        for (origin, incoming) in [(Origin::Saved, &["defer"][..]), (Origin::Savable, &[])] {
            assert_eq!(values(&built_with(&direct(), &STREAMS, origin), "-incoming"), incoming);
        }
    }

    #[test]
    fn firmware_boots_the_first_disk() {
        let mut config = direct();
        config.boot = Boot::Firmware {
            code: "CODE.fd".into(),
            variables: "VARS.fd".into(),
            oem_strings: vec!["key=a, b".into()],
        };
        config.disks = vec![Disk::new("system".parse().unwrap(), "a.img"), Disk::new("data".parse().unwrap(), "b.img")];
        let all = built(&config);
        assert_eq!(values(&all, "-machine"), ["q35,pflash0=code,pflash1=variables"]);
        assert_eq!(values(&all, "-kernel"), [""; 0]);
        assert_eq!(values(&all, "-smbios"), ["type=11,value=key=a,, b"]);
        let nodes = values(&all, "-blockdev");
        assert_eq!(json_of(nodes[0])["read-only"], json!(true));
        assert_eq!(json_of(nodes[1])["read-only"], json!(false));
        let devices = values(&all, "-device");
        assert_eq!(json_of(devices[1])["bootindex"], json!(1));
        assert_eq!(json_of(devices[2])["bootindex"], Value::Null);
    }

    #[test]
    fn a_disk_is_a_node_and_a_device() {
        let mut disk = Disk::new("data".parse().unwrap(), "/tmp/a, b.img");
        disk.access = Access::ReadOnly;
        disk.cache = Cache::Unsafe;
        let mut config = direct();
        config.disks.push(disk);
        let all = built(&config);
        assert_eq!(
            json_of(values(&all, "-blockdev")[0]),
            json!({
                "driver": "raw",
                "node-name": "disk-data",
                "read-only": true,
                "discard": "unmap",
                "cache": {"no-flush": true},
                "file": {"driver": "file", "filename": "/tmp/a, b.img"},
            })
        );
        assert_eq!(
            json_of(values(&all, "-device")[1]),
            json!({"driver": "virtio-blk-pci", "drive": "disk-data", "serial": "data"})
        );
        let ordered = Disk { model: DiskModel::VirtioOneQueue, ..Disk::new("data".parse().unwrap(), "data.img") };
        assert_eq!(
            device(&ordered),
            json!({"driver": "virtio-blk-pci", "drive": "disk-data", "serial": "data", "num-queues": 1})
        );
    }

    #[test]
    fn a_machine_without_virtio_has_other_devices() {
        let nvme = json!({"driver": "nvme", "smart_critical_warning": 9});
        for (disk, mut disk_device, card, card_driver) in [
            (DiskModel::Nvme { warnings: 9 }, nvme, Card::E1000e, "e1000e"),
            (DiskModel::Ahci, json!({"driver": "ide-hd"}), Card::Igb, "igb"),
            (DiskModel::Virtio, json!({"driver": "virtio-blk-pci"}), Card::Vmxnet3, "vmxnet3"),
        ] {
            let mut config = direct();
            config.disks.push(Disk { model: disk, ..Disk::new("data".parse().unwrap(), "data.img") });
            config.network = Some(Network { card, mac: None, link: Link::Wire, capture: None });
            let all = built(&config);
            let devices = values(&all, "-device");
            (disk_device["drive"], disk_device["serial"]) = (json!("disk-data"), json!("data"));
            assert_eq!(json_of(devices[1]), disk_device);
            assert_eq!(json_of(devices[2]), json!({"driver": card_driver, "netdev": "network", "romfile": ""}));
        }
    }

    #[test]
    fn faults_stand_between_the_disk_and_its_file() {
        let mut disk = Disk::new("data".parse().unwrap(), "data.img");
        let error = IoError { operation: Operation::Flush, errno: Errno::EIO, sector: Some(8), times: Times::Once };
        disk.wrap = Wrap::Errors(vec![error]);
        let built = node(&disk).unwrap();
        assert_eq!(built["file"]["driver"], "blkdebug");
        assert_eq!(built["file"]["image"]["filename"], "data.img");
        assert_eq!(
            built["file"]["inject-error"],
            json!([{"event": "none", "iotype": "flush", "errno": 5, "once": true, "sector": 8}])
        );
        disk.wrap = Wrap::Overlay("changes.qcow2".into());
        let built = node(&disk).unwrap();
        assert_eq!((&built["driver"], &built["file"]["filename"]), (&json!("qcow2"), &json!("changes.qcow2")));
        assert_eq!(built["backing"]["file"]["filename"], "data.img");
        disk.wrap = Wrap::WriteLog("writes.log".into());
        let built = node(&disk).unwrap();
        assert_eq!(built["driver"], "blklogwrites");
        assert_eq!(built["log"]["filename"], "writes.log");
        assert_eq!(built["node-name"], "disk-data");
    }

    #[test]
    fn a_file_for_the_guest_is_in_fw_cfg() {
        let mut config = direct();
        config.firmware_files.push(FirmwareFile { name: "opt/org.example/a", content: "/tmp/a,b.json".into() });
        assert_eq!(values(&built(&config), "-fw_cfg"), ["name=opt/org.example/a,file=/tmp/a,,b.json"]);
    }

    #[test]
    fn ports_of_the_host_lead_into_the_guest() {
        let mut config = direct();
        let link = Link::User { forwards: vec![Forward { host: 40000, guest: 6443 }] };
        config.network = Some(Network { card: Card::Virtio, mac: None, link, capture: None });
        let all = built(&config);
        assert_eq!(
            json_of(values(&all, "-netdev")[0]),
            json!({"type": "user", "id": "network", "hostfwd": [{"str": "tcp:127.0.0.1:40000-:6443"}]})
        );
        assert_eq!(values(&all, "-object"), [""; 0]);
    }

    #[test]
    fn a_vm_in_a_segment_has_a_wire_and_an_address() {
        let mut config = direct();
        let capture = Some("/tmp/a,b.pcap".into());
        config.network = Some(Network { card: Card::Virtio, mac: Some(Mac::of(1)), link: Link::Wire, capture });
        let streams = Streams { wire: Some(9), ..STREAMS };
        let all = built_with(&config, &streams, Origin::Boot);
        assert_eq!(
            json_of(values(&all, "-netdev")[0]),
            json!({"type": "dgram", "id": "network", "local": {"type": "fd", "str": "9"}})
        );
        assert_eq!(
            json_of(values(&all, "-device")[1]),
            json!({"driver": "virtio-net-pci", "netdev": "network", "romfile": "", "mac": "52:54:00:00:00:01"})
        );
        assert_eq!(
            json_of(values(&all, "-object")[0]),
            json!({"qom-type": "filter-dump", "id": "capture", "netdev": "network", "file": "/tmp/a,b.pcap"})
        );
    }

    #[test]
    fn each_stream_gets_its_own_descriptor() {
        let port = |name: &str, sink| Port { name: name.parse().unwrap(), sink };
        let mut config = direct();
        config.console = Sink::Stream;
        config.ports = vec![
            port("first", Sink::Stream),
            port("second", Sink::File("/tmp/x,y".into())),
            port("third", Sink::Stream),
        ];
        let streams = Streams { console: Some(8), ports: vec![9, 10], ..STREAMS };
        let all = built_with(&config, &streams, Origin::Boot);
        assert_eq!(
            values(&all, "-chardev"),
            [
                "socket,id=qmp,fd=7",
                "socket,id=console,fd=8",
                "socket,id=port0,fd=9",
                "file,id=port1,path=/tmp/x,,y",
                "socket,id=port2,fd=10",
            ]
        );
    }

    #[test]
    fn disks_and_ports_with_the_same_name_are_rejected() {
        let mut config = direct();
        config.disks = vec![Disk::new("data".parse().unwrap(), "a"), Disk::new("data".parse().unwrap(), "b")];
        let refused = arguments(Accelerator::Tcg, &config, &STREAMS, Origin::Boot);
        assert_eq!(refused, Err(ConfigError::SameSerial("data".parse().unwrap())));
        config.disks.clear();
        config.ports = vec![Port { name: "a".parse().unwrap(), sink: Sink::Discard }; 2];
        let refused = arguments(Accelerator::Tcg, &config, &STREAMS, Origin::Boot);
        assert_eq!(refused, Err(ConfigError::SamePort("a".parse().unwrap())));
    }

    #[test]
    fn a_file_name_that_json_cannot_hold_is_refused() {
        let mut config = direct();
        let path = Path::new(OsStr::from_bytes(b"\xff.img"));
        config.disks.push(Disk::new("data".parse().unwrap(), path));
        assert_eq!(
            arguments(Accelerator::Tcg, &config, &STREAMS, Origin::Boot),
            Err(ConfigError::NotUtf8(path.to_owned()))
        );
    }

    proptest! {
        #[test]
        fn no_file_name_reaches_another_option(path in "[^\0]{1,40}") {
            let mut config = direct();
            config.disks.push(Disk::new("data".parse().unwrap(), &path));
            config.console = Sink::File(path.clone().into());
            let all = built(&config);
            let nodes = values(&all, "-blockdev");
            prop_assert_eq!(&json_of(nodes[0])["file"]["filename"], &json!(path));
            let console = values(&all, "-chardev")[1].strip_prefix("file,id=console,path=").unwrap().to_owned();
            prop_assert_eq!(console.replace(",,", ""), path.replace(',', ""));
        }
    }
}
