//! What is booted, and with what.

use crate::site::Site;
use cluster::Overcommit;
use std::fmt;
use std::num::{NonZeroU8, NonZeroU16};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use units::Bytes;

/// The files of a node image, as `//node/image` makes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The kernel.
    pub kernel: PathBuf,
    /// The initramfs.
    pub initramfs: PathBuf,
    /// The system partition.
    pub system: PathBuf,
    /// A text file with the kernel's command line, without what depends on the machine.
    pub command_line: PathBuf,
}

/// What a node is booted with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The image.
    pub image: Image,
    /// Who starts it.
    pub boot: Boot,
    /// Whether it boots, or continues as it was saved.
    pub origin: Origin,
    /// The guest's memory.
    pub memory: Bytes,
    /// The guest's CPUs.
    pub cpus: NonZeroU8,
    /// Port of 127.0.0.1 that leads to the API server; a free one if absent.
    pub port: Option<NonZeroU16>,
    /// The data disk.
    pub data: Data,
    /// Size of the data disk if it is made, as a sparse file.
    pub data_size: Bytes,
    /// How many times its data disk the node may promise to volumes.
    pub overcommit: Overcommit,
    /// More arguments of the kernel, after those of the image and of the launcher. With [`Boot::Firmware`] they come from
    /// SMBIOS.
    pub kernel_arguments: String,
    /// The node's configuration, as docs/configuration.md describes it, instead of the launcher's own.
    pub configuration: Option<String>,
    /// An existing directory for the kubeconfig and for a temporary data disk.
    pub state: PathBuf,
    /// An existing directory for the console's log.
    pub logs: PathBuf,
    /// How long the boot may take until the node is ready.
    pub limit: Duration,
}

/// Who starts the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Boot {
    /// QEMU, without a look at the disks: the fastest.
    Kernel,
    /// UEFI firmware, from this disk image of `//node/image:disk`, which is not written to. The data are on a
    /// partition of a copy if they are temporary, else on a disk of their own. Of [`Image`] nothing
    /// is used.
    Firmware(PathBuf),
}

/// Whether a node boots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It boots.
    Boot,
    /// It boots, and can be saved in this existing directory, which also holds its data disk: see
    /// [`Node::save`](crate::Node::save). [`Options::data`] is ignored. User networking is outside of its QEMU, as in a
    /// cluster of several nodes. Not with [`Boot::Firmware`].
    Savable(PathBuf),
    /// It continues from the moment at which it was saved in this directory. All else must be as it was then, but for
    /// the port, directories and the data disk: a temporary one is an overlay of the saved one, a file is a new copy. Not
    /// with [`Boot::Firmware`]. It can be the control plane of a cluster, whose workers boot.
    Saved(PathBuf),
}

/// The data disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// A new one that is gone afterwards.
    Temporary,
    /// This file, which is made if it is missing and kept.
    File(PathBuf),
}

/// What a cluster is booted with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterOptions {
    /// The control plane. Its workers have the same image, way to boot, number of CPUs, size of data disks, overcommit,
    /// directories and limit. Their data are temporary if its own are, else in files beside its own: `FILE.1`, `FILE.2`
    /// and so on. Names of their other files begin with their names.
    pub control_plane: Options,
    /// All nodes, the control plane among them. Workers are `granary-1`, `granary-2` and so on.
    pub nodes: Nodes,
    /// Memory of each worker.
    pub worker_memory: Bytes,
    /// Whether a worker's frames are written to a file; see [`Worker::capture`](crate::Worker::capture).
    pub capture: Capture,
}

/// Number of nodes of a cluster, 1 to 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nodes(u8);

/// This is no number of nodes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no number of nodes; choose one from 1 to {}", Nodes::MOST)]
pub struct NodesError {
    /// What was given.
    pub text: String,
}

/// Whether what passes on a network is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capture {
    /// In a file.
    On,
    /// Not.
    Off,
}

impl Nodes {
    /// The control plane alone.
    pub const ONE: Self = Self(1);
    /// The most that there can be.
    pub const MOST: u8 = 8;

    /// How many they are.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl FromStr for Nodes {
    type Err = NodesError;

    fn from_str(text: &str) -> Result<Self, NodesError> {
        match text.parse() {
            Ok(count @ 1..=Self::MOST) => Ok(Self(count)),
            Ok(_) | Err(_) => Err(NodesError { text: text.to_owned() }),
        }
    }
}

impl fmt::Display for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl ClusterOptions {
    /// A worker has neither etcd nor an API server.
    pub const WORKER_MEMORY: Bytes = Bytes::GIB;

    /// Workers with 1 GiB of memory, and no capture.
    pub fn new(control_plane: Options, nodes: Nodes) -> Self {
        Self { control_plane, nodes, worker_memory: Self::WORKER_MEMORY, capture: Capture::Off }
    }

    /// The nodes' names, the control plane's first, each with its console's log.
    pub fn consoles(&self) -> Vec<(String, PathBuf)> {
        Site::all(self).into_iter().map(|site| (site.console(), site.name)).map(|(log, name)| (name, log)).collect()
    }
}

impl Options {
    /// Size of a data disk that is made, if nothing else is asked for.
    pub const DATA_SIZE: Bytes = Bytes::new(8 << 30);

    /// A kernel with 2 GiB of memory, two CPUs, any port and a temporary data disk; everything in one directory.
    pub fn new(image: Image, directory: &Path) -> Self {
        Self {
            image,
            boot: Boot::Kernel,
            origin: Origin::Boot,
            memory: Bytes::new(2 << 30),
            cpus: const { NonZeroU8::new(2).unwrap() },
            port: None,
            data: Data::Temporary,
            data_size: Self::DATA_SIZE,
            overcommit: Overcommit::default(),
            kernel_arguments: String::new(),
            configuration: None,
            state: directory.to_path_buf(),
            logs: directory.to_path_buf(),
            // About 45 s in emulation on an idle machine, some minutes beside a build.
            limit: Duration::from_secs(600),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_number_of_nodes_has_bounds() {
        assert_eq!("1".parse(), Ok(Nodes::ONE));
        assert_eq!("8".parse::<Nodes>().unwrap().get(), Nodes::MOST);
        for text in ["0", "9", "two", "", "-1", "257"] {
            let error = text.parse::<Nodes>().unwrap_err();
            assert_eq!(error.to_string(), format!("{text:?} is no number of nodes; choose one from 1 to 8"));
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_number_of_nodes_or_refused(text: String) {
            prop_assert!(text.parse::<Nodes>().is_ok_and(|nodes| (1..=8).contains(&nodes.get())) || text.parse::<Nodes>().is_err());
        }
    }
}
