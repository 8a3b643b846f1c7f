//! The machine that a test runs in: what stays of it when its power is cut.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ktest_init::PORT;
use qemu::{Accelerator, Boot, Disk, Port, PortName, Program, Sink, Vm, Wrap};
use tempfile::TempDir;

use crate::bazel::Bazel;
use crate::config::{Config, Payload};
use crate::guest::{Guest, GuestError};
use crate::scratch::Scratch;

/// `oops=panic`: a kernel that goes on after a fault proves nothing. `panic=-1`: then the VM ends.
const COMMAND_LINE: &str = "console=ttyS0 loglevel=5 oops=panic panic=-1 mitigations=off nowatchdog audit=0 apparmor=0";

/// Its guests end before it: they use its files.
pub(crate) struct Machine<'a> {
    program: &'a Program,
    accelerator: Accelerator,
    config: &'a Config,
    disks: Vec<Disk>,
    /// What the kernel said, a file for each boot.
    consoles: Vec<PathBuf>,
    margin: Duration,
    dir: TempDir,
}

impl<'a> Machine<'a> {
    pub(crate) fn new(program: &'a Program, config: &'a Config, bazel: &Bazel) -> Result<Self, GuestError> {
        let dir = match &bazel.scratch {
            Some(scratch) => TempDir::with_prefix_in("ktest", scratch),
            None => TempDir::with_prefix("ktest"),
        };
        let dir = dir.map_err(GuestError::Directory)?;
        let accelerator = Accelerator::probe(program, dir.path());
        let logs = match (config.payload, &bazel.outputs) {
            (Payload::Test, Some(outputs)) => outputs.as_path(),
            // A test may run many programs, whose logs would have one name.
            (Payload::Test, None) | (Payload::Program, _) => dir.path(),
        };
        let disks = make_disks(&config.disks, dir.path(), logs).map_err(GuestError::Disk)?;
        Ok(Self { program, accelerator, config, disks, consoles: Vec::new(), margin: bazel.margin(), dir })
    }

    /// What executes its guests.
    pub(crate) fn accelerator(&self) -> Accelerator {
        self.accelerator
    }

    /// Serial numbers of the disks.
    pub(crate) fn disks(&self) -> Vec<String> {
        self.disks.iter().map(|disk| disk.serial.to_string()).collect()
    }

    /// Starts the VM. The one before has ended.
    pub(crate) fn boot(&mut self) -> Result<Guest, GuestError> {
        let console = self.dir.path().join(format!("console-{}.log", self.consoles.len() + 1));
        self.consoles.push(console.clone());
        empty_logs(&self.disks).map_err(GuestError::Disk)?;
        let machine = self.machine(PORT.parse()?, console.clone());
        let vm = Vm::start(self.program, self.accelerator, &machine)?;
        Guest::new(vm, self.disks.clone(), console, self.margin)
    }

    /// What was said on the console, in all boots.
    pub(crate) fn console(&self) -> io::Result<Vec<String>> {
        let boots = self.consoles.iter().map(|console| qemu::console_tail(console, usize::MAX));
        boots.collect::<io::Result<Vec<_>>>().map(|lines| lines.concat())
    }

    fn machine(&self, name: PortName, console: PathBuf) -> qemu::Config {
        let mut machine = qemu::Config::new(Boot::Kernel {
            kernel: self.config.kernel.clone(),
            initrd: Some(self.config.initramfs.clone()),
            command_line: COMMAND_LINE.into(),
        });
        machine.memory = self.config.memory.0;
        machine.cpus = self.config.cpus;
        machine.disks.clone_from(&self.disks);
        machine.console = Sink::File(console);
        machine.ports = vec![Port { name, sink: Sink::Stream }];
        machine
    }
}

/// QEMU starts a log at its beginning, but leaves the header of an older one there until the first flush.
fn empty_logs(disks: &[Disk]) -> io::Result<()> {
    for disk in disks {
        if let Wrap::WriteLog(log) = &disk.wrap {
            File::create(log)?;
        }
    }
    Ok(())
}

fn make_disks(disks: &[Scratch], dir: &Path, logs: &Path) -> io::Result<Vec<Disk>> {
    let make = |(index, scratch): (usize, &Scratch)| {
        let serial = format!("scratch-{index}").parse().map_err(io::Error::other)?;
        scratch.make(dir, logs, serial)
    };
    disks.iter().enumerate().map(make).collect()
}
