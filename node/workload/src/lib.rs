//! A container that checks its volume from the inside.
//!
//! [`Request`] is a command line as a type: the program parses one, who starts the container makes
//! one. [`Finding`] is what the program then prints, one JSON object, so that nobody reads text. The
//! checks are those of an ordinary tenant: no privilege is used but in [`Check::Volumes`], which looks
//! at the node's side.
//!
//! ```
//! use workload::{Check, Request};
//! let request = Request { check: Check::Fill { path: "/data".into(), keep: false }, report: true };
//! assert_eq!(request.arguments(), ["fill", "/data", "--report"]);
//! assert_eq!(Request::parse(request.arguments())?, request);
//! # Ok::<(), workload::UsageError>(())
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod demo;
mod error;
mod file;
mod fill;
mod finding;
mod request;
mod space;
mod volumes;

pub use error::CheckError;
pub use finding::{Demo, Entry, Executed, Fill, FillInodes, Finding, Inspect, Project, Space, Text, Volumes};
pub use request::{Check, Request, UsageError};

/// Makes one check.
///
/// # Errors
/// The check could not be made. A limit that is met is no error, it is what the check looks for.
pub fn make(check: &Check) -> Result<Finding, CheckError> {
    match check {
        Check::Inspect { path } => space::inspect(path).map(Finding::Inspect),
        Check::Fill { path, keep } => fill::bytes(path, *keep).map(Finding::Fill),
        Check::FillInodes { path } => fill::inodes(path).map(Finding::FillInodes),
        Check::Write { path, text } => file::write(path, text).map(Finding::Write),
        Check::Read { path } => file::read(path).map(Finding::Read),
        Check::Checksum { path } => file::checksum(path).map(|sha256| Finding::Checksum { sha256 }),
        Check::Execute { path } => file::execute(path).map(Finding::Execute),
        Check::Demo { path, text } => demo::run(path, text).map(Finding::Demo),
        Check::Volumes { path } => volumes::list(path).map(Finding::Volumes),
        Check::Sleep => space::wait_for_the_end().map(|()| Finding::Sleep),
    }
}
