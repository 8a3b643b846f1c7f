//! A network with nothing but a loopback device: the cluster's ports are fixed, and another one may run here.

use std::error::Error;

use futures::TryStreamExt as _;
use nix::sched::{CloneFlags, unshare};
use rtnetlink::LinkUnspec;
use rtnetlink::packet_route::link::LinkFlags;

/// Leaves the machine's network, with all threads that start later.
pub(crate) fn leave() -> Result<(), Box<dyn Error + Send + Sync>> {
    let left = unshare(CloneFlags::CLONE_NEWNET);
    Ok(left.map_err(|errno| format!("cannot leave the machine's network; run the benchmark as root: {errno}"))?)
}

pub(crate) async fn loopback() -> Result<(), Box<dyn Error + Send + Sync>> {
    let (connection, netlink, _) = rtnetlink::new_connection()?;
    // Ends with the handle, at the end of this function.
    let mut driver = tokio::task::JoinSet::new();
    driver.spawn(connection);
    let mut links = netlink.link().get().execute();
    while let Some(link) = links.try_next().await? {
        if link.header.flags.contains(LinkFlags::Loopback) {
            let up = LinkUnspec::new_with_index(link.header.index).up().build();
            netlink.link().set(up).execute().await?;
        }
    }
    Ok(())
}
