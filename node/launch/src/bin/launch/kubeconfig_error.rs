//! Errors of kubeconfig files of the user.

use crate::name::ClusterName;
use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
#[error("cannot use the kubeconfig {}", path.display())]
pub(crate) struct KubeconfigError {
    pub(crate) path: PathBuf,
    pub(crate) source: Cause,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Cause {
    #[error("it cannot be read or written; name a file in a directory that you may write to")]
    File(#[from] io::Error),
    #[error(
        "its owner, the user with the ID {user}, cannot be kept; run the launcher as that user, or name another file"
    )]
    Owner { user: u32, source: io::Error },
    #[error(
        "another program has locked it: {} exists; wait until that program ends, or remove this file if kubectl does not run",
        lock.display()
    )]
    Locked { lock: PathBuf },
    #[error(
        "another program has locked its directory {}; wait until that program ends, or name a file in another directory",
        directory.display()
    )]
    Directory { directory: PathBuf },
    #[error(
        "the file system of its directory {} does not support locks (flock); name a file on a local disk with --kubeconfig=FILE",
        directory.display()
    )]
    NoLocks { directory: PathBuf, source: io::Error },
    #[error(
        "the file is below {}, the directory of the clusters, whose files `delete` removes; name a file outside of it with --kubeconfig=FILE",
        directory.display()
    )]
    Clusters { directory: PathBuf },
    #[error("it is a symbolic link that leads to no file; create that file, or remove the link")]
    Link(#[source] io::Error),
    #[error("its path is not valid UTF-8; name another file with --kubeconfig=FILE")]
    Encoding,
    #[error("it is not a regular file; name another file with --kubeconfig=FILE")]
    Kind,
    #[error("it is not valid YAML; repair it, or name another file with --kubeconfig=FILE")]
    Read(#[source] Box<serde_saphyr::Error>),
    #[error("it cannot be written as YAML; name another file with --kubeconfig=FILE")]
    Write(#[source] Box<serde_saphyr::SerializeError>),
    #[error("{field} is not {wanted}; repair it, or name another file with --kubeconfig=FILE")]
    Field { field: &'static str, wanted: &'static str },
    #[error("{list} has an entry {name} of another cluster; rename that entry, or choose another --name")]
    Other { list: &'static str, name: ClusterName },
}
