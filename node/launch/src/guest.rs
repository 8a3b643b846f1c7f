//! The guest, from its options to a QEMU that runs it. Blocks.

use crate::boot_disk::Copy;
use crate::check;
use crate::configuration::Configuration;
use crate::data::DataDisk;
use crate::error::BootError;
use crate::options::{Boot, Data, Options};
use qemu::{
    Accelerator, Access, Cache, Config, Disk, Firmware, Forward, Link, Network, Port, PortName, Program, Serial, Sink,
    Version, Vm,
};
use std::os::unix::net::UnixStream;
use std::path::Path;
use units::Bytes;

/// Where the API server listens in the guest.
const API_PORT: u16 = 6443;

/// A guest that runs.
pub(crate) struct Guest {
    pub(crate) vm: Vm,
    /// Where the node announces.
    pub(crate) port: UnixStream,
    /// Port of 127.0.0.1 that leads to the API server.
    pub(crate) api: u16,
    pub(crate) version: Version,
    pub(crate) accelerator: Accelerator,
}

/// systemd-stub (254 or newer) gives this to the kernel behind the command line of its executable.
const MORE_ARGUMENTS: &str = "io.systemd.stub.kernel-cmdline-extra";

/// What QEMU starts, and the files of this run that it uses. They have no names any more when this is
/// dropped.
struct Machine {
    boot: qemu::Boot,
    disks: Vec<Disk>,
    _copies: Vec<Copy>,
    _data: Option<DataDisk>,
}

/// Checks the machine and starts the guest.
pub(crate) fn start(options: &Options, console: &Path) -> Result<Guest, BootError> {
    let program = Program::find()?;
    let firmware = match &options.boot {
        Boot::Kernel => None,
        Boot::Firmware(disk) => Some((Firmware::find()?, disk)),
    };
    check::check(options)?;
    let accelerator = Accelerator::probe(&program);
    let machine = match firmware {
        None => direct(options, accelerator)?,
        Some((firmware, disk)) => with_firmware(options, firmware, disk, accelerator)?,
    };
    let api = match options.port {
        Some(port) => port.get(),
        None => qemu::free_port().map_err(BootError::NoPort)?,
    };
    let mut config = Config::new(machine.boot.clone());
    config.memory = options.memory;
    config.cpus = options.cpus;
    config.disks.clone_from(&machine.disks);
    let link = Link::User { forwards: vec![Forward { host: api, guest: API_PORT }] };
    config.network = Some(Network { mac: None, link, capture: None });
    config.ports = vec![Port { name: announce::PORT.parse::<PortName>()?, sink: Sink::Stream }];
    config.console = Sink::File(console.into());
    let configuration = Configuration::write(options)
        .map_err(|source| BootError::Configuration { directory: options.state.clone(), source })?;
    config.firmware_files = vec![configuration.file()];
    let vm = Vm::start(&program, accelerator, &config)?;
    let port = vm.take_port(announce::PORT).ok_or(BootError::NoAnnouncements)?;
    Ok(Guest { vm, port, api, version: program.version(), accelerator })
}

fn direct(options: &Options, accelerator: Accelerator) -> Result<Machine, BootError> {
    let path = &options.image.command_line;
    let base = std::fs::read_to_string(path).map_err(|source| BootError::CommandLine { path: path.clone(), source })?;
    let data = DataDisk::prepare(&options.data, options.data_size, &options.state)?;
    let boot = qemu::Boot::Kernel {
        kernel: options.image.kernel.clone(),
        initrd: Some(options.image.initramfs.clone()),
        command_line: [base.trim(), arguments(accelerator)].join(" ").trim_end().to_owned(),
    };
    let disks = vec![system(&options.image.system, Access::ReadOnly)?, data_disk(&data)?];
    Ok(Machine { boot, disks, _copies: Vec::new(), _data: Some(data) })
}

/// Temporary data are in the free space of a copy of the image: one disk, as on most machines.
fn with_firmware(
    options: &Options,
    firmware: Firmware,
    image: &Path,
    accelerator: Accelerator,
) -> Result<Machine, BootError> {
    let variables = Copy::of(&firmware.variables, options.state.join("variables.fd"), Bytes::ZERO)?;
    let boot = qemu::Boot::Firmware {
        code: firmware.code,
        variables: variables.path().into(),
        oem_strings: match arguments(accelerator) {
            "" => Vec::new(),
            more => vec![format!("{MORE_ARGUMENTS}={more}")],
        },
    };
    Ok(match &options.data {
        Data::Temporary => {
            let copy = Copy::of(image, options.state.join("disk.img"), options.data_size)?;
            let mut disk = system(copy.path(), Access::ReadWrite)?;
            disk.cache = Cache::Unsafe;
            Machine { boot, disks: vec![disk], _copies: vec![variables, copy], _data: None }
        }
        Data::File(_) => {
            let data = DataDisk::prepare(&options.data, options.data_size, &options.state)?;
            let disks = vec![system(image, Access::ReadOnly)?, data_disk(&data)?];
            Machine { boot, disks, _copies: vec![variables], _data: Some(data) }
        }
    })
}

fn system(path: &Path, access: Access) -> Result<Disk, BootError> {
    let mut disk = Disk::new("system".parse::<Serial>()?, path);
    disk.access = access;
    Ok(disk)
}

fn data_disk(data: &DataDisk) -> Result<Disk, BootError> {
    let mut disk = Disk::new("data".parse::<Serial>()?, data.path());
    // Who throws a disk away need not wait for the machine's own disk.
    disk.cache = if data.is_kept() { Cache::WriteBack } else { Cache::Unsafe };
    Ok(disk)
}

/// What the kernel is told of the machine.
const fn arguments(accelerator: Accelerator) -> &'static str {
    match accelerator {
        // The guest is one process of the machine: mitigations protect nobody in there.
        Accelerator::Tcg => "mitigations=off",
        Accelerator::Kvm => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mitigations_stay_on_where_the_cpu_itself_runs_the_guest() {
        assert_eq!(arguments(Accelerator::Tcg), "mitigations=off");
        assert_eq!(arguments(Accelerator::Kvm), "");
    }
}
