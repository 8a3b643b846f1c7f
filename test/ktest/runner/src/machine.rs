//! The machine of a test. Its disks and logs outlive a power cut.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ktest_init::{PORT, StepError};
use ktest_runner::guests::{Guests, Key};
use qemu::{Accelerator, Access, Boot, Disk, Port, PortName, Program, Saved, Sink, Vm, Wrap};
use tempfile::TempDir;

use crate::bazel::Bazel;
use crate::config::{Config, Runs};
use crate::guest::Guest;
use crate::scratch::Scratch;

/// `oops=panic`: a test on a kernel that continues after an oops proves nothing. `panic=-1`: a panic ends the VM.
/// `no_timer_check`: on a busy host the check of timer interrupts sometimes fails. `rcu…`: an unmount or the removal of
/// a device waits for grace periods, tens of milliseconds each on an idle guest, and tests wait for hundreds of them.
const COMMAND_LINE: &str = "console=ttyS0 loglevel=5 oops=panic panic=-1 mitigations=off init_on_alloc=0 nowatchdog no_timer_check audit=0 apparmor=0 rcupdate.rcu_expedited=1 rcutree.jiffies_till_first_fqs=0";

const PAYLOAD: &str = "payload";
/// Ports for the payload and for scratch disks. A guest with more disks boots and is not restored.
const SPARE_PORTS: u8 = 8;

/// Guests must end before this value is dropped, because they use its files.
pub(crate) struct Machine<'a> {
    program: &'a Program,
    accelerator: Accelerator,
    config: &'a Config,
    disks: Vec<Disk>,
    guests: Option<Guests>,
    starts: Starts,
    consoles: Vec<PathBuf>,
    margin: Duration,
    dir: TempDir,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Starts {
    pub(crate) boots: u32,
    pub(crate) restores: u32,
}

impl<'a> Machine<'a> {
    pub(crate) fn new(program: &'a Program, config: &'a Config, bazel: &Bazel) -> Result<Self, StepError> {
        let dir = match &bazel.scratch {
            Some(scratch) => TempDir::with_prefix_in("ktest", scratch),
            None => TempDir::with_prefix("ktest"),
        };
        let dir = dir.map_err(StepError::of("create a directory for the VM's files"))?;
        let accelerator = Accelerator::probe(program, dir.path());
        let logs = match (config.runs, &bazel.outputs) {
            (Runs::Test, Some(outputs)) => outputs.as_path(),
            // A test may run many programs, whose logs would have the same name.
            (Runs::Test, None) | (Runs::Program, _) => dir.path(),
        };
        let disks = make_disks(&config.disks, dir.path(), logs).map_err(StepError::of("create a scratch disk"))?;
        let guests = Guests::of_machine().filter(|_| disks.len() < usize::from(SPARE_PORTS));
        let starts = Starts::default();
        let margin = bazel.margin();
        Ok(Self { program, accelerator, config, disks, guests, starts, consoles: Vec::new(), margin, dir })
    }

    pub(crate) fn starts(&self) -> Starts {
        self.starts
    }

    pub(crate) fn accelerator(&self) -> Accelerator {
        self.accelerator
    }

    pub(crate) fn disks(&self) -> Vec<String> {
        self.disks.iter().map(|disk| disk.serial.to_string()).collect()
    }

    pub(crate) fn start(&mut self) -> Result<Guest, StepError> {
        empty_logs(&self.disks).map_err(StepError::of("create a scratch disk"))?;
        if let Some(guests) = self.guests.clone()
            && let Some(guest) = self.restore(&guests)?
        {
            return Ok(guest);
        }
        self.boot()
    }

    fn boot(&mut self) -> Result<Guest, StepError> {
        let initramfs = self.dir.path().join("initramfs.cpio");
        if !initramfs.exists() {
            let written = concatenate(&[&self.config.initramfs, &self.config.payload], &initramfs);
            written.map_err(StepError::of("write the initramfs"))?;
        }
        let console = self.next_console();
        let mut machine = self.machine(&initramfs, console.clone())?;
        machine.disks.clone_from(&self.disks);
        let vm = Vm::start(self.program, self.accelerator, &machine).map_err(StepError::of("start the VM"))?;
        self.starts.boots += 1;
        Guest::new(vm, self.disks.clone(), console, self.margin)
    }

    /// Restores the saved guest of this host, which has neither payload nor disks, and attaches them. `None` if the
    /// host has too little free space for a saved guest.
    fn restore(&mut self, guests: &Guests) -> Result<Option<Guest>, StepError> {
        let key = self.key().map_err(StepError::of("read the files that the saved guest depends on"))?;
        let state = guests.get(&key, |dir| self.save(dir)).map_err(StepError::of("use a saved guest"))?;
        let Some(state) = state else { return Ok(None) };
        let console = self.next_console();
        let machine = self.savable(console.clone())?;
        let restored =
            Saved::open(state.dir()).and_then(|saved| Vm::restore(self.program, self.accelerator, &machine, &saved));
        let vm = restored.map_err(StepError::of("restore the guest"))?;
        let serial = PAYLOAD.parse().map_err(StepError::of("name the payload's disk"))?;
        let mut payload = Disk::new(serial, &self.config.payload);
        payload.access = Access::ReadOnly;
        for disk in std::iter::once(&payload).chain(&self.disks) {
            vm.attach(disk).map_err(StepError::of("attach a disk to the restored guest"))?;
        }
        vm.resume().map_err(StepError::of("resume the restored guest"))?;
        self.starts.restores += 1;
        let guest = Guest::new(vm, self.disks.clone(), console, self.margin)?;
        guest.unpack(PAYLOAD);
        Ok(Some(guest))
    }

    fn save(&mut self, dir: &Path) -> Result<(), StepError> {
        let console = self.next_console();
        let machine = self.savable(console.clone())?;
        let vm =
            Vm::start_savable(self.program, self.accelerator, &machine, dir).map_err(StepError::of("start the VM"))?;
        self.starts.boots += 1;
        Guest::new(vm, Vec::new(), console, self.margin)?.save()
    }

    fn key(&self) -> io::Result<Key> {
        let mut key = Key::new("ktest")?;
        key.add_file(self.program.path())?;
        // This program chooses QEMU's arguments.
        key.add_file(Path::new("/proc/self/exe"))?;
        key.add_file(&self.config.kernel)?;
        key.add_file(&self.config.initramfs)?;
        let Config { memory, cpus, .. } = self.config;
        key.add(&format!("{} {COMMAND_LINE} {} {cpus} {SPARE_PORTS}", self.accelerator, memory));
        Ok(key)
    }

    fn next_console(&mut self) -> PathBuf {
        let console = self.dir.path().join(format!("console-{}.log", self.consoles.len() + 1));
        self.consoles.push(console.clone());
        console
    }

    pub(crate) fn console(&self) -> io::Result<Vec<String>> {
        let boots = self.consoles.iter().map(|console| qemu::console_tail(console, usize::MAX));
        boots.collect::<io::Result<Vec<_>>>().map(|lines| lines.concat())
    }

    fn savable(&self, console: PathBuf) -> Result<qemu::Config, StepError> {
        let mut machine = self.machine(&self.config.initramfs, console)?;
        machine.spare_ports = SPARE_PORTS;
        Ok(machine)
    }

    fn machine(&self, initramfs: &Path, console: PathBuf) -> Result<qemu::Config, StepError> {
        let name: PortName = PORT.parse().map_err(StepError::of("name the guest's port"))?;
        let mut machine = qemu::Config::new(Boot::Kernel {
            kernel: self.config.kernel.clone(),
            initrd: Some(initramfs.to_owned()),
            command_line: COMMAND_LINE.into(),
        });
        machine.memory = self.config.memory;
        machine.cpus = self.config.cpus;
        machine.console = Sink::File(console);
        machine.ports = vec![Port { name, sink: Sink::Stream }];
        Ok(machine)
    }
}

/// The kernel unpacks cpio archives one after the other, Documentation/driver-api/early-userspace/buffer-format.rst.
fn concatenate(archives: &[&Path], to: &Path) -> io::Result<()> {
    let mut all = File::create(to)?;
    for archive in archives {
        // cpio pads an archive to 512 bytes; the kernel requires a multiple of 4.
        io::copy(&mut File::open(archive)?, &mut all)?;
    }
    Ok(())
}

/// Truncates the logs. QEMU starts a log at its beginning, but leaves the header of an older log there until the first
/// flush.
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
