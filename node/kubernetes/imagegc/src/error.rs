use std::io;
use std::path::PathBuf;

use fsquota::GetError;

#[derive(Debug, thiserror::Error)]
pub enum GcError {
    #[error("cannot open containerd's directory {path}")]
    Open { path: PathBuf, source: io::Error },
    #[error("cannot read the quota of {path}")]
    Quota { path: PathBuf, source: GetError },
    #[error("containerd's socket has an invalid path")]
    Socket(#[source] tonic::transport::Error),
    #[error("containerd does not {call}")]
    Call { call: &'static str, source: Box<tonic::Status> },
}
