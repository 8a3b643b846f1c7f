//! Creates directories with limits and prints their usage.
//!
//! `limit MOUNT` lists all projects of an XFS. `limit MOUNT NAME SIZE` creates the directory NAME in it or changes its
//! limits. Requires root and a mount with `prjquota`.

use std::env;
use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::ExitCode;

use fsquota::{Allocator, Limits, Quota};
use units::Bytes;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let done = match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [mount] => list(Path::new(mount)),
        [mount, name, size] => limit(Path::new(mount), name, size),
        _ => Err("usage: limit MOUNT [NAME SIZE]".into()),
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

fn list(mount: &Path) -> Result<(), Box<dyn Error>> {
    for quota in fsquota::report(&File::open(mount)?)? {
        show(&quota?);
    }
    Ok(())
}

fn limit(mount: &Path, name: &str, size: &str) -> Result<(), Box<dyn Error>> {
    let size: Bytes = size.parse()?;
    let root = File::open(mount)?;
    // One allocator per file system.
    let ids = Allocator::open(&root)?;
    match fs::create_dir(mount.join(name)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    let dir = File::open(mount.join(name))?;
    fsquota::set(&dir, Limits::for_size(size), &ids)?;
    // Syncs the directory, its project and the limits.
    fsquota::sync(&root)?;
    show(&fsquota::get(&dir)?);
    Ok(())
}

fn show(quota: &Quota) {
    let Quota { id, used, limits, .. } = quota;
    match limits.bytes {
        Some(limit) => println!("project {id}: {} of {limit}, {}", used.bytes, used.inodes),
        None => println!("project {id}: {}, {}, no limit", used.bytes, used.inodes),
    }
}
