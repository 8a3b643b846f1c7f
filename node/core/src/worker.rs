//! The services of a node that has joined the cluster of a control plane.

use std::sync::Arc;

use services::{Identity, Requested};
use supervisor::{BoxError, Context};

use crate::join::Join;
use crate::member::{Ground, Member, identify};
use crate::restart;

/// A worker.
pub(crate) struct Worker {
    member: Arc<Member>,
    join: Arc<Join>,
}

impl Worker {
    pub(crate) fn new(member: Arc<Member>, worker: config::Worker) -> Self {
        let join = Arc::new(Join::new(member.services.clone(), worker));
        Self { member, join }
    }

    /// The root of the services, in boot order.
    pub(crate) async fn run(self: Arc<Self>, cx: Context) -> Result<(), BoxError> {
        let Self { member, join } = &*self;
        let Ground { modules, containerd } = member.begin(&cx);
        let its = Arc::clone(join);
        cx.start("join", move |cx| Arc::clone(&its).run(cx));
        containerd.healthy().await?;
        let runtime = member.runtime(&cx);

        let credentials = tokio::select! {
            () = cx.cancelled() => return Ok(()),
            credentials = join.credentials() => credentials,
        };
        let requested = Arc::new(Requested::storage(&member.services, &credentials));
        let asked = Arc::clone(&requested);
        let identity = cx.start("storage-identity", move |cx| identify(cx, Arc::clone(&asked)));
        // kube-proxy shows the certificate of the node's storage.
        identity.healthy().await?;
        member.pods(&cx, &credentials, Identity::Storage, modules, runtime).await?;
        let client = credentials.client(Identity::Storage).await?;
        let its = Arc::clone(member);
        cx.start("node", move |cx| Arc::clone(&its).watch_node(cx, client.clone()));
        let its = Arc::clone(member);
        let work = move |cx| Arc::clone(&its).work(cx, Arc::clone(&credentials), Arc::clone(&requested));
        cx.start("provisioner", restart::on_request(work));
        cx.healthy();
        cx.cancelled().await;
        Ok(())
    }
}
