//! Processes in cgroups.

use std::env;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::libc;
use nix::mount::{MsFlags, mount};

use crate::eventually;

const CGROUP: &str = "CGROUP";
const TOP: &str = "TOP";
const NAMES: &str = "NAMES";

/// This program as another process that runs one of its ignored tests.
pub fn this_program(test: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(["--exact", test, "--ignored", "--nocapture"]).stdout(Stdio::null());
    command
}

/// Mounts the hierarchy of cgroups of this kernel at a new directory.
pub fn mount_cgroups(path: &Path) {
    fs::create_dir_all(path).expect("a directory");
    mount(Some("cgroup2"), path, Some("cgroup2"), MsFlags::empty(), None::<&str>).expect("mount cgroups");
}

/// A process in a cgroup that writes each number to all its files, one after the other, until it is dropped.
#[derive(Debug)]
pub struct Writer {
    process: Child,
    cgroup: PathBuf,
}

impl Writer {
    /// A process that runs the ignored `test`, which calls [`Writer::run`]. It has written some numbers already. The files
    /// are created; devices exist.
    pub fn start<const N: usize>(test: &str, cgroup: &Path, top: &Path, names: &[&str; N]) -> Self {
        fs::create_dir_all(cgroup).expect("a cgroup");
        let mut command = this_program(test);
        command.env(CGROUP, cgroup).env(TOP, top).env(NAMES, names.join(":"));
        let writer = Self { process: command.spawn().expect("a process"), cgroup: cgroup.to_owned() };
        let writes = || numbers(top, names).is_some_and(|numbers| numbers.iter().all(|number| *number > 10));
        eventually("numbers of the writer", writes);
        writer
    }

    /// The writer. It calls `after` with the directory and each number that all files have. A write to a device has ended
    /// when the disk has it.
    pub fn run(mut after: impl FnMut(&Path, u64)) {
        let [cgroup, top] = [CGROUP, TOP].map(|name| PathBuf::from(env::var_os(name).expect("a path")));
        fs::write(cgroup.join("cgroup.procs"), "0").expect("join the cgroup");
        let open = |name: &str| {
            let path = top.join(name);
            let is_device = path.metadata().is_ok_and(|found| found.file_type().is_block_device());
            let flags = if is_device { libc::O_DSYNC } else { libc::O_CREAT };
            File::options().write(true).custom_flags(flags).open(path).expect("a file or a device")
        };
        let files: Vec<File> = env::var(NAMES).expect("names").split(':').map(open).collect();
        for number in 1_u64.. {
            for file in &files {
                file.write_all_at(&number.to_le_bytes(), 0).expect("write");
            }
            after(&top, number);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Ends a frozen process too.
        fs::write(self.cgroup.join("cgroup.kill"), "1").expect("kill the writer");
        self.process.wait().expect("the end of the writer");
    }
}

/// The numbers that a [`Writer`] wrote to these files, or that copies of them have.
pub fn numbers<const N: usize>(top: &Path, names: &[&str; N]) -> Option<[u64; N]> {
    let mut numbers = [0; N];
    for (number, name) in numbers.iter_mut().zip(names) {
        let mut bytes = [0; 8];
        File::open(top.join(name)).ok()?.read_exact_at(&mut bytes, 0).ok()?;
        *number = u64::from_le_bytes(bytes);
    }
    Some(numbers)
}
