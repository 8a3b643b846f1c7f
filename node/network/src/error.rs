//! [`NetworkError`].

use std::io;
use std::path::PathBuf;

use cluster::Card;

use crate::message::CLIENT_PORT;

#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error("cannot open a netlink socket")]
    Netlink(#[source] io::Error),
    #[error("cannot {step}")]
    Request { step: &'static str, source: rtnetlink::Error },
    #[error(
        "the image has no driver for a network card of the machine; add a card that docs/operations/install.md lists"
    )]
    NoCard,
    #[error(
        "no network card has {wanted}; the machine has {}; choose one of them in `network` of the configuration",
        .found.join("; ")
    )]
    OtherCards {
        wanted: Card,
        /// Name, address and driver of each card.
        found: Vec<String>,
    },
    #[error("network interface {0} has no Ethernet address, which DHCP requires; configure a static address")]
    NotEthernet(String),
    #[error("cannot open the DHCP client's socket (UDP port {CLIENT_PORT}) on {device}")]
    Dhcp { device: String, source: io::Error },
    #[error("cannot read random numbers")]
    Random(#[source] io::Error),
    /// The source address check of the device cannot be disabled.
    #[error("cannot write {}", path.display())]
    SourceCheck { path: PathBuf, source: io::Error },
}
