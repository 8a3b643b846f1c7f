//! A container that checks its volume from the inside.
//!
//! [`Request`] is the command line as a type, and [`Finding`] the JSON object that the program prints. Most checks need
//! no privilege. [`Check::Volumes`], [`Check::Signal`] and [`Check::Settings`] examine the node for tests.
//! [`Check::Serve`] runs checks that are requested over HTTP. `src/bin/pause.rs` is the program of pod sandboxes.
//!
//! ```
//! use workload::{Check, Request};
//! let request = Request { check: Check::Fill { path: "/data".into(), keep: false }, report: true };
//! assert_eq!(request.arguments(), ["fill", "/data", "--report"]);
//! assert_eq!(Request::parse(request.arguments())?, request);
//! # Ok::<(), workload::UsageError>(())
//! ```
#![forbid(unsafe_code)]

mod check;
mod content;
mod demo;
mod device;
mod error;
mod fetch;
mod file;
mod fill;
mod finding;
mod http;
mod listeners;
mod namespace;
mod request;
pub mod resolve;
pub mod serve;
mod settings;
mod signal;
mod space;
mod volumes;
pub mod webhook;

pub use check::{Check, Record};
pub use error::CheckError;
pub use finding::{
    Checksum, Demo, Device, Entry, Executed, Fill, FillInodes, Finding, Image, Inspect, Listener, Listeners, Loop,
    Mount, Paint, Project, Resolved, Scan, Setting, Settings, Signalled, Space, Text, Tried, Volumes,
};
pub use request::{Request, UsageError};

/// Runs a check. Reaching a limit is a finding, not an error.
pub fn run(check: &Check) -> Result<Finding, CheckError> {
    match check {
        Check::Inspect { path } => space::inspect(path).map(Finding::Inspect),
        Check::Fill { path, keep } => fill::bytes(path, *keep).map(Finding::Fill),
        Check::FillInodes { path, keep } => fill::inodes(path, *keep).map(Finding::FillInodes),
        Check::Write { path, text } => file::write(path, text).map(Finding::Write),
        Check::Read { path } => file::read(path).map(Finding::Read),
        Check::TryWrite { path } => Ok(Finding::TryWrite(device::try_write(path))),
        Check::Paint { path, text } => content::paint(path, text).map(Finding::Paint),
        Check::Scan { path, text } => content::scan(path, text).map(Finding::Scan),
        Check::Checksum { path } => file::checksum(path).map(|sha256| Finding::Checksum(Checksum { sha256 })),
        Check::Execute { path } => file::execute(path).map(Finding::Execute),
        Check::Device { path } => device::look(path).map(Finding::Device),
        Check::Direct { path } => device::direct(path).map(Finding::Direct),
        Check::Demo { path, text } => demo::run(path, text).map(Finding::Demo),
        Check::Volumes { path } => volumes::list(path).map(Finding::Volumes),
        Check::Signal { program, number } => signal::send(program, *number).map(Finding::Signal),
        Check::Settings { keys } => settings::read(keys).map(Finding::Settings),
        Check::Listeners => listeners::list().map(Finding::Listeners),
        Check::Unshare => Ok(Finding::Unshare(namespace::unshare())),
        Check::Fetch { address, target } => fetch::get(*address, target).map(Finding::Fetch),
        Check::Exchange { address, text } => fetch::exchange(*address, text).map(Finding::Exchange),
        Check::Resolve { name, record } => resolve::look_up(name, *record).map(Finding::Resolve),
        Check::Webhook { port, path } => webhook::run(*port, path).map(|()| Finding::Webhook),
        Check::Serve { port, farewell } => serve::run(*port, farewell.as_deref()).map(|()| Finding::Serve),
        Check::End => Ok(Finding::End),
    }
}
