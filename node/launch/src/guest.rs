//! The guest, from its options to a QEMU that runs it. Blocks.

use crate::check;
use crate::data::DataDisk;
use crate::node::{BootError, NAME};
use crate::options::Options;
use qemu::{
    Accelerator, Access, Boot, Cache, Config, Disk, Forward, Network, Port, PortName, Program, Serial, Sink, Version,
    Vm,
};
use std::os::unix::net::UnixStream;
use std::path::Path;
use volume::Overcommit;

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

/// Checks the machine and starts the guest.
pub(crate) fn start(options: &Options, console: &Path) -> Result<Guest, BootError> {
    let program = Program::find()?;
    check::check(options)?;
    let path = &options.image.command_line;
    let base = std::fs::read_to_string(path).map_err(|source| BootError::CommandLine { path: path.clone(), source })?;
    let accelerator = Accelerator::probe(&program);
    let data = DataDisk::prepare(&options.data, options.data_size, &options.state)?;
    let api = match options.port {
        Some(port) => port.get(),
        None => qemu::free_port().map_err(BootError::NoPort)?,
    };
    let mut config = Config::new(Boot::Kernel {
        kernel: options.image.kernel.clone(),
        initrd: Some(options.image.initramfs.clone()),
        command_line: command_line(&base, options.overcommit, accelerator),
    });
    config.memory = options.memory;
    config.cpus = options.cpus;
    config.disks = vec![system(options)?, data_disk(&data)?];
    config.network = Some(Network { forwards: vec![Forward { host: api, guest: API_PORT }] });
    config.ports = vec![Port { name: announce::PORT.parse::<PortName>()?, sink: Sink::Stream }];
    config.console = Sink::File(console.into());
    let vm = Vm::start(&program, accelerator, &config)?;
    let port = vm.take_port(announce::PORT).ok_or(BootError::NoAnnouncements)?;
    Ok(Guest { vm, port, api, version: program.version(), accelerator })
}

fn system(options: &Options) -> Result<Disk, BootError> {
    let mut disk = Disk::new("system".parse::<Serial>()?, &options.image.system);
    disk.access = Access::ReadOnly;
    Ok(disk)
}

fn data_disk(data: &DataDisk) -> Result<Disk, BootError> {
    let mut disk = Disk::new("data".parse::<Serial>()?, data.path());
    // Who throws a disk away need not wait for the machine's own disk.
    disk.cache = if data.is_kept() { Cache::WriteBack } else { Cache::Unsafe };
    Ok(disk)
}

/// What depends on the machine: the addresses are those of QEMU's user network.
fn command_line(base: &str, overcommit: Overcommit, accelerator: Accelerator) -> String {
    let mut line = base.trim().to_owned();
    line.push_str(&format!(
        " granary.node={NAME} granary.address=10.0.2.15/24 granary.gateway=10.0.2.2 granary.dns=10.0.2.3"
    ));
    if overcommit != Overcommit::default() {
        line.push_str(&format!(" granary.overcommit={overcommit}"));
    }
    if accelerator == Accelerator::Tcg {
        // The guest is one process of the machine: mitigations protect nobody in there.
        line.push_str(" mitigations=off");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_images_own_arguments_come_first_and_on_one_line() {
        let line = command_line("console=ttyS0 granary.system=5ad0\n", Overcommit::NONE, Accelerator::Tcg);
        assert_eq!(
            line,
            "console=ttyS0 granary.system=5ad0 granary.node=granary granary.address=10.0.2.15/24 \
             granary.gateway=10.0.2.2 granary.dns=10.0.2.3 mitigations=off"
        );
    }

    #[test]
    fn mitigations_stay_on_where_the_cpu_itself_runs_the_guest() {
        assert!(!command_line("quiet", Overcommit::NONE, Accelerator::Kvm).contains("mitigations"));
    }

    #[test]
    fn the_node_is_told_of_overcommit_in_its_own_words() {
        let line = command_line("quiet", "1.50".parse().unwrap(), Accelerator::Kvm);
        assert!(line.ends_with(" granary.overcommit=1.5"), "{line}");
    }
}
