//! Options of boots.

use crate::spec::NodeSpec;
use clap::Args;
use cluster::Overcommit;
use qemu::{Card, DiskModel, Forward};
use std::num::{NonZeroU8, NonZeroU16};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use units::Bytes;

/// Files of the image. The build passes them as hidden arguments to a program that boots the image.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct Image {
    #[arg(long, value_name = "FILE", hide = true)]
    pub kernel: PathBuf,
    #[arg(long, value_name = "FILE", hide = true)]
    pub initramfs: PathBuf,
    #[arg(long, value_name = "FILE", hide = true)]
    pub system: PathBuf,
    /// File with the command line of the kernel, without machine-specific arguments.
    #[arg(long = "cmdline", value_name = "FILE", hide = true)]
    pub command_line: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub image: Image,
    pub boot: Boot,
    pub hardware: Hardware,
    pub origin: Origin,
    pub memory: Bytes,
    pub cpus: NonZeroU8,
    /// Port of 127.0.0.1 for the API server. `None` chooses a free port.
    pub port: Option<NonZeroU16>,
    /// Ports of 127.0.0.1 that lead to ports of the control plane.
    pub forwards: Vec<Forward>,
    pub data: Data,
    /// Size of the data disk, a sparse file. An existing file grows to this size. If absent, a new file has
    /// [`Options::DATA_SIZE`].
    pub data_size: Option<Bytes>,
    pub overcommit: Overcommit,
    /// Image archives (OCI or Docker) or OCI layouts that the node imports.
    pub images: Vec<PathBuf>,
    /// Additional kernel arguments. With [`Boot::Firmware`], SMBIOS passes the arguments.
    pub kernel_arguments: String,
    /// Configuration of the node (docs/configuration.md), instead of the launcher's.
    pub configuration: Option<String>,
    /// Existing directory for the kubeconfig and a temporary data disk.
    pub state: PathBuf,
    /// Existing directory for the log of the console.
    pub logs: PathBuf,
    pub limit: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Boot {
    /// QEMU loads the kernel, which is the fastest boot.
    Kernel,
    /// UEFI firmware boots a read-only disk image, `//node/image:disk`. Temporary data are on a partition behind the
    /// image, in an overlay. Other data are on a separate disk. [`Image`] is not used.
    Firmware(PathBuf),
}

/// Devices of the machine. The default is virtio, the fastest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hardware {
    pub disks: DiskModel,
    pub card: Card,
    /// Additional devices, as values of QEMU's `-device`.
    pub more: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Boot,
    /// Boots with the data disk in this existing directory. [`Node::save`](crate::Node::save) saves the node there.
    /// [`Options::data`] is ignored. Not supported with [`Boot::Firmware`].
    Savable(PathBuf),
    /// Continues from the state that was saved in this directory. Options other than the port, directories and the data
    /// disk must be the same: a temporary disk is an overlay of the saved one, a file is a new copy. Not supported with
    /// [`Boot::Firmware`]. The node can be the control plane of a cluster, whose workers boot.
    Saved(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// A new disk, removed at the end.
    Temporary,
    /// A file, created if it is missing, and kept.
    File(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterOptions {
    /// Options of the control plane, most of which also apply to workers. The data disks of workers are `FILE.1`,
    /// `FILE.2` and so on.
    pub control_plane: Options,
    /// Number of nodes including the control plane. Workers are `granary-1`, `granary-2` and so on.
    pub nodes: Nodes,
    pub worker_memory: Bytes,
    pub capture: Capture,
}

/// Number of nodes of a cluster, 1 to 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nodes(u8);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a number of nodes; choose one from 1 to {}", Nodes::MOST)]
pub struct NodesError {
    pub text: String,
}

/// Capture of Ethernet frames of workers to files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capture {
    On,
    Off,
}

impl Nodes {
    pub const ONE: Self = Self(1);
    pub const MOST: u8 = 8;

    pub const fn new(count: u8) -> Option<Self> {
        match count {
            1..=Self::MOST => Some(Self(count)),
            _ => None,
        }
    }

    pub const fn get(self) -> u8 {
        self.0
    }
}

impl FromStr for Nodes {
    type Err = NodesError;

    fn from_str(text: &str) -> Result<Self, NodesError> {
        text.parse().ok().and_then(Self::new).ok_or_else(|| NodesError { text: text.to_owned() })
    }
}

impl ClusterOptions {
    pub const WORKER_MEMORY: Bytes = Bytes::GIB;

    pub fn new(control_plane: Options, nodes: Nodes) -> Self {
        Self { control_plane, nodes, worker_memory: Self::WORKER_MEMORY, capture: Capture::Off }
    }

    /// Names of the nodes with the logs of their consoles. The control plane is the first.
    pub fn consoles(&self) -> Vec<(String, PathBuf)> {
        NodeSpec::all(self).into_iter().map(|spec| (spec.console(), spec.name)).map(|(log, name)| (name, log)).collect()
    }
}

impl Options {
    pub const DATA_SIZE: Bytes = Bytes::new(8 << 30);

    /// Options for a direct boot with 2 GiB of memory, two CPUs, a free port and a temporary data disk. All files are
    /// in one directory.
    pub fn new(image: Image, directory: &Path) -> Self {
        Self {
            image,
            boot: Boot::Kernel,
            hardware: Hardware::default(),
            origin: Origin::Boot,
            memory: Bytes::new(2 << 30),
            cpus: const { NonZeroU8::new(2).unwrap() },
            port: None,
            forwards: Vec::new(),
            data: Data::Temporary,
            data_size: None,
            overcommit: Overcommit::default(),
            images: Vec::new(),
            kernel_arguments: String::new(),
            configuration: None,
            state: directory.to_path_buf(),
            logs: directory.to_path_buf(),
            // A boot takes about 45 s in emulation on an idle machine, and some minutes beside a build.
            limit: Duration::from_secs(600),
        }
    }
}

#[cfg(test)]
impl Options {
    /// Options with an image that does not exist.
    pub(crate) fn fake(directory: &Path) -> Self {
        let [kernel, initramfs, system, command_line] = [const { PathBuf::new() }; 4];
        Self::new(Image { kernel, initramfs, system, command_line }, directory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_nodes_has_bounds() {
        assert_eq!("1".parse(), Ok(Nodes::ONE));
        assert_eq!("8".parse::<Nodes>().unwrap().get(), Nodes::MOST);
        for text in ["0", "9", "two", "", "-1", "257"] {
            let error = text.parse::<Nodes>().unwrap_err();
            assert_eq!(error.to_string(), format!("{text:?} is not a number of nodes; choose one from 1 to 8"));
        }
    }
}
