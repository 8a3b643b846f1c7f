//! Prints the disks of this machine, and the one that a node would select for its data.
//!
//! `disks [BLKID]` writes nothing. BLKID is the path of `blkid`, `/usr/bin/blkid` by default. Needs root.

use std::env;
use std::error::Error;
use std::process::ExitCode;

use localstorage::{Content, Decision, FoundDisk, Programs, Role, disks, plan};

fn main() -> ExitCode {
    let mut programs = Programs::default();
    if let Some(blkid) = env::args_os().nth(1) {
        programs.blkid = blkid.into();
    }
    let Err(error) = show(&programs) else { return ExitCode::SUCCESS };
    eprintln!("error: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        eprintln!("caused by: {error}");
        cause = error.source();
    }
    ExitCode::FAILURE
}

fn show(programs: &Programs) -> Result<(), Box<dyn Error>> {
    let seen = disks(programs)?;
    for FoundDisk { device, size, role, read_only, content, .. } in &seen {
        let access = if *read_only { ", read-only" } else { "" };
        println!("{}: {size}{access}, {}, {}", device.display(), designation(*role), holds(content));
    }
    match plan(&seen)? {
        Decision::Use(disk) => println!("{} would be mounted", disk.device.display()),
        Decision::Format(disk) => println!("{} would be formatted", disk.device.display()),
    }
    Ok(())
}

fn designation(role: Role) -> &'static str {
    match role {
        Role::System => "the system's",
        Role::Unnamed => "not designated",
        Role::Data => "for data by its serial number",
        Role::Partition => "for data by its partition type",
    }
}

fn holds(content: &Content) -> String {
    match content {
        Content::Empty => "empty".to_owned(),
        Content::Data(_) => "holds the node's file system".to_owned(),
        Content::Unfinished => "half formatted".to_owned(),
        Content::Foreign(what) => format!("holds {what}"),
        Content::Unexamined => "not examined, because the disk is not a candidate".to_owned(),
    }
}
