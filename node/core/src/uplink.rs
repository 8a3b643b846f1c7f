//! The node's address while it runs: renews the DHCP lease, and updates the name servers of pods.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use network::{Addressing, Network, NetworkError};
use supervisor::Context;
use tokio::sync::{Notify, watch};
use tracing::{error, info, warn};

const ETHERNET_MTU: u32 = 1500;

/// The network, and its addressing at the start of the services.
#[derive(Debug)]
pub struct Uplink {
    network: Network,
    first: Addressing,
    /// Target of the link `/etc/resolv.conf`.
    resolv: PathBuf,
    name_servers: watch::Sender<Vec<Ipv4Addr>>,
    moved: Notify,
}

impl Uplink {
    pub fn new(network: Network, first: Addressing, ephemeral: &Path) -> io::Result<Self> {
        let resolv = ephemeral.join("etc/resolv.conf");
        fs::write(&resolv, name_servers(&first.name_servers))?;
        let name_servers = watch::Sender::new(first.name_servers.clone());
        Ok(Self { network, first, resolv, name_servers, moved: Notify::new() })
    }

    pub fn name_servers(&self) -> watch::Receiver<Vec<Ipv4Addr>> {
        self.name_servers.subscribe()
    }

    pub fn interface(&self) -> &str {
        self.network.interface()
    }

    pub fn mtu(&self) -> u32 {
        self.network.mtu().unwrap_or(ETHERNET_MTU)
    }

    /// Returns when DHCP has assigned another address to the node. The services have the first address in their
    /// certificates and arguments, so the node has to restart.
    pub async fn moved(&self) {
        self.moved.notified().await;
    }

    /// Service that keeps the address. `missed` is the time that timers did not count.
    pub async fn run(&self, cx: Context, missed: watch::Receiver<Duration>) -> Result<(), NetworkError> {
        cx.healthy();
        let renewed = |now: &Addressing| {
            match fs::write(&self.resolv, name_servers(&now.name_servers)) {
                Ok(()) => info!(name_servers = ?now.name_servers, "DHCP has changed the network configuration"),
                Err(error) => warn!(%error, "cannot write resolv.conf; pods have the old name servers"),
            }
            self.name_servers.send_if_modified(|servers| {
                let has_changed = *servers != now.name_servers;
                servers.clone_from(&now.name_servers);
                has_changed
            });
        };
        tokio::select! {
            () = cx.cancelled() => {}
            next = self.network.keep(&self.first, missed, renewed) => {
                let next = next?.interface;
                error!(address = %self.first.interface, %next, "DHCP assigned another address, restarting the node");
                self.moved.notify_one();
                cx.cancelled().await;
            }
        }
        Ok(())
    }
}

fn name_servers(all: &[Ipv4Addr]) -> String {
    // Resolvers read at most three.
    all.iter().take(3).map(|server| format!("nameserver {server}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf_has_the_servers_that_resolvers_read() {
        let all: Vec<_> = (1..=4).map(|last| Ipv4Addr::new(192, 0, 2, last)).collect();
        assert_eq!(name_servers(&all), "nameserver 192.0.2.1\nnameserver 192.0.2.2\nnameserver 192.0.2.3\n");
        assert_eq!(name_servers(&[]), "");
    }
}
