//! The node's own network: loopback, the one interface, the way out.

use std::io;
use std::net::Ipv4Addr;

use futures::TryStreamExt;
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use rtnetlink::{LinkUnspec, RouteMessageBuilder};

use crate::config::Interface;

/// Which step failed.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// No netlink socket.
    #[error("cannot open a netlink socket")]
    Socket(#[source] io::Error),
    /// The kernel refused a request.
    #[error("cannot {step}")]
    Request {
        /// What was asked for.
        step: &'static str,
        /// The kernel's answer.
        #[source]
        source: rtnetlink::Error,
    },
    /// Nothing but loopback.
    #[error("there is no network interface: give the machine a virtio network device")]
    NoInterface,
}

/// Brings loopback and the first other interface up, with its address and the default route.
///
/// # Errors
/// The step that failed.
pub async fn configure(interface: Interface, gateway: Option<Ipv4Addr>) -> Result<(), NetworkError> {
    let (connection, netlink, _) = rtnetlink::new_connection().map_err(NetworkError::Socket)?;
    // Ends with the handle, at the end of this function.
    let mut driver = tokio::task::JoinSet::new();
    driver.spawn(connection);

    let step = |step| move |source| NetworkError::Request { step, source };
    let links: Vec<LinkMessage> =
        netlink.link().get().execute().try_collect().await.map_err(step("list the network interfaces"))?;
    let (loopback, others): (Vec<_>, Vec<_>) =
        links.into_iter().partition(|link| link.header.flags.contains(LinkFlags::Loopback));
    for link in &loopback {
        let up = LinkUnspec::new_with_index(link.header.index).up().build();
        netlink.link().set(up).execute().await.map_err(step("bring loopback up"))?;
    }
    let link = others.first().ok_or(NetworkError::NoInterface)?;
    let index = link.header.index;
    netlink
        .address()
        .add(index, interface.address.into(), interface.prefix)
        .replace()
        .execute()
        .await
        .map_err(step("give the network interface its address"))?;
    let up = LinkUnspec::new_with_index(index).up().build();
    netlink.link().set(up).execute().await.map_err(step("bring the network interface up"))?;
    if let Some(gateway) = gateway {
        let route = RouteMessageBuilder::<Ipv4Addr>::new().gateway(gateway).build();
        netlink.route().add(route).replace().execute().await.map_err(step("set the default route"))?;
    }
    tracing::info!(device = name(link), address = %interface.address, "network configured");
    Ok(())
}

fn name(link: &LinkMessage) -> &str {
    link.attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name.as_str()),
            _ => None,
        })
        .unwrap_or("?")
}
