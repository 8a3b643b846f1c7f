//! The guest, from its options to a QEMU that runs it. Blocks.

use crate::boot_disk::Copy;
use crate::check;
use crate::configuration::Configuration;
use crate::data::DataDisk;
use crate::error::BootError;
use crate::options::{Boot, Data, Options, Origin};
use crate::site::Site;
use cluster::{API_PORT, announcement};
use qemu::{
    Accelerator, Access, Cache, Config, Disk, Firmware, Forward, Link, Mac, Network, Plug, Port, PortName, Program,
    Saved, Segment, Serial, Sink, StartError, Vm,
};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use units::Bytes;

/// The data disk in the directory of a saved node.
const SAVED_DATA: &str = "data.img";

/// A guest that runs.
pub(crate) struct Guest {
    pub(crate) vm: Vm,
    /// Where the node announces.
    pub(crate) port: UnixStream,
    /// Its connection to a segment, if it has one.
    pub(crate) uplink: Option<Uplink>,
}

/// The connection of a guest to a segment, whose user networking runs as long as one guest is connected.
pub(crate) struct Uplink {
    pub(crate) plug: Plug,
    _segment: Arc<Segment>,
}

/// systemd-stub (254 or newer) gives this to the kernel behind the command line of its executable.
const MORE_ARGUMENTS: &str = "io.systemd.stub.kernel-cmdline-extra";

/// What runs guests on this machine.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) program: Program,
    pub(crate) accelerator: Accelerator,
}

impl Host {
    /// Checks the machine: all of the sites are to run at the same time. Who is killed meanwhile leaves a file in the
    /// directory `scratch`.
    pub(crate) fn find(sites: &[Site], scratch: &Path) -> Result<Self, BootError> {
        let program = Program::find()?;
        if sites.iter().any(|site| site.options.boot != Boot::Kernel) {
            Firmware::find()?;
        }
        check::check(sites)?;
        let accelerator = Accelerator::probe(&program, scratch);
        Ok(Self { program, accelerator })
    }
}

/// What QEMU starts, and the files of this run that it uses. They have no names any more when this is
/// dropped; until then it can be started again.
pub(crate) struct Machine {
    boot: qemu::Boot,
    disks: Vec<Disk>,
    _copies: Vec<Copy>,
    _data: Option<DataDisk>,
}

/// What a guest's network device is connected to.
pub(crate) enum Surroundings<'a> {
    /// This port of the host leads to its API server.
    Alone { api: u16 },
    /// Other nodes are there, or the guest is saved or restored: with user networking of its own, a saved guest would
    /// include the state of that network and could not be restored into another one.
    Segment(&'a Arc<Segment>),
}

impl Machine {
    /// Makes what is missing of its files.
    pub(crate) fn prepare(host: &Host, site: &Site) -> Result<Self, BootError> {
        match (&site.options.boot, &site.options.origin) {
            (Boot::Kernel, _) => direct(site, host.accelerator),
            (Boot::Firmware(_), Origin::Savable(_) | Origin::Saved(_)) => Err(BootError::SavedFirmware),
            (Boot::Firmware(disk), Origin::Boot) => with_firmware(site, Firmware::find()?, disk, host.accelerator),
        }
    }

    /// Starts the guest.
    pub(crate) fn start(
        &self,
        host: &Host,
        site: &Site,
        configuration: &str,
        surroundings: &Surroundings<'_>,
    ) -> Result<Guest, BootError> {
        let options = &site.options;
        let mut config = Config::new(self.boot.clone());
        config.memory = options.memory;
        config.cpus = options.cpus;
        config.disks.clone_from(&self.disks);
        let mac = Mac::of(site.index);
        let link = match surroundings {
            Surroundings::Alone { api } => Link::User { forwards: vec![Forward { host: *api, guest: API_PORT }] },
            Surroundings::Segment(_) => Link::Wire,
        };
        config.network = Some(Network { mac: Some(mac), link, capture: site.capture.clone() });
        config.ports = vec![Port { name: announcement::PORT.parse::<PortName>()?, sink: Sink::Stream }];
        config.console = Sink::File(site.console());
        let configuration = Configuration::write(configuration, &options.state)
            .map_err(|source| BootError::Configuration { directory: options.state.clone(), source })?;
        config.firmware_files = vec![configuration.file()];
        let vm = match &options.origin {
            Origin::Boot => Vm::start(&host.program, host.accelerator, &config)?,
            Origin::Savable(dir) => Vm::start_savable(&host.program, host.accelerator, &config, dir)?,
            Origin::Saved(dir) => Vm::restore(&host.program, host.accelerator, &config, &Saved::open(dir)?)?,
        };
        let port = vm.take_port(announcement::PORT).ok_or(BootError::NoAnnouncements)?;
        let uplink = match (surroundings, vm.take_wire()) {
            (Surroundings::Segment(segment), Some(wire)) => {
                let plug = segment.connect(mac, wire).map_err(BootError::Connect)?;
                Some(Uplink { plug, _segment: Arc::clone(segment) })
            }
            (Surroundings::Segment(_) | Surroundings::Alone { .. }, _) => None,
        };
        if matches!(options.origin, Origin::Saved(_)) {
            vm.resume().map_err(BootError::Resume)?;
        }
        Ok(Guest { vm, port, uplink })
    }
}

/// A network for nodes, in which this port of the host leads to the API server of the first one.
pub(crate) fn segment(host: &Host, api: u16) -> Result<Arc<Segment>, StartError> {
    Segment::start(&host.program, &[Forward { host: api, guest: API_PORT }]).map(Arc::new)
}

/// The port of the host that is to lead to the API server.
pub(crate) fn api_port(site: &Site) -> Result<u16, BootError> {
    match site.options.port {
        Some(port) => Ok(port.get()),
        None => qemu::free_port().map_err(BootError::NoPort),
    }
}

fn direct(site: &Site, accelerator: Accelerator) -> Result<Machine, BootError> {
    let options = &site.options;
    let path = &options.image.command_line;
    let base = std::fs::read_to_string(path).map_err(|source| BootError::CommandLine { path: path.clone(), source })?;
    let data = data_file(site)?;
    let boot = qemu::Boot::Kernel {
        kernel: options.image.kernel.clone(),
        initrd: Some(options.image.initramfs.clone()),
        command_line: [base.trim(), &arguments(accelerator, options)].join(" ").trim_end().to_owned(),
    };
    let disks = vec![system(&options.image.system, Access::ReadOnly)?, data_disk(site, &data)?];
    Ok(Machine { boot, disks, _copies: Vec::new(), _data: Some(data) })
}

/// Temporary data are in the free space of a copy of the image: one disk, as on most machines.
fn with_firmware(
    site: &Site,
    firmware: Firmware,
    image: &Path,
    accelerator: Accelerator,
) -> Result<Machine, BootError> {
    let options = &site.options;
    let variables = Copy::of(&firmware.variables, site.file(&options.state, "variables.fd"), Bytes::ZERO)?;
    let boot = qemu::Boot::Firmware {
        code: firmware.code,
        variables: variables.path().into(),
        oem_strings: match &*arguments(accelerator, options) {
            "" => Vec::new(),
            more => vec![format!("{MORE_ARGUMENTS}={more}")],
        },
    };
    Ok(match &options.data {
        Data::Temporary => {
            let copy = Copy::of(image, site.file(&options.state, "disk.img"), options.data_size)?;
            let mut disk = system(copy.path(), Access::ReadWrite)?;
            disk.cache = Cache::Unsafe;
            Machine { boot, disks: vec![disk], _copies: vec![variables, copy], _data: None }
        }
        Data::File(_) => {
            let data = data_file(site)?;
            let disks = vec![system(image, Access::ReadOnly)?, data_disk(site, &data)?];
            Machine { boot, disks, _copies: vec![variables], _data: Some(data) }
        }
    })
}

fn data_file(site: &Site) -> Result<DataDisk, BootError> {
    let options = &site.options;
    Ok(match &options.origin {
        Origin::Boot => DataDisk::prepare(&options.data, options.data_size, site.file(&options.state, "data.img"))?,
        Origin::Savable(dir) => {
            DataDisk::prepare(&Data::File(dir.join(SAVED_DATA)), options.data_size, PathBuf::new())?
        }
        Origin::Saved(dir) => {
            DataDisk::restore(&options.data, dir.join(SAVED_DATA), site.file(&options.state, "data.qcow2"))?
        }
    })
}

fn system(path: &Path, access: Access) -> Result<Disk, BootError> {
    let mut disk = Disk::new("system".parse::<Serial>()?, path);
    disk.access = access;
    Ok(disk)
}

fn data_disk(site: &Site, data: &DataDisk) -> Result<Disk, BootError> {
    let mut disk = data.disk("data".parse::<Serial>()?);
    // A node that is saved outlives neither this run nor this machine.
    if matches!(site.options.origin, Origin::Savable(_)) {
        disk.cache = Cache::Unsafe;
    }
    Ok(disk)
}

/// Arguments of the kernel that are not the image's.
fn arguments(accelerator: Accelerator, options: &Options) -> String {
    let machine = match accelerator {
        // The guest is one process of the machine: mitigations protect nobody in there.
        Accelerator::Tcg => "mitigations=off",
        Accelerator::Kvm => "",
    };
    [machine, &options.kernel_arguments].join(" ").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Image;

    #[test]
    fn mitigations_stay_on_where_the_cpu_itself_runs_the_guest() {
        let path = || PathBuf::from("image");
        let image = Image { kernel: path(), initramfs: path(), system: path(), command_line: path() };
        let mut options = Options::new(image, Path::new("/tmp/run"));
        assert_eq!(arguments(Accelerator::Tcg, &options), "mitigations=off");
        assert_eq!(arguments(Accelerator::Kvm, &options), "");
        options.kernel_arguments = "granary.log=info".to_owned();
        assert_eq!(arguments(Accelerator::Tcg, &options), "mitigations=off granary.log=info");
        assert_eq!(arguments(Accelerator::Kvm, &options), "granary.log=info");
    }
}
