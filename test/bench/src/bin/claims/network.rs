//! A network with only a loopback device. The cluster's ports are fixed, and another cluster may use them on this
//! machine.

use std::error::Error;

use futures::TryStreamExt as _;
use nix::sched::{CloneFlags, unshare};
use rtnetlink::LinkUnspec;
use rtnetlink::packet_route::link::LinkFlags;

/// Moves this thread, and all threads that start later, to a new network namespace.
pub(crate) fn leave() -> Result<(), Box<dyn Error + Send + Sync>> {
    let left = unshare(CloneFlags::CLONE_NEWNET);
    Ok(left.map_err(|errno| format!("cannot leave the machine's network; run the benchmark as root: {errno}"))?)
}

pub(crate) async fn loopback() -> Result<(), Box<dyn Error + Send + Sync>> {
    let (connection, netlink, _) = rtnetlink::new_connection()?;
    // The task ends with `netlink`, at the end of this function.
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
