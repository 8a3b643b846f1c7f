//! The command line.

use clap::Parser;
use cluster::Overcommit;
use launch::{Boot, ClusterOptions, Data, Image, Nodes, Options};
use std::num::{NonZeroU8, NonZeroU16};
use std::path::{Path, PathBuf};
use units::Bytes;

/// Boots Granary nodes in QEMU, shows claims in use, and keeps the nodes running until Ctrl-C.
///
/// With several nodes, the others join the first one as workers, each node has a claim of each mode, and pods of different
/// nodes communicate through the mesh.
#[derive(Debug, Parser)]
#[command(name = "launch")]
pub(crate) struct Arguments {
    /// Number of nodes, 1 to 8: the control plane (`granary`) and workers (`granary-1` and so on).
    #[arg(long, value_name = "COUNT", default_value_t = Nodes::ONE)]
    nodes: Nodes,
    /// Memory of the control plane.
    #[arg(long, value_name = "SIZE", default_value = "2G")]
    memory: Bytes,
    /// Memory of each worker; 1 GiB by default.
    #[arg(long, value_name = "SIZE")]
    worker_memory: Option<Bytes>,
    /// CPUs of each node.
    #[arg(long, value_name = "COUNT", default_value = "2")]
    cpus: NonZeroU8,
    /// Port of 127.0.0.1 for the API server; a free one by default.
    #[arg(long)]
    port: Option<NonZeroU16>,
    /// Keeps the data disk in this file, created with 8 GiB (sparse) if it is missing. Workers use FILE.1, FILE.2 and so on.
    /// Start a cluster again with the same number of nodes.
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Configuration of the nodes, JSON (docs/configuration.md). Workers have its registries, CAs, modules and limits too.
    #[arg(long, value_name = "FILE", conflicts_with = "overcommit")]
    pub(crate) config: Option<PathBuf>,
    /// Allocatable size of volumes, as a multiple of the data disk; at least 1.0.
    #[arg(long, value_name = "FACTOR", default_value_t)]
    overcommit: Overcommit,
    /// Imports the images of this archive (OCI or Docker: `skopeo copy`, `docker save`) or of this directory (an OCI layout) before
    /// the demonstration. Can be repeated.
    #[arg(long = "image", value_name = "FILE")]
    images: Vec<PathBuf>,
    /// Boots the disk image through UEFI firmware instead of its kernel.
    #[arg(long)]
    firmware: bool,
    /// Keeps the logs of the consoles in this directory: console.log, granary-1.console.log and so on.
    #[arg(long, value_name = "DIR")]
    pub(crate) keep_logs: Option<PathBuf>,
    /// Exits after the demonstration, with status 0 if it succeeded.
    #[arg(long)]
    pub(crate) exit_after_demo: bool,

    /// The image's kernel.
    #[arg(long, value_name = "FILE", hide = true)]
    kernel: PathBuf,
    /// The image's initramfs.
    #[arg(long, value_name = "FILE", hide = true)]
    initramfs: PathBuf,
    /// The image's system partition.
    #[arg(long, value_name = "FILE", hide = true)]
    system: PathBuf,
    /// The image's command line.
    #[arg(long, value_name = "FILE", hide = true)]
    cmdline: PathBuf,
    /// The image as a disk.
    #[arg(long, value_name = "FILE", hide = true)]
    disk: PathBuf,
}

impl Arguments {
    /// Resolves paths of the user relative to `directory`; those of the image are unchanged.
    pub(crate) fn relative_to(mut self, directory: &Path) -> Self {
        self.data = self.data.map(|path| directory.join(path));
        self.keep_logs = self.keep_logs.map(|path| directory.join(path));
        self.config = self.config.map(|path| directory.join(path));
        self.images = self.images.into_iter().map(|path| directory.join(path)).collect();
        self
    }

    pub(crate) fn options(&self, temporary: &Path) -> ClusterOptions {
        let image = Image {
            kernel: self.kernel.clone(),
            initramfs: self.initramfs.clone(),
            system: self.system.clone(),
            command_line: self.cmdline.clone(),
        };
        let mut options = Options::new(image, temporary);
        if self.firmware {
            options.boot = Boot::Firmware(self.disk.clone());
        }
        options.memory = self.memory;
        options.cpus = self.cpus;
        options.port = self.port;
        options.overcommit = self.overcommit;
        options.images.clone_from(&self.images);
        if let Some(path) = &self.data {
            options.data = Data::File(path.clone());
        }
        if let Some(directory) = &self.keep_logs {
            options.logs.clone_from(directory);
        }
        let mut cluster = ClusterOptions::new(options, self.nodes);
        if let Some(memory) = self.worker_memory {
            cluster.worker_memory = memory;
        }
        cluster
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: [&str; 6] = ["launch", "--kernel=k", "--initramfs=i", "--system=s", "--cmdline=c", "--disk=d"];

    fn parse(more: &[&str]) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(IMAGE.iter().chain(more))
    }

    fn control_plane(more: &[&str]) -> Options {
        parse(more).unwrap().options(Path::new("/")).control_plane
    }

    #[test]
    fn only_paths_of_the_user_are_resolved() {
        let arguments = parse(&[
            "--data",
            "disk.img",
            "--keep-logs",
            "/logs",
            "--config=a.json",
            "--image=a.tar",
            "--image=/b.tar",
        ]);
        let arguments = arguments.unwrap();
        let arguments = arguments.relative_to(Path::new("/home/user"));
        assert_eq!(arguments.config, Some("/home/user/a.json".into()));
        let options = arguments.options(Path::new("/temporary")).control_plane;
        assert_eq!(options.data, Data::File("/home/user/disk.img".into()));
        assert_eq!(options.logs, Path::new("/logs"));
        assert_eq!(options.images, [Path::new("/home/user/a.tar"), Path::new("/b.tar")]);
        assert_eq!(options.state, Path::new("/temporary"));
        assert_eq!(options.image.kernel, Path::new("k"));
    }

    #[test]
    fn firmware_boots_the_disk_image() {
        assert_eq!(control_plane(&[]).boot, Boot::Kernel);
        assert_eq!(control_plane(&["--firmware"]).boot, Boot::Firmware("d".into()));
    }

    #[test]
    fn the_default_is_one_node_without_overcommit() {
        let options = |more: &[&str]| parse(more).unwrap().options(Path::new("/"));
        assert_eq!((options(&[]).nodes, options(&[]).control_plane.overcommit), (Nodes::ONE, Overcommit::NONE));
        let three = options(&["--nodes=3", "--memory=1536M", "--worker-memory=768M", "--overcommit=2"]);
        assert_eq!((three.nodes.get(), three.worker_memory), (3, Bytes::new(768 << 20)));
        assert_eq!(three.control_plane.memory, Bytes::new(1536 << 20));
        assert_eq!(three.control_plane.overcommit, "2.0".parse::<Overcommit>().unwrap());
    }

    #[test]
    fn invalid_values_are_rejected() {
        for (option, value, shown) in [
            ("--nodes", "0", "choose one from 1 to 8"),
            ("--nodes", "9", "choose one from 1 to 8"),
            ("--nodes", "two", "choose one from 1 to 8"),
            ("--overcommit", "0.9", "--overcommit <FACTOR>"),
            ("--cpus", "0", "--cpus <COUNT>"),
            ("--port", "0", "--port <PORT>"),
        ] {
            let error = parse(&[option, value]).unwrap_err().to_string();
            assert!(error.contains(option) && error.contains(shown), "{option} {value}: {error}");
        }
        assert!(parse(&["--overcommit", "2", "--config=a.json"]).is_err());
    }
}
