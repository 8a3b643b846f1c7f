//! A file as a block device: `attach attach FILE`, `attach list`, `attach detach DEVICE FILE`.

use std::error::Error;
use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::process::ExitCode;

use loopdev::{Config, Control, Detach, Device};

const USAGE: &str = "usage: attach attach FILE | attach list | attach detach DEVICE FILE";

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let arguments: Vec<&Path> = arguments.iter().map(Path::new).collect();
    let done = match arguments[..] {
        [verb, file] if verb == Path::new("attach") => attach(file),
        [verb] if verb == Path::new("list") => list(),
        [verb, device, file] if verb == Path::new("detach") => detach(device, file),
        _ => Err(USAGE.into()),
    };
    let Err(error) = done else { return ExitCode::SUCCESS };
    eprintln!("error: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        eprintln!("caused by: {error}");
        cause = error.source();
    }
    ExitCode::FAILURE
}

/// Attaches a file to a device. The device stays when this program has ended.
fn attach(file: &Path) -> Result<(), Box<dyn Error>> {
    let backing = File::options().read(true).write(true).open(file)?;
    let device = Control::open()?.attach(&backing, &Config { direct_io: true, ..Config::default() })?;
    let status = device.status()?;
    println!("{} {}", device.path().display(), status.size);
    if !status.config.direct_io {
        eprintln!("warning: the file does not support direct I/O, the page cache has its data twice");
    }
    Ok(())
}

fn list() -> Result<(), Box<dyn Error>> {
    for device in loopdev::list()? {
        println!("{} {} {} {}", device.number, device.dev, device.status.size, device.status.backing);
    }
    Ok(())
}

fn detach(device: &Path, file: &Path) -> Result<(), Box<dyn Error>> {
    match Device::open(device)?.detach(File::open(file)?)? {
        Detach::Detached => println!("detached"),
        Detach::Deferred => println!("in use; the kernel detaches it when its last user closes it"),
    }
    Ok(())
}
