//! What is booted, and with what.

use std::num::{NonZeroU8, NonZeroU16};
use std::path::{Path, PathBuf};
use std::time::Duration;
use units::Bytes;
use volume::Overcommit;

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

/// The data disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// A new one that is gone afterwards.
    Temporary,
    /// This file, which is made if it is missing and kept.
    File(PathBuf),
}

impl Options {
    /// Size of a data disk that is made, if nothing else is asked for.
    pub const DATA_SIZE: Bytes = Bytes::new(8 << 30);

    /// A kernel with 2 GiB of memory, two CPUs, any port and a temporary data disk; everything in one directory.
    pub fn new(image: Image, directory: &Path) -> Self {
        Self {
            image,
            boot: Boot::Kernel,
            memory: Bytes::new(2 << 30),
            cpus: const { NonZeroU8::new(2).unwrap() },
            port: None,
            data: Data::Temporary,
            data_size: Self::DATA_SIZE,
            overcommit: Overcommit::default(),
            configuration: None,
            state: directory.to_path_buf(),
            logs: directory.to_path_buf(),
            // About 45 s in emulation on an idle machine, some minutes beside a build.
            limit: Duration::from_secs(600),
        }
    }
}
