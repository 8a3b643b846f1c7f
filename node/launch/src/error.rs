//! Why there is no node, or none that ended in order.

use crate::boot_disk::CopyError;
use crate::check::Refusal;
use crate::console::Console;
use crate::data::DataError;
use crate::event::Unfinished;
use crate::join::JoinError;
use crate::kubeconfig::KubeconfigError;
use kube::runtime::watcher;
use qemu::Exit;
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use tokio::task;

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
    /// Firmware boots from a copy of the image, which a saved node would not find again.
    #[error("a node that boots by firmware cannot be saved or restored; boot its kernel directly")]
    SavedFirmware,
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
    /// A saved node does not continue.
    #[error("the saved node cannot be restored")]
    Restore(#[from] qemu::RestoreError),
    /// Its data disk cannot be used.
    #[error("cannot prepare the data disk of the saved node")]
    RestoreData(#[from] crate::data::RestoreError),
    /// Its credentials cannot be read.
    #[error("cannot read the credentials of the saved node in {path}")]
    RestoreCredentials {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// QEMU does not let it run.
    #[error("the saved node cannot be resumed")]
    Resume(#[source] qemu::QmpError),
    /// A disk's name is none.
    #[error("QEMU cannot be configured")]
    Disk(#[from] qemu::SerialError),
    /// A port's name is none.
    #[error("QEMU cannot be configured")]
    PortName(#[from] qemu::NameError),
    /// QEMU runs without the port for announcements.
    #[error("QEMU has no port for the node's announcements")]
    NoAnnouncements,
    /// The node's network is not connected.
    #[error("the guest cannot be connected to the other nodes")]
    Connect(#[source] io::Error),
    /// A panic on the way.
    #[error("a part of the launcher panicked")]
    Panicked(#[source] task::JoinError),
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
    #[error("the node was not ready after {limit:?}; waited for: {unfinished}; {console}")]
    Late {
        /// The deadline.
        limit: Duration,
        /// What had begun and was not done.
        unfinished: Unfinished,
        /// The guest's last words.
        console: Console,
        /// Why the API server did not tell about the node, when it was asked last.
        #[source]
        source: Option<Box<watcher::Error>>,
    },
    /// The announced credentials cannot be used.
    #[error("there is no access to the cluster")]
    Kubeconfig(#[from] KubeconfigError),
}

/// Why a node was not saved.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// It was not booted with [`Origin::Savable`](crate::Origin::Savable), or it is still in use.
    #[error("the node is in use or was not booted to be saved")]
    InUse,
    /// The guest was not saved.
    #[error("the guest cannot be saved")]
    Guest(#[from] qemu::SaveError),
    /// The credentials were not saved.
    #[error("cannot write {path}")]
    Credentials {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A panic on the way.
    #[error("a part of the launcher panicked")]
    Panicked(#[source] task::JoinError),
}

/// Why there is no cluster, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// One of its nodes.
    #[error("node {node} did not boot")]
    Boot {
        /// The node.
        node: String,
        /// Why.
        #[source]
        source: Box<BootError>,
    },
    /// The nodes could not reach each other.
    #[error("the network between the nodes cannot be started")]
    Segment(#[source] qemu::StartError),
    /// They cannot any more.
    #[error("the network between the nodes is gone, QEMU ended with {0}")]
    SegmentEnded(Exit),
    /// A worker is not let in.
    #[error("node {node} cannot be let into the cluster")]
    Join {
        /// The node.
        node: String,
        /// Why.
        #[source]
        source: JoinError,
    },
}

impl ClusterError {
    pub(crate) fn of(node: &str) -> impl FnOnce(BootError) -> Self {
        move |source| Self::Boot { node: node.to_owned(), source: Box::new(source) }
    }
}

/// A node of a cluster did not power off by itself.
#[derive(Debug, thiserror::Error)]
#[error("node {node} did not shut down")]
pub struct ClusterShutdownError {
    /// The first of them, if there are several.
    pub node: String,
    /// How it ended.
    #[source]
    pub source: ShutdownError,
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
    Panicked(#[source] task::JoinError),
}
