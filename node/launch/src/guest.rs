//! Start of QEMU with the options of a node. The functions block.

use crate::check;
use crate::configuration::Configuration;
use crate::data::DataDisk;
use crate::error::{BootError, StepError};
use crate::image_archive;
use crate::options::{Boot, Data, Options, Origin};
use crate::spec::NodeSpec;
use cluster::{API_PORT, IMAGE_ARCHIVE_PREFIX, announcement};
use qemu::{
    Accelerator, Access, Cache, Config, Disk, Firmware, Forward, Link, Mac, Network, Plug, Port, PortName, Program,
    Saved, Segment, Serial, Sink, Vm,
};
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::{NamedTempFile, TempPath};

/// Serial number of the disk with the system.
const SYSTEM: &str = "system";
/// File of the data disk in the directory of a saved node.
const SAVED_DATA: &str = "data.img";

pub(crate) struct Guest {
    pub(crate) vm: Vm,
    pub(crate) port: UnixStream,
    pub(crate) uplink: Option<Uplink>,
}

/// Connection of a guest to a segment. The segment's user networking runs as long as one guest is connected.
pub(crate) struct Uplink {
    pub(crate) plug: Plug,
    _segment: Arc<Segment>,
}

/// Type of an SMBIOS string. systemd-stub (254 or newer) appends the string to the command line of its executable.
const MORE_ARGUMENTS: &str = "io.systemd.stub.kernel-cmdline-extra";

#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) program: Program,
    pub(crate) accelerator: Accelerator,
}

impl Host {
    /// Checks that the machine can run all nodes at the same time. `scratch` is a directory for a temporary file.
    pub(crate) fn find(specs: &[NodeSpec], scratch: &Path) -> Result<Self, BootError> {
        let program = Program::find().map_err(StepError::of("find QEMU"))?;
        if specs.iter().any(|spec| spec.options.boot != Boot::Kernel) {
            firmware()?;
        }
        check::check(specs)?;
        let accelerator = Accelerator::probe(&program, scratch);
        Ok(Self { program, accelerator })
    }
}

/// Boot parameters and files of a guest. The guest can be started several times. Drop removes temporary files.
pub(crate) struct Machine {
    boot: qemu::Boot,
    disks: Vec<Disk>,
    _variables: Option<TempPath>,
    _data: DataDisk,
}

pub(crate) enum GuestNetwork<'a> {
    /// User networking, with the forwarded ports.
    Alone { api: u16 },
    /// Segment for several nodes, or for a guest that is saved or restored. The state of QEMU's user networking in a
    /// saved guest could not be restored.
    Segment(&'a Arc<Segment>),
}

impl Machine {
    pub(crate) fn prepare(host: &Host, spec: &NodeSpec) -> Result<Self, BootError> {
        let mut machine = match (&spec.options.boot, &spec.options.origin) {
            (Boot::Kernel, _) => direct(spec, host.accelerator)?,
            (Boot::Firmware(_), Origin::Savable(_) | Origin::Saved(_)) => {
                let cause = "its boot disk is changed for one run; boot the kernel directly";
                return Err(StepError::of("save or restore a node that boots through firmware")(cause).into());
            }
            (Boot::Firmware(disk), Origin::Boot) => with_firmware(spec, firmware()?, disk, host.accelerator)?,
        };
        machine.disks.extend(image_archives(spec)?);
        Ok(machine)
    }

    pub(crate) fn start(
        &self,
        host: &Host,
        spec: &NodeSpec,
        configuration: &str,
        network: &GuestNetwork<'_>,
    ) -> Result<Guest, BootError> {
        let options = &spec.options;
        let mut config = Config::new(self.boot.clone());
        config.memory = options.memory;
        config.cpus = options.cpus;
        config.disks.clone_from(&self.disks);
        for disk in &mut config.disks {
            disk.model = options.hardware.disks;
        }
        config.devices.clone_from(&options.hardware.more);
        let mac = Mac::of(spec.index);
        let link = match network {
            GuestNetwork::Alone { api } => Link::User { forwards: forwards(spec, *api) },
            GuestNetwork::Segment(_) => Link::Wire,
        };
        let card = options.hardware.card;
        config.network = Some(Network { card, mac: Some(mac), link, capture: spec.capture.clone() });
        config.ports = vec![Port {
            name: announcement::PORT.parse::<PortName>().map_err(StepError::of("configure QEMU"))?,
            sink: Sink::Stream,
        }];
        config.console = Sink::File(spec.console());
        let configuration = Configuration::write(configuration, &options.state)
            .map_err(StepError::of(format!("write the configuration of the node to {}", options.state.display())))?;
        config.firmware_files = vec![configuration.file()];
        let (program, accelerator) = (&host.program, host.accelerator);
        let vm = match &options.origin {
            Origin::Boot => Vm::start(program, accelerator, &config).map_err(StepError::of("start the guest"))?,
            Origin::Savable(dir) => {
                Vm::start_savable(program, accelerator, &config, dir).map_err(StepError::of("start the guest"))?
            }
            Origin::Saved(dir) => Saved::open(dir)
                .and_then(|saved| Vm::restore(program, accelerator, &config, &saved))
                .map_err(StepError::of("restore the saved node"))?,
        };
        let port = vm
            .take_port(announcement::PORT)
            .ok_or("QEMU has no port for announcements")
            .map_err(StepError::of("start the guest"))?;
        let uplink = match (network, vm.take_wire()) {
            (GuestNetwork::Segment(segment), Some(wire)) => {
                let plug = segment.connect(mac, wire).map_err(StepError::of("connect the guest to the other nodes"))?;
                Some(Uplink { plug, _segment: Arc::clone(segment) })
            }
            (GuestNetwork::Segment(_) | GuestNetwork::Alone { .. }, _) => None,
        };
        if matches!(options.origin, Origin::Saved(_)) {
            vm.resume().map_err(StepError::of("resume the saved node"))?;
        }
        Ok(Guest { vm, port, uplink })
    }
}

/// Starts a network between the nodes, with the forwarded ports of the control plane.
pub(crate) fn segment(host: &Host, spec: &NodeSpec, api: u16) -> Result<Arc<Segment>, StepError> {
    let segment = Segment::start(&host.program, &forwards(spec, api));
    segment.map(Arc::new).map_err(StepError::of("start the network between the nodes"))
}

pub(crate) fn api_port(spec: &NodeSpec) -> Result<u16, StepError> {
    match spec.options.port {
        Some(port) => Ok(port.get()),
        None => {
            // Bind the forwarded ports, so that the free port is none of them.
            let local = |forward: &Forward| TcpListener::bind((Ipv4Addr::LOCALHOST, forward.host));
            let _bound: Vec<_> = spec.options.forwards.iter().map(local).collect();
            qemu::free_port().map_err(StepError::of("find a free port of 127.0.0.1"))
        }
    }
}

fn forwards(spec: &NodeSpec, api: u16) -> Vec<Forward> {
    let api = Forward { host: api, guest: API_PORT };
    std::iter::once(api).chain(spec.options.forwards.iter().copied()).collect()
}

fn firmware() -> Result<Firmware, StepError> {
    Firmware::find().map_err(StepError::of("find the UEFI firmware"))
}

fn direct(spec: &NodeSpec, accelerator: Accelerator) -> Result<Machine, BootError> {
    let options = &spec.options;
    let path = &options.image.command_line;
    let base = std::fs::read_to_string(path).map_err(StepError::of(format!("read {}", path.display())))?;
    let data = data_file(spec)?;
    let boot = qemu::Boot::Kernel {
        kernel: options.image.kernel.clone(),
        initrd: Some(options.image.initramfs.clone()),
        command_line: [base.trim(), &arguments(accelerator, options)].join(" ").trim_end().to_owned(),
    };
    let disks = vec![read_only(SYSTEM, &options.image.system)?, data_disk(spec, &data)?];
    Ok(Machine { boot, disks, _variables: None, _data: data })
}

/// Machine that boots through firmware. Temporary data use the free space behind the image, so the guest has one disk,
/// like most machines.
fn with_firmware(
    spec: &NodeSpec,
    firmware: Firmware,
    image: &Path,
    accelerator: Accelerator,
) -> Result<Machine, BootError> {
    let options = &spec.options;
    let variables = variables(&firmware.variables, &options.state);
    let variables = variables.map_err(StepError::of(format!("copy {}", firmware.variables.display())))?;
    let boot = qemu::Boot::Firmware {
        code: firmware.code,
        variables: variables.to_path_buf(),
        oem_strings: match &*arguments(accelerator, options) {
            "" => Vec::new(),
            more => vec![format!("{MORE_ARGUMENTS}={more}")],
        },
    };
    let (disks, data) = match &options.data {
        Data::Temporary => {
            let size = options.data_size.unwrap_or(Options::DATA_SIZE);
            let disk = DataDisk::overlay(image.into(), size, spec.file(&options.state, "disk.qcow2"))?;
            (vec![disk.disk(serial(SYSTEM)?)], disk)
        }
        Data::File(_) => {
            let data = data_file(spec)?;
            (vec![read_only(SYSTEM, image)?, data_disk(spec, &data)?], data)
        }
    };
    Ok(Machine { boot, disks, _variables: Some(variables), _data: data })
}

/// Copies the firmware's variables, because the guest writes to them.
fn variables(original: &Path, directory: &Path) -> io::Result<TempPath> {
    let mut copy = NamedTempFile::with_prefix_in("variables.", directory)?;
    io::copy(&mut File::open(original)?, &mut copy)?;
    Ok(copy.into_temp_path())
}

fn data_file(spec: &NodeSpec) -> Result<DataDisk, StepError> {
    let options = &spec.options;
    Ok(match &options.origin {
        Origin::Boot => DataDisk::prepare(&options.data, options.data_size, spec.file(&options.state, "data.img"))?,
        Origin::Savable(dir) => {
            DataDisk::prepare(&Data::File(dir.join(SAVED_DATA)), options.data_size, PathBuf::new())?
        }
        Origin::Saved(dir) => {
            DataDisk::restore(&options.data, dir.join(SAVED_DATA), spec.file(&options.state, "data.qcow2"))?
        }
    })
}

fn read_only(serial: &str, path: &Path) -> Result<Disk, StepError> {
    let mut disk = Disk::new(self::serial(serial)?, path);
    disk.access = Access::ReadOnly;
    Ok(disk)
}

/// The disks with image archives. The control plane is prepared first, and workers use its archives.
fn image_archives(spec: &NodeSpec) -> Result<Vec<Disk>, StepError> {
    let mut disks = Vec::new();
    for (index, path) in (1..).zip(&spec.options.images) {
        let serial = format!("{IMAGE_ARCHIVE_PREFIX}{index}");
        let archive = image_archive::archive(path, spec.options.state.join(format!("{serial}.tar")));
        if spec.index == 0 && archive != *path {
            let packed = image_archive::pack(path, &archive);
            packed.map_err(StepError::of(format!("pack the images in {}", path.display())))?;
        }
        disks.push(read_only(&serial, &archive)?);
    }
    Ok(disks)
}

fn serial(text: &str) -> Result<Serial, StepError> {
    text.parse().map_err(StepError::of("configure QEMU"))
}

fn data_disk(spec: &NodeSpec, data: &DataDisk) -> Result<Disk, StepError> {
    let mut disk = data.disk(serial("data")?);
    // A saved node need not survive a crash of the machine.
    if matches!(spec.options.origin, Origin::Savable(_)) {
        disk.cache = Cache::Unsafe;
    }
    Ok(disk)
}

/// Kernel arguments in addition to those of the image.
fn arguments(accelerator: Accelerator, options: &Options) -> String {
    let machine = match accelerator {
        // The guest is one process of the machine, so mitigations in it have no effect. Clearing each allocated page in
        // emulation takes about an eighth of a boot's CPU time.
        Accelerator::Tcg => "mitigations=off init_on_alloc=0",
        Accelerator::Kvm => "",
    };
    [machine, &options.kernel_arguments].join(" ").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::ClusterOptions;

    /// Regression test: each node had its own copy of the archive, which filled the disk.
    #[test]
    fn nodes_share_the_archive_of_a_directory() {
        let directory = tempfile::tempdir().unwrap();
        let [state, layout] = ["state", "layout"].map(|name| directory.path().join(name));
        for path in [&state, &layout] {
            std::fs::create_dir(path).unwrap();
        }
        std::fs::write(layout.join("index.json"), "{}").unwrap();
        let options = Options { images: vec![layout], ..Options::fake(&state) };
        let specs = NodeSpec::all(&ClusterOptions::new(options, "3".parse().unwrap()));
        for disks in specs.iter().map(|spec| image_archives(spec).unwrap()) {
            let paths: Vec<_> = disks.into_iter().map(|disk| disk.path).collect();
            assert_eq!(paths, [state.join("image-1.tar")]);
        }
        assert_eq!(std::fs::read_dir(&state).unwrap().count(), 1);
    }

    #[test]
    fn mitigations_are_off_only_in_emulation() {
        let mut options = Options::fake(Path::new("/tmp/run"));
        assert_eq!(arguments(Accelerator::Tcg, &options), "mitigations=off init_on_alloc=0");
        assert_eq!(arguments(Accelerator::Kvm, &options), "");
        options.kernel_arguments = "granary.log=info".to_owned();
        assert_eq!(arguments(Accelerator::Tcg, &options), "mitigations=off init_on_alloc=0 granary.log=info");
        assert_eq!(arguments(Accelerator::Kvm, &options), "granary.log=info");
    }
}
