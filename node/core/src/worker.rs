//! The services of a worker.

use std::sync::Arc;

use programs::{Identity, Requested};
use supervisor::{BoxError, Context};
use tokio::sync::watch;

use crate::certificates::{CertificateStatus, Certificates};
use crate::join::Join;
use crate::member::{BaseServices, Member, StorageIdentity};

pub(crate) struct Worker {
    member: Arc<Member>,
    join: Arc<Join>,
    status: watch::Sender<CertificateStatus>,
}

impl Worker {
    pub(crate) fn new(member: Arc<Member>, worker: config::Worker, status: watch::Sender<CertificateStatus>) -> Self {
        let join = Arc::new(Join::new(member.services.clone(), worker, member.keeper.state()));
        Self { member, join, status }
    }

    pub(crate) async fn run(self: Arc<Self>, cx: Context) -> Result<(), BoxError> {
        let Self { member, join, status } = &*self;
        let BaseServices { modules, guard } = member.start_base(&cx, Some(join.server()));
        let service = Arc::clone(join);
        cx.start("join", move |cx| Arc::clone(&service).run(cx));
        let runtime = member.start_runtime(&cx, guard).await?;

        let credentials = tokio::select! {
            () = cx.cancelled() => return Ok(()),
            credentials = join.credentials() => credentials,
        };
        let certificates = Arc::new(Certificates::new(Arc::clone(&credentials), status.clone()));
        let clock = member.keeper.state();
        cx.start("certificates", move |cx| Arc::clone(&certificates).run(cx, clock.clone()));
        let identity = StorageIdentity::requested(member, &credentials);
        let service = identity.clone();
        // kube-proxy uses this certificate, too.
        cx.start("storage-identity", move |cx| service.clone().request(cx)).healthy().await?;
        member.start_pods(&cx, &credentials, Identity::Storage, modules, runtime).await?;
        let (node, client) = (Arc::clone(member), credentials.client(Identity::Storage).await?);
        cx.start("node", move |cx| Arc::clone(&node).watch_node(cx, client.clone()));
        let dns = Requested::dns(&member.services, &credentials);
        member.start_network_and_storage(&cx, &credentials, &identity, Some(dns));
        cx.healthy();
        cx.cancelled().await;
        Ok(())
    }
}
