//! The command line.

use clap::Parser;
use launch::{Boot, Data, Image, Options};
use std::num::{NonZeroU8, NonZeroU16};
use std::path::{Path, PathBuf};
use units::Bytes;
use volume::Overcommit;

/// Boots a Granary node in QEMU, shows a claim in use, and keeps the node running until Ctrl-C.
#[derive(Debug, Parser)]
#[command(name = "launch")]
pub(crate) struct Arguments {
    /// The guest's memory.
    #[arg(long, value_name = "SIZE", default_value = "2G")]
    memory: Bytes,
    /// The guest's CPUs.
    #[arg(long, value_name = "COUNT", default_value = "2")]
    cpus: NonZeroU8,
    /// Port of 127.0.0.1 for the API server; a free one if not given.
    #[arg(long)]
    port: Option<NonZeroU16>,
    /// Keeps the data disk in this file, made with 8 GiB (sparse) if it is missing.
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// How many times its data disk the node may promise to volumes, from 1.0.
    #[arg(long, value_name = "FACTOR", default_value_t)]
    overcommit: Overcommit,
    /// Boots the disk image through UEFI firmware, instead of its kernel directly.
    #[arg(long)]
    firmware: bool,
    /// Keeps the console's log in this directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) keep_logs: Option<PathBuf>,
    /// Ends after the demonstration, with status 0 if it showed what it should.
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
    /// Paths that a person wrote are relative to `directory`; those of the image are not.
    pub(crate) fn relative_to(mut self, directory: &Path) -> Self {
        self.data = self.data.map(|path| directory.join(path));
        self.keep_logs = self.keep_logs.map(|path| directory.join(path));
        self
    }

    /// What to boot, with a temporary directory for what is not to be kept.
    pub(crate) fn options(&self, temporary: &Path) -> Options {
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
        if let Some(path) = &self.data {
            options.data = Data::File(path.clone());
        }
        if let Some(directory) = &self.keep_logs {
            options.logs.clone_from(directory);
        }
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: [&str; 6] = ["launch", "--kernel=k", "--initramfs=i", "--system=s", "--cmdline=c", "--disk=d"];

    fn parse(more: &[&str]) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(IMAGE.iter().chain(more))
    }

    #[test]
    fn only_what_a_person_wrote_is_relative_to_their_directory() {
        let arguments = parse(&["--data", "disk.img", "--keep-logs", "/logs"]).unwrap();
        let options = arguments.relative_to(Path::new("/home/person")).options(Path::new("/temporary"));
        assert_eq!(options.data, Data::File("/home/person/disk.img".into()));
        assert_eq!(options.logs, Path::new("/logs"));
        assert_eq!(options.state, Path::new("/temporary"));
        assert_eq!(options.image.kernel, Path::new("k"));
    }

    #[test]
    fn the_disk_is_booted_if_firmware_is_asked_for() {
        assert_eq!(parse(&[]).unwrap().options(Path::new("/")).boot, Boot::Kernel);
        assert_eq!(parse(&["--firmware"]).unwrap().options(Path::new("/")).boot, Boot::Firmware("d".into()));
    }

    #[test]
    fn memory_has_a_unit() {
        let options = parse(&["--memory", "1536M"]).unwrap().options(Path::new("/"));
        assert_eq!(options.memory, Bytes::new(1536 << 20));
    }

    #[test]
    fn nothing_is_promised_twice_unless_a_person_says_so() {
        assert_eq!(parse(&[]).unwrap().options(Path::new("/")).overcommit, Overcommit::NONE);
        assert_eq!(
            parse(&["--overcommit", "2"]).unwrap().options(Path::new("/")).overcommit,
            "2.0".parse::<Overcommit>().unwrap()
        );
        assert!(parse(&["--overcommit", "0.9"]).is_err());
    }

    #[test]
    fn no_cpu_and_port_zero_are_refused() {
        assert!(parse(&["--cpus", "0"]).is_err());
        assert!(parse(&["--port", "0"]).is_err());
    }
}
