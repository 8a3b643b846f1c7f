//! `directory PATH BYTES` creates the directory of a volume with a limit, so that all compared provisioners do the same
//! work.
#![forbid(unsafe_code)]

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

use bench::{DirectoryLimit, create_directory};
use units::Bytes;

fn main() -> ExitCode {
    let mut arguments = env::args_os().skip(1);
    let path = arguments.next().map(PathBuf::from);
    let size = arguments.next().and_then(|bytes| bytes.to_str()?.parse::<u64>().ok());
    let (Some(path), Some(size)) = (path, size) else {
        eprintln!("error: wrong usage; give a path and a number of bytes");
        return ExitCode::from(2);
    };
    let has_quota = env::var_os(DirectoryLimit::VARIABLE).is_some();
    let limit = if has_quota { DirectoryLimit::Quota } else { DirectoryLimit::File };
    match create_directory(&path, Bytes::new(size), limit) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: cannot create {}: {}", path.display(), causes::line(&error));
            ExitCode::FAILURE
        }
    }
}
