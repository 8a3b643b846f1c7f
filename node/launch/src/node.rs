//! A node that runs in QEMU.

use crate::boot_disk::CopyError;
use crate::check::Refusal;
use crate::data::DataError;
use crate::guest;
use crate::kubeconfig::{self, KubeconfigError};
use crate::options::Options;
use announce::{Announcement, StageState};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::wait::{self, await_condition};
use kube::{Api, Client};
use qemu::{Accelerator, Exit, Version, Vm};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::task::{JoinError, JoinSet, spawn_blocking};
use tokio::time::timeout;

/// How long a guest gets to stop its pods and services and to unmount its disk.
pub const SHUTDOWN_LIMIT: Duration = Duration::from_secs(120);

/// The node's name in the cluster.
pub(crate) const NAME: &str = "granary";
/// QEMU closes the port before it ends; then it has this long.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// Lines of the console that an error shows.
const CONSOLE_LINES: usize = 25;

/// A node that runs. Dropping it is a power cut.
pub struct Node {
    vm: Arc<Vm>,
    client: Client,
    kubeconfig: PathBuf,
    console: PathBuf,
    /// One task that reads announcements until the guest's end.
    rest: JoinSet<Option<String>>,
}

/// What happens during the boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// QEMU runs the guest.
    Started {
        /// Its version.
        version: Version,
        /// What executes the guest.
        accelerator: Accelerator,
    },
    /// The node tells of a stage.
    Stage {
        /// What it is about.
        name: String,
        /// How far it is.
        state: StageState,
        /// Since the start of the guest's kernel.
        at: Duration,
    },
    /// The API server answers; what is left is the node's registration.
    Answers,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started { version, accelerator } => write!(f, "QEMU {version} runs the guest with {accelerator}"),
            Self::Stage { name, state, at } => {
                let state = match state {
                    StageState::Started => "started",
                    StageState::Ready => "ready",
                    StageState::Failed => "failed, tried again",
                };
                write!(f, "{name}: {state} ({:.1} s)", at.as_secs_f64())
            }
            Self::Answers => f.write_str("the API server answers"),
        }
    }
}

/// The last lines of the guest's console.
#[derive(Debug)]
pub struct Console {
    path: PathBuf,
    lines: Vec<String>,
}

impl Console {
    fn read(path: &Path) -> Self {
        let lines = qemu::console_tail(path, CONSOLE_LINES)
            .unwrap_or_else(|error| vec![format!("{} cannot be read: {error}", path.display())]);
        Self { path: path.into(), lines }
    }
}

impl fmt::Display for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "end of {}:", self.path.display())?;
        self.lines.iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}

/// Why there is no node.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// There is no QEMU to use.
    #[error("the node cannot be started on this machine")]
    Qemu(#[from] qemu::FindError),
    /// There is no firmware to use.
    #[error("the node cannot be started on this machine")]
    Firmware(#[from] qemu::FirmwareError),
    /// The machine cannot run the node.
    #[error("the node cannot be started on this machine")]
    Refused(#[from] Refusal),
    /// No port is free.
    #[error("no port of 127.0.0.1 is free")]
    NoPort(#[source] io::Error),
    /// The command line of the image cannot be read.
    #[error("cannot read the kernel's command line from {path}")]
    CommandLine {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The node's configuration cannot be written.
    #[error("cannot write the node's configuration to {directory}")]
    Configuration {
        /// The directory.
        directory: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The data disk cannot be made.
    #[error("the data disk cannot be made")]
    Data(#[from] DataError),
    /// The disk to boot from cannot be made.
    #[error("the boot disk cannot be made")]
    BootDisk(#[from] CopyError),
    /// QEMU does not start.
    #[error("the guest cannot be started")]
    Start(#[from] qemu::StartError),
    /// A disk's name is none.
    #[error("QEMU cannot be configured")]
    Disk(#[from] qemu::SerialError),
    /// A port's name is none.
    #[error("QEMU cannot be configured")]
    PortName(#[from] qemu::NameError),
    /// QEMU runs without the port for announcements.
    #[error("QEMU has no port for the node's announcements")]
    NoAnnouncements,
    /// A panic on the way.
    #[error("a part of the launcher panicked")]
    Panicked(#[source] JoinError),
    /// The node's announcements cannot be read.
    #[error("cannot read what the node announces")]
    Port(#[source] io::Error),
    /// The node itself said that it cannot go on.
    #[error("the node cannot go on: {message}")]
    Fatal {
        /// What it said.
        message: String,
    },
    /// The guest ended without a word.
    #[error("the guest ended during its boot, QEMU with {exit}; {console}")]
    Ended {
        /// How QEMU ended.
        exit: Exit,
        /// The guest's last words.
        console: Console,
    },
    /// The boot takes too long.
    #[error("the node was not ready after {limit:?}, last: {last}; {console}")]
    Late {
        /// The deadline.
        limit: Duration,
        /// The last event.
        last: String,
        /// The guest's last words.
        console: Console,
    },
    /// The announced credentials cannot be used.
    #[error("there is no access to the cluster")]
    Kubeconfig(#[from] KubeconfigError),
    /// The API server does not tell about the node.
    #[error("cannot watch node {NAME}")]
    Watch(#[source] Box<wait::Error>),
}

/// The guest did not power off by itself.
#[derive(Debug, thiserror::Error)]
pub enum ShutdownError {
    /// QEMU ended in another way than by the guest's power-off.
    #[error("the guest did not power off in order, QEMU ended with {exit}; {console}")]
    Killed {
        /// How QEMU ended.
        exit: Exit,
        /// The guest's last words.
        console: Console,
    },
    /// A panic on the way.
    #[error("a part of the launcher panicked")]
    Panicked(#[source] JoinError),
}

type Announcements = Lines<BufReader<UnixStream>>;

impl Node {
    /// Boots the node and returns when the cluster calls it ready.
    ///
    /// Cancel-safe: the guest ends when the future is dropped.
    ///
    /// # Errors
    /// [`BootError`]. No guest runs then, and nothing is left but the logs and a data file that was asked for.
    pub async fn boot(options: &Options, mut on_event: impl FnMut(&Event)) -> Result<Self, BootError> {
        let console = options.logs.join("console.log");
        let mut last = None;
        let following = |event: Event| {
            on_event(&event);
            last = Some(event);
        };
        match timeout(options.limit, Self::boot_without_limit(options, &console, following)).await {
            Ok(result) => result,
            Err(_) => {
                let last = last.map_or_else(|| "nothing".to_owned(), |event| event.to_string());
                Err(BootError::Late { limit: options.limit, last, console: Console::read(&console) })
            }
        }
    }

    async fn boot_without_limit(
        options: &Options,
        console: &Path,
        mut on_event: impl FnMut(Event),
    ) -> Result<Self, BootError> {
        let start = Timestamp::now();
        let (owned, log) = (options.clone(), console.to_path_buf());
        let guest = spawn_blocking(move || guest::start(&owned, &log)).await.map_err(BootError::Panicked)??;
        on_event(Event::Started { version: guest.version, accelerator: guest.accelerator });
        let vm = Arc::new(guest.vm);
        let mut announcements = lines(guest.port)?;

        let announced = loop {
            match next(&mut announcements, &vm, console).await? {
                Announcement::Stage { name, state, at_ms } => {
                    on_event(Event::Stage { name, state, at: Duration::from_millis(at_ms) });
                }
                Announcement::Credentials { kubeconfig } => break kubeconfig,
                Announcement::Fatal { message } => return Err(BootError::Fatal { message }),
            }
        };
        on_event(Event::Answers);
        let kubeconfig = kubeconfig::from_outside(&announced, guest.api)?;
        let path = options.state.join("kubeconfig");
        kubeconfig::write(&kubeconfig, &path)?;
        let client = kubeconfig::client(kubeconfig).await?;

        let nodes: Api<core::Node> = Api::all(client.clone());
        let ready =
            await_condition(nodes, NAME, |node: Option<&core::Node>| node.is_some_and(|it| is_ready(it, start)));
        let mut ready = std::pin::pin!(ready);
        loop {
            tokio::select! {
                result = &mut ready => {
                    result.map_err(|error| BootError::Watch(Box::new(error)))?;
                    break;
                }
                announcement = next(&mut announcements, &vm, console) => match announcement? {
                    Announcement::Stage { name, state, at_ms } => {
                        on_event(Event::Stage { name, state, at: Duration::from_millis(at_ms) });
                    }
                    // Announced again with a renewed certificate: the first is valid for long enough.
                    Announcement::Credentials { .. } => {}
                    Announcement::Fatal { message } => return Err(BootError::Fatal { message }),
                },
            }
        }
        let mut rest = JoinSet::new();
        rest.spawn(drain(announcements));
        Ok(Self { vm, client, kubeconfig: path, console: console.into(), rest })
    }

    /// A client with an administrator's rights.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The kubeconfig of [`Node::client`]. It is the caller's to remove.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The console's log.
    pub fn console(&self) -> &Path {
        &self.console
    }

    /// Returns when the guest ended by itself, with the reason. Cancel-safe.
    pub async fn ended(&mut self) -> String {
        let fatal = match self.rest.join_next().await {
            Some(Ok(fatal)) => fatal,
            Some(Err(_)) | None => None,
        };
        let vm = Arc::clone(&self.vm);
        let exit = spawn_blocking(move || vm.wait(LAST_WORDS)).await;
        match (fatal, exit) {
            (Some(message), _) => message,
            (None, Ok(Some(exit))) => format!("QEMU ended with {exit}; {}", Console::read(&self.console)),
            (None, _) => format!("the guest closed its port; {}", Console::read(&self.console)),
        }
    }

    /// Whether the guest has ended.
    pub fn has_ended(&self) -> bool {
        self.vm.exit().is_some()
    }

    /// Presses the power button and waits until the guest has powered off. A guest that takes longer
    /// than `limit` is killed. If the future is dropped, the guest is cut off.
    ///
    /// # Errors
    /// [`ShutdownError::Killed`]: the disk is as after a power cut.
    pub async fn shut_down(self, limit: Duration) -> Result<(), ShutdownError> {
        let vm = Arc::clone(&self.vm);
        let cut = PowerCut(Arc::clone(&self.vm));
        let ended = spawn_blocking(move || vm.shut_down(limit)).await;
        drop(cut);
        match ended {
            Ok(exit) if exit.status.success() => Ok(()),
            Ok(exit) => Err(ShutdownError::Killed { exit, console: Console::read(&self.console) }),
            Err(error) => Err(ShutdownError::Panicked(error)),
        }
    }

    /// Ends the guest at once: what it had not flushed may be lost, as after a power cut.
    pub async fn power_cut(self) {
        self.vm.kill();
        // Dropped elsewhere than on a thread of the runtime: it waits for QEMU's end.
        _ = spawn_blocking(move || drop(self)).await;
    }
}

/// Kills the guest on drop; nothing if it has ended.
struct PowerCut(Arc<Vm>);

impl Drop for PowerCut {
    fn drop(&mut self) {
        self.0.kill();
    }
}

/// A disk that was kept has the node's state of its last boot: only what kubelet said `since` counts. The
/// guest's clock is this machine's.
fn is_ready(node: &core::Node, since: Timestamp) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut ready = conditions.filter(|condition| condition.type_ == "Ready" && condition.status == "True");
    ready.any(|condition| condition.last_heartbeat_time.as_ref().is_some_and(|heartbeat| heartbeat.0 >= since))
}

fn lines(port: std::os::unix::net::UnixStream) -> Result<Announcements, BootError> {
    port.set_nonblocking(true).map_err(BootError::Port)?;
    let port = UnixStream::from_std(port).map_err(BootError::Port)?;
    Ok(BufReader::new(port).lines())
}

/// The next announcement that is understood. Cancel-safe.
async fn next(announcements: &mut Announcements, vm: &Arc<Vm>, console: &Path) -> Result<Announcement, BootError> {
    while let Some(line) = announcements.next_line().await.map_err(BootError::Port)? {
        // A newer node tells more.
        if let Ok(announcement) = Announcement::from_line(&line) {
            return Ok(announcement);
        }
    }
    // The port is closed by QEMU's end only.
    let ending = Arc::clone(vm);
    let exit = spawn_blocking(move || ending.shut_down(LAST_WORDS)).await.map_err(BootError::Panicked)?;
    Err(BootError::Ended { exit, console: Console::read(console) })
}

/// Reads to the guest's end, so that it never waits for a reader; returns why it could not go on.
async fn drain(mut announcements: Announcements) -> Option<String> {
    let mut fatal = None;
    while let Ok(Some(line)) = announcements.next_line().await {
        if let Ok(Announcement::Fatal { message }) = Announcement::from_line(&line) {
            fatal = Some(message);
        }
    }
    fatal
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::io::Write;
    use std::os::unix::net::UnixStream as Pair;

    fn node(status: &str, heartbeat: &str) -> core::Node {
        serde_json::from_value(json!({
            "metadata": {"name": NAME},
            "status": {"conditions": [
                {"type": "MemoryPressure", "status": "False", "lastHeartbeatTime": heartbeat},
                {"type": "Ready", "status": status, "lastHeartbeatTime": heartbeat},
            ]},
        }))
        .unwrap()
    }

    #[test]
    fn only_the_condition_ready_makes_a_node_ready() {
        let start = "2026-11-21T21:00:00Z";
        let since: Timestamp = start.parse().unwrap();
        assert!(is_ready(&node("True", start), since));
        assert!(!is_ready(&node("Unknown", start), since));
        assert!(!is_ready(&core::Node::default(), since));
    }

    #[test]
    fn a_node_that_was_ready_before_this_boot_is_not_ready() {
        let since: Timestamp = "2026-11-21T21:00:00Z".parse().unwrap();
        assert!(!is_ready(&node("True", "2026-11-21T20:59:59Z"), since));
    }

    #[test]
    fn an_event_reads_as_a_line() {
        let event = Event::Stage { name: "etcd".into(), state: StageState::Ready, at: Duration::from_millis(12_340) };
        assert_eq!(event.to_string(), "etcd: ready (12.3 s)");
    }

    #[tokio::test]
    async fn the_last_fatal_message_is_kept_and_other_lines_are_passed_over() {
        let (mut guest, host) = Pair::pair().unwrap();
        let fatal = Announcement::Fatal { message: "the data disk is gone".into() };
        guest.write_all(b"noise\n{\"kind\":\"poem\"}\n").unwrap();
        guest.write_all(fatal.to_line().unwrap().as_bytes()).unwrap();
        drop(guest);
        assert_eq!(drain(lines(host).unwrap()).await.as_deref(), Some("the data disk is gone"));
    }
}
