//! Creates the bootable disk image: `disk STUB KERNEL INITRAMFS COMMAND_LINE OS_RELEASE SYSTEM OUTPUT`.
//!
//! The output is a sparse file and reproducible: IDs and times are fixed.
#![forbid(unsafe_code)]

mod esp;
mod executable;
mod initramfs;
mod layout;

use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::layout::Slot;

fn main() -> ExitCode {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [stub, kernel, initramfs, command_line, os_release, system, output] = arguments.as_slice() else {
        eprintln!("error: invalid arguments; usage: disk STUB KERNEL INITRAMFS COMMAND_LINE OS_RELEASE SYSTEM OUTPUT");
        return ExitCode::from(2);
    };
    let inputs = Inputs { stub, kernel, initramfs, command_line, os_release, system };
    match run(&inputs, output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", causes::lines(&*error));
            ExitCode::FAILURE
        }
    }
}

struct Inputs<'a> {
    stub: &'a Path,
    kernel: &'a Path,
    initramfs: &'a Path,
    command_line: &'a Path,
    os_release: &'a Path,
    system: &'a Path,
}

fn run(inputs: &Inputs<'_>, output: &Path) -> Result<(), Box<dyn Error>> {
    let system = File::open(inputs.system).map_err(failed(inputs.system))?;
    let tree = verity::Tree::of(io::BufReader::with_capacity(1 << 20, &system))?;
    let command_line = String::from_utf8(read(inputs.command_line)?)?;
    // In the initramfs, not on the command line, which firmware can change.
    let initramfs = initramfs::with_file(
        read(inputs.initramfs)?,
        "system-partition",
        &format!("{}:{}\n", layout::id(Slot::A), tree.root()),
    );
    let executable = executable::unified(
        &read(inputs.stub)?,
        &[
            (".osrel", &read(inputs.os_release)?),
            (".cmdline", command_line.trim().as_bytes()),
            (".initrd", &initramfs),
            (".linux", &read(inputs.kernel)?),
        ],
    )?;
    let esp = esp::with(&executable)?;
    let file = File::create(output).map_err(failed(output))?;
    layout::write(&file, &esp, &system, tree.bytes())?;
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    fs::read(path).map_err(failed(path))
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> FileError {
    let path = path.to_owned();
    |source| FileError { path, source }
}

#[derive(Debug, thiserror::Error)]
#[error("cannot open {}", path.display())]
struct FileError {
    path: PathBuf,
    #[source]
    source: io::Error,
}
