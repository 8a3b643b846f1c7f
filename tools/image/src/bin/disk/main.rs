//! Creates the bootable disk image: `disk STUB KERNEL INITRAMFS COMMAND_LINE OS_RELEASE SYSTEM OUTPUT`.
//!
//! The output is a sparse file and reproducible: IDs and times are fixed.
#![forbid(unsafe_code)]

mod esp;
mod executable;
mod initramfs;
mod layout;

use std::env;
use std::error::Error;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::ExitCode;

use image::files::{self, FileError};

use crate::layout::Slot;

fn main() -> ExitCode {
    causes::exit_code(run())
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<PathBuf> = env::args_os().skip(1).map(PathBuf::from).collect();
    let [stub, kernel, initramfs, command_line, os_release, system, output] = &*arguments else {
        return Err("usage: disk STUB KERNEL INITRAMFS COMMAND_LINE OS_RELEASE SYSTEM OUTPUT".into());
    };
    let system = File::open(system).map_err(FileError::of("open", system))?;
    let tree = verity::Tree::of(BufReader::with_capacity(1 << 20, &system))?;
    let command_line = String::from_utf8(files::bytes(command_line)?)?;
    // The initramfs contains the partition, because firmware can change the command line.
    let partition = format!("{}:{}\n", layout::id(Slot::A), tree.root());
    let initramfs = initramfs::with_file(files::bytes(initramfs)?, "system-partition", &partition);
    let executable = executable::unified(
        &files::bytes(stub)?,
        &[
            (".osrel", &files::bytes(os_release)?),
            (".cmdline", command_line.trim().as_bytes()),
            (".initrd", &initramfs),
            (".linux", &files::bytes(kernel)?),
        ],
    )?;
    let esp = esp::with(&executable)?;
    let file = File::create(output).map_err(FileError::of("create", output))?;
    Ok(layout::write(&file, &esp, &system, tree.bytes())?)
}
