//! The services of a node that has joined the cluster of a control plane.

use std::sync::Arc;

use programs::Identity;
use supervisor::{BoxError, Context};
use tokio::sync::watch;

use crate::certificates::{Certificates, Kept};
use crate::join::Join;
use crate::member::{Ground, Member, Own, Server};

/// A worker.
pub(crate) struct Worker {
    member: Arc<Member>,
    join: Arc<Join>,
    kept: watch::Sender<Kept>,
}

impl Worker {
    pub(crate) fn new(member: Arc<Member>, worker: config::Worker, kept: watch::Sender<Kept>) -> Self {
        let join = Arc::new(Join::new(member.services.clone(), worker, member.keeper.state()));
        Self { member, join, kept }
    }

    /// The root of the services, in boot order.
    pub(crate) async fn run(self: Arc<Self>, cx: Context) -> Result<(), BoxError> {
        let Self { member, join, kept } = &*self;
        let Ground { modules, guard } = member.begin(&cx, Some(join.server()));
        let its = Arc::clone(join);
        cx.start("join", move |cx| Arc::clone(&its).run(cx));
        let runtime = member.runtime(&cx, guard).await?;

        let credentials = tokio::select! {
            () = cx.cancelled() => return Ok(()),
            credentials = join.credentials() => credentials,
        };
        let certificates = Arc::new(Certificates::new(Arc::clone(&credentials), kept.clone()));
        let clock = member.keeper.state();
        cx.start("certificates", move |cx| Arc::clone(&certificates).run(cx, clock.clone()));
        let own = Own::new(member, &credentials, Server::Elsewhere);
        let its = own.clone();
        let identity = cx.start("storage-identity", move |cx| its.clone().identify(cx));
        // kube-proxy shows the certificate of the node's storage.
        identity.healthy().await?;
        member.pods(&cx, &credentials, Identity::Storage, modules, runtime).await?;
        let client = credentials.client(Identity::Storage).await?;
        let its = Arc::clone(member);
        cx.start("node", move |cx| Arc::clone(&its).watch_node(cx, client.clone()));
        member.network_and_storage(&cx, &own);
        cx.healthy();
        cx.cancelled().await;
        Ok(())
    }
}
