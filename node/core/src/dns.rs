//! The node's DNS: CoreDNS with its address, its identity and the node's name servers.

use std::convert::Infallible;
use std::future::pending;
use std::net::Ipv4Addr;
use std::sync::Arc;

use programs::{Credentials, Requested, Stale, dns};
use supervisor::{BoxError, Context, Handle};
use tokio::sync::watch;
use tracing::info;

use crate::certificates::renewal;

pub(crate) struct Dns {
    pub(crate) services: programs::Config,
    pub(crate) credentials: Arc<Credentials>,
    /// Certificate of a worker's CoreDNS. A control plane signs its own with the others.
    pub(crate) certificate: Option<Arc<Requested>>,
    pub(crate) clock: watch::Receiver<::clock::ClockState>,
    pub(crate) name_servers: watch::Receiver<Vec<Ipv4Addr>>,
    /// The service that loads the packet filter rules.
    pub(crate) network: Handle,
}

impl Dns {
    /// Runs CoreDNS for the node's pods until cancelled. Healthy when CoreDNS is healthy.
    pub(crate) async fn run(self: Arc<Self>, cx: Context) -> Result<(), BoxError> {
        tokio::select! {
            () = cx.cancelled() => Ok(()),
            ended = self.serve(&cx) => match ended? {},
        }
    }

    async fn serve(&self, cx: &Context) -> Result<Infallible, BoxError> {
        // Without the rules, any machine could reach the address through the node.
        self.network.healthy().await?;
        network::add_to_loopback(self.services.dns_service()).await?;
        if let Some(certificate) = &self.certificate {
            let (certificate, clock) = (Arc::clone(certificate), self.clock.clone());
            let keep = move |cx| keep(cx, Arc::clone(&certificate), clock.clone());
            cx.start("dns-identity", keep).healthy().await?;
        }
        let mut name_servers = self.name_servers.clone();
        loop {
            let present = name_servers.borrow_and_update().clone();
            let program = cx.start("coredns", dns::service(&self.services, &self.credentials, &present));
            let ready = async {
                program.healthy().await?;
                cx.healthy();
                pending::<Result<(), BoxError>>().await
            };
            tokio::select! {
                failed = ready => failed?,
                changed = name_servers.changed() => changed?,
            }
            info!("name servers have changed, restarting CoreDNS");
            program.stop().await;
        }
    }
}

/// Requests the certificate and its renewals, which CoreDNS reads by itself. Healthy with a certificate that is due for
/// renewal, because the API server may be unreachable.
async fn keep(
    cx: Context,
    certificate: Arc<Requested>,
    clock: watch::Receiver<::clock::ClockState>,
) -> Result<(), BoxError> {
    tokio::select! {
        () = cx.cancelled() => Ok(()),
        ended = renew(&cx, &certificate, clock) => match ended? {},
    }
}

async fn renew(
    cx: &Context,
    certificate: &Requested,
    clock: watch::Receiver<::clock::ClockState>,
) -> Result<Infallible, BoxError> {
    if matches!(certificate.on_disk().await?, Ok(_) | Err(Stale::Expiring)) {
        cx.healthy();
    }
    loop {
        let lasting = certificate.ensure().await?;
        cx.healthy();
        renewal(lasting, clock.clone()).await;
    }
}
