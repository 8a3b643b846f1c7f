//! A network with nothing but a loopback device: the cluster's ports are fixed, and another one may run here.

use std::io;

use futures::TryStreamExt as _;
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use rtnetlink::LinkUnspec;
use rtnetlink::packet_route::link::LinkFlags;

#[derive(Debug, thiserror::Error)]
pub(crate) enum NetworkError {
    #[error("cannot leave the machine's network; run the benchmark as root")]
    Leave(#[source] Errno),
    #[error("cannot open a netlink socket")]
    Socket(#[source] io::Error),
    #[error("cannot bring loopback up")]
    Loopback(#[source] rtnetlink::Error),
}

/// Leaves the machine's network, with all threads that start later.
pub(crate) fn leave() -> Result<(), NetworkError> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(NetworkError::Leave)
}

pub(crate) async fn loopback() -> Result<(), NetworkError> {
    let (connection, netlink, _) = rtnetlink::new_connection().map_err(NetworkError::Socket)?;
    // Ends with the handle, at the end of this function.
    let mut driver = tokio::task::JoinSet::new();
    driver.spawn(connection);
    let mut links = netlink.link().get().execute();
    while let Some(link) = links.try_next().await.map_err(NetworkError::Loopback)? {
        if link.header.flags.contains(LinkFlags::Loopback) {
            let up = LinkUnspec::new_with_index(link.header.index).up().build();
            netlink.link().set(up).execute().await.map_err(NetworkError::Loopback)?;
        }
    }
    Ok(())
}
