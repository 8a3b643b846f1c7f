//! Processes in cgroups that write to files or devices.

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

/// Command that runs one ignored test of this program in another process.
pub fn this_program(test: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(["--exact", test, "--ignored", "--nocapture"]).stdout(Stdio::null());
    command
}

/// Mounts the cgroup v2 hierarchy of this kernel on a new directory.
pub fn mount_cgroups(path: &Path) {
    fs::create_dir_all(path).expect("a directory");
    mount(Some("cgroup2"), path, Some("cgroup2"), MsFlags::empty(), None::<&str>).expect("mount cgroups");
}

/// A process in a cgroup that writes the numbers from 1 on to its files: each number to all files, one after the other.
/// The process is killed when the value is dropped.
#[derive(Debug)]
pub struct Writer {
    process: Child,
    cgroup: PathBuf,
}

impl Writer {
    /// Starts a process that runs the ignored `test`, which calls [`Writer::run`], and waits until it has written some
    /// numbers. The process creates missing files in `top`; devices must exist.
    pub fn start<const N: usize>(test: &str, cgroup: &Path, top: &Path, names: &[&str; N]) -> Self {
        fs::create_dir_all(cgroup).expect("a cgroup");
        let mut command = this_program(test);
        command.env(CGROUP, cgroup).env(TOP, top).env(NAMES, names.join(":"));
        let writer = Self { process: command.spawn().expect("a process"), cgroup: cgroup.to_owned() };
        let writes = || numbers(top, names).is_some_and(|numbers| numbers.iter().all(|number| *number > 10));
        eventually("numbers of the writer", writes);
        writer
    }

    /// Runs in the process of the writer. Calls `after` with the directory and each number that all files have. A write
    /// to a device ends when the data is durable (`O_DSYNC`).
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
        // `cgroup.kill` also kills a frozen process.
        fs::write(self.cgroup.join("cgroup.kill"), "1").expect("kill the writer");
        self.process.wait().expect("the end of the writer");
    }
}

/// Numbers that a [`Writer`] wrote to these files, or to the originals of these copies. `None` if a number cannot be
/// read.
pub fn numbers<const N: usize>(top: &Path, names: &[&str; N]) -> Option<[u64; N]> {
    let mut numbers = [0; N];
    for (number, name) in numbers.iter_mut().zip(names) {
        let mut bytes = [0; 8];
        File::open(top.join(name)).ok()?.read_exact_at(&mut bytes, 0).ok()?;
        *number = u64::from_le_bytes(bytes);
    }
    Some(numbers)
}
