//! A running VM.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use units::Bytes;

use crate::accelerator::Accelerator;
use crate::arguments::{ConfigError, Origin, Streams, arguments, device, machine, node, node_name, spare_port};
use crate::config::{Config, PortName, Sink};
use crate::disk::{Disk, Serial};
use crate::network::{Link, Network};
use crate::process::{Exit, Process};
use crate::program::Program;
use crate::qmp::{Qmp, QmpError};
use crate::saved::{self, Machine, RestoreError, SaveError, Saved};

/// Time in which QEMU ends after it closed the control connection.
const EXIT_LIMIT: Duration = Duration::from_secs(5);

/// A running VM. Dropping it kills the guest and waits for its end.
#[derive(Debug)]
pub struct Vm {
    process: Process,
    qmp: Mutex<Qmp>,
    streams: Mutex<HostStreams>,
    attached: Mutex<Attached>,
    /// Directory for the saved guest, and description of the machine. `None` if the guest cannot be saved.
    saves: Option<(PathBuf, Machine)>,
}

/// Disks of the guest, and ports for more.
#[derive(Debug)]
struct Attached {
    serials: Vec<Serial>,
    spare_ports: Range<u8>,
}

#[derive(Debug)]
struct HostStreams {
    console: Option<UnixStream>,
    ports: BTreeMap<PortName, UnixStream>,
    wire: Option<UnixDatagram>,
}

/// Reason why a VM did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is invalid.
    #[error("invalid configuration of a VM")]
    Config(#[from] ConfigError),
    /// A socket pair or a thread cannot be created.
    #[error("cannot prepare the connections to QEMU")]
    Prepare(#[source] io::Error),
    /// The program does not start.
    #[error("cannot start QEMU")]
    Spawn(#[source] io::Error),
    /// QEMU exited: a file is missing, in use or too short, or a port of the host is in use.
    #[error("QEMU did not start the VM ({0})")]
    Ended(Exit),
    /// QEMU runs but cannot be controlled.
    #[error("cannot control QEMU")]
    Control(#[source] QmpError),
}

/// Reason why a disk was not attached.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors describe the fields")]
pub enum AttachError {
    /// The disk cannot be described.
    #[error("the configuration of disk {serial} is invalid")]
    Config { serial: Serial, source: ConfigError },
    /// No port is free, see [`Config::spare_ports`].
    #[error("no spare port is left for disk {0}; start the VM with more spare ports")]
    NoPort(Serial),
    /// QEMU rejected the disk.
    #[error("cannot attach disk {serial}")]
    Control { serial: Serial, source: QmpError },
}

/// Requests that a disk has completed since the VM started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockStats {
    /// Number of reads.
    pub reads: u64,
    /// Number of writes.
    pub writes: u64,
    /// Number of flushes.
    pub flushes: u64,
    /// Bytes read.
    pub read_bytes: Bytes,
    /// Bytes written.
    pub written_bytes: Bytes,
    /// Sum of the durations of all reads, from QEMU's receipt of a request to its completion. Requests that are in
    /// progress at the same time count several times.
    pub read_time: Duration,
    /// Sum of the durations of all writes, like [`read_time`](Self::read_time).
    pub write_time: Duration,
    /// Sum of the durations of all flushes, like [`read_time`](Self::read_time). Near 0 with [`Cache::Unsafe`].
    ///
    /// [`Cache::Unsafe`]: crate::Cache::Unsafe
    pub flush_time: Duration,
}

impl Vm {
    /// Starts the VM. The guest runs when the function returns. After an error, no process is left.
    pub fn start(program: &Program, accelerator: Accelerator, config: &Config) -> Result<Self, StartError> {
        Self::launch(program, accelerator, config, Origin::Boot, |_| Ok(()))
    }

    /// Starts a VM that can be saved in the directory `dir`, which exists and contains no saved guest.
    pub fn start_savable(
        program: &Program,
        accelerator: Accelerator,
        config: &Config,
        dir: &Path,
    ) -> Result<Self, StartError> {
        let mut machine = None;
        let mut vm = Self::launch(program, accelerator, config, Origin::Savable, |arguments| {
            machine = Some(Machine::new(program, arguments));
            Ok::<(), StartError>(())
        })?;
        vm.saves = machine.map(|machine| (dir.to_owned(), machine));
        Ok(vm)
    }

    /// Saves the guest and ends the VM. The disks have the content that the guest expects after a restore. On errors
    /// the VM has ended and nothing can be restored.
    pub fn save(self) -> Result<Saved, SaveError> {
        let (dir, machine) = self.saves.clone().ok_or(SaveError::NotSavable)?;
        let saved = saved::save(&self, &dir, machine)?;
        self.process.join();
        Ok(saved)
    }

    /// Starts a VM with the memory and devices of a saved guest, paused until [`Self::resume`], so that disks can be
    /// attached. `config` has the same memory, CPUs and devices as when the guest was saved; files, streams and
    /// forwarded ports may differ. On errors nothing runs; [`RestoreError`] names the difference.
    pub fn restore(
        program: &Program,
        accelerator: Accelerator,
        config: &Config,
        saved: &Saved,
    ) -> Result<Self, RestoreError> {
        let check = |arguments| saved.check(&Machine::new(program, arguments));
        let vm = Self::launch(program, accelerator, config, Origin::Saved, check)?;
        saved.load(&vm)?;
        Ok(vm)
    }

    /// Lets a restored guest run. [`QmpError::Closed`] if the VM has ended.
    pub fn resume(&self) -> Result<(), QmpError> {
        self.execute("cont", json!({})).map(drop)
    }

    /// `check` receives the arguments that a saved guest depends on, before QEMU starts.
    fn launch<E: From<StartError>>(
        program: &Program,
        accelerator: Accelerator,
        config: &Config,
        origin: Origin,
        check: impl FnOnce(Vec<(String, String)>) -> Result<(), E>,
    ) -> Result<Self, E> {
        let (host, guest) = Ends::make(config).map_err(StartError::Prepare)?;
        let arguments = arguments(accelerator, config, &guest.numbers(), origin).map_err(StartError::Config)?;
        check(machine(&arguments))?;
        let mut command = Command::new(program.path());
        command.args(arguments);
        let (process, qmp) = open(command, guest.descriptors(), host.qmp)?;
        let names = config.ports.iter().filter(|port| port.sink == Sink::Stream).map(|port| port.name.clone());
        let streams = HostStreams { console: host.console, ports: names.zip(host.ports).collect(), wire: host.wire };
        let serials = config.disks.iter().map(|disk| disk.serial.clone()).collect();
        let attached = Attached { serials, spare_ports: 0..config.spare_ports };
        Ok(Self {
            process,
            qmp: Mutex::new(qmp),
            streams: Mutex::new(streams),
            attached: Mutex::new(attached),
            saves: None,
        })
    }

    /// Attaches a disk to a spare port. A paused guest finds the disk when it runs, a running guest after some time.
    pub fn attach(&self, disk: &Disk) -> Result<(), AttachError> {
        let serial = &disk.serial;
        let config = |source| AttachError::Config { serial: serial.clone(), source };
        let control = |source| AttachError::Control { serial: serial.clone(), source };
        let mut attached = self.attached();
        if attached.serials.contains(serial) {
            return Err(config(ConfigError::SameSerial(serial.clone())));
        }
        let node = node(disk).map_err(config)?;
        let port = attached.spare_ports.next().ok_or_else(|| AttachError::NoPort(serial.clone()))?;
        self.execute("blockdev-add", node).map_err(control)?;
        let mut device = device(disk);
        device["bus"] = json!(spare_port(port));
        self.execute("device_add", device).map_err(control)?;
        attached.serials.push(serial.clone());
        Ok(())
    }

    /// Returns the host's end of a port with [`Sink::Stream`], once.
    pub fn take_port(&self, name: &str) -> Option<UnixStream> {
        let mut streams = self.streams();
        let name = streams.ports.keys().find(|port| port.as_str() == name)?.clone();
        streams.ports.remove(&name)
    }

    /// Returns the host's end of the console with [`Sink::Stream`], once.
    pub fn take_console(&self) -> Option<UnixStream> {
        self.streams().console.take()
    }

    /// Returns the host's end of a network with [`Link::Wire`], once. Each datagram is an Ethernet frame.
    pub fn take_wire(&self) -> Option<UnixDatagram> {
        self.streams().wire.take()
    }

    /// Presses the power button; the guest reacts. [`QmpError::Closed`] if the VM has ended.
    pub fn powerdown(&self) -> Result<(), QmpError> {
        self.execute("system_powerdown", json!({})).map(drop)
    }

    /// Ends QEMU at once, without a shutdown of the guest. Completed writes are in the files. Succeeds if the VM has
    /// ended.
    pub fn quit(&self) -> Result<(), QmpError> {
        match self.execute("quit", json!({})) {
            Ok(_) | Err(QmpError::Closed) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Kills QEMU, without a shutdown of the guest. Requests that QEMU has not forwarded are lost.
    pub fn kill(&self) {
        self.process.kill();
    }

    /// Requests of each disk since the VM started.
    pub fn block_stats(&self) -> Result<BTreeMap<Serial, BlockStats>, QmpError> {
        let command = "query-blockstats";
        let answer = self.execute(command, json!({}))?;
        stats(answer, &self.attached().serials).map_err(|source| QmpError::Answer { command: command.into(), source })
    }

    /// Executes a command of QMP. [`QmpError::Closed`] if the VM has ended.
    pub fn execute(&self, command: &str, arguments: Value) -> Result<Value, QmpError> {
        self.qmp.lock().unwrap_or_else(PoisonError::into_inner).execute(command, &arguments)
    }

    /// Waits for the end of the VM. `None` if the VM still runs after `limit`.
    pub fn wait(&self, limit: Duration) -> Option<Exit> {
        self.process.wait(limit)
    }

    /// Exit of the VM, if it has ended.
    pub fn exit(&self) -> Option<Exit> {
        self.process.exit()
    }

    /// Presses the power button, waits up to `limit`, then kills the VM if it still runs.
    pub fn shut_down(&self, limit: Duration) -> Exit {
        // A QEMU that does not accept the command is killed after a short wait.
        let pressed = self.powerdown();
        let patience = if pressed.is_ok() { limit } else { EXIT_LIMIT.min(limit) };
        self.process.wait(patience).unwrap_or_else(|| {
            self.process.kill();
            self.process.join()
        })
    }

    fn attached(&self) -> MutexGuard<'_, Attached> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn streams(&self) -> MutexGuard<'_, HostStreams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts QEMU and opens its control connection.
pub(crate) fn open(command: Command, theirs: Vec<OwnedFd>, qmp: UnixStream) -> Result<(Process, Qmp), StartError> {
    let process = Process::spawn(command, theirs).map_err(StartError::Spawn)?;
    match Qmp::open(qmp) {
        Ok(qmp) => Ok((process, qmp)),
        Err(QmpError::Closed) => Err(match process.wait(EXIT_LIMIT) {
            Some(exit) => StartError::Ended(exit),
            None => StartError::Control(QmpError::Closed),
        }),
        Err(error) => Err(StartError::Control(error)),
    }
}

/// One side of all socket pairs.
struct Ends {
    qmp: UnixStream,
    console: Option<UnixStream>,
    ports: Vec<UnixStream>,
    wire: Option<UnixDatagram>,
}

impl Ends {
    fn make(config: &Config) -> io::Result<(Self, Self)> {
        let (qmp, their_qmp) = UnixStream::pair()?;
        let mut ours = Self { qmp, console: None, ports: Vec::new(), wire: None };
        let mut theirs = Self { qmp: their_qmp, console: None, ports: Vec::new(), wire: None };
        if config.console == Sink::Stream {
            let (our, their) = UnixStream::pair()?;
            (ours.console, theirs.console) = (Some(our), Some(their));
        }
        for _ in config.ports.iter().filter(|port| port.sink == Sink::Stream) {
            let (our, their) = UnixStream::pair()?;
            ours.ports.push(our);
            theirs.ports.push(their);
        }
        if let Some(Network { link: Link::Wire, .. }) = config.network {
            let (our, their) = UnixDatagram::pair()?;
            (ours.wire, theirs.wire) = (Some(our), Some(their));
        }
        Ok((ours, theirs))
    }

    fn numbers(&self) -> Streams {
        Streams {
            qmp: self.qmp.as_raw_fd(),
            console: self.console.as_ref().map(AsRawFd::as_raw_fd),
            ports: self.ports.iter().map(AsRawFd::as_raw_fd).collect(),
            wire: self.wire.as_ref().map(AsRawFd::as_raw_fd),
        }
    }

    fn descriptors(self) -> Vec<OwnedFd> {
        let wire = self.wire.map(OwnedFd::from);
        [self.qmp].into_iter().chain(self.console).chain(self.ports).map(OwnedFd::from).chain(wire).collect()
    }
}

#[derive(Deserialize)]
struct Node {
    #[serde(rename = "node-name", default)]
    name: String,
    stats: Counters,
}

#[derive(Deserialize)]
struct Counters {
    rd_operations: u64,
    wr_operations: u64,
    flush_operations: u64,
    rd_bytes: u64,
    wr_bytes: u64,
    rd_total_time_ns: u64,
    wr_total_time_ns: u64,
    flush_total_time_ns: u64,
}

fn stats(answer: Value, serials: &[Serial]) -> Result<BTreeMap<Serial, BlockStats>, serde_json::Error> {
    let nodes: Vec<Node> = serde_json::from_value(answer)?;
    Ok(serials
        .iter()
        .filter_map(|serial| {
            let node = nodes.iter().find(|node| node.name == node_name(serial))?;
            Some((serial.clone(), BlockStats::from(&node.stats)))
        })
        .collect())
}

impl From<&Counters> for BlockStats {
    fn from(counters: &Counters) -> Self {
        Self {
            reads: counters.rd_operations,
            writes: counters.wr_operations,
            flushes: counters.flush_operations,
            read_bytes: Bytes::new(counters.rd_bytes),
            written_bytes: Bytes::new(counters.wr_bytes),
            read_time: Duration::from_nanos(counters.rd_total_time_ns),
            write_time: Duration::from_nanos(counters.wr_total_time_ns),
            flush_time: Duration::from_nanos(counters.flush_total_time_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_disks_of_the_configuration_are_counted() {
        let counters = |flushes: u64| {
            json!({
                "rd_operations": 1, "wr_operations": 2, "flush_operations": flushes,
                "rd_bytes": 512, "wr_bytes": 4096, "idle_time_ns": 7,
                "rd_total_time_ns": 10, "wr_total_time_ns": 20, "flush_total_time_ns": 30,
            })
        };
        let answer = json!([
            {"device": "", "node-name": "disk-data", "stats": counters(3), "qdev": "/machine/peripheral-anon/device[3]"},
            {"node-name": "code", "stats": counters(9)},
        ]);
        let data: Serial = "data".parse().unwrap();
        let found = stats(answer, &[data.clone(), "system".parse().unwrap()]).unwrap();
        let expected = BlockStats {
            reads: 1,
            writes: 2,
            flushes: 3,
            read_bytes: Bytes::new(512),
            written_bytes: Bytes::new(4096),
            read_time: Duration::from_nanos(10),
            write_time: Duration::from_nanos(20),
            flush_time: Duration::from_nanos(30),
        };
        assert_eq!(found, BTreeMap::from([(data, expected)]));
    }
}
