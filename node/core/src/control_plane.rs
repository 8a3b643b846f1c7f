//! The services of a node that is the control plane of its cluster.

use std::sync::Arc;

use cluster::announcement::Announcement;
use kube::Client;
use programs::{Credentials, Identity, apiserver, controller_manager, etcd, scheduler, secrets};
use supervisor::{BoxError, Context, Handle};
use tokio::sync::watch;
use tracing::info;

use crate::certificates::{Certificates, Kept};
use crate::member::{Ground, Member, Own, Server};

/// A control plane, which runs pods too.
pub(crate) struct ControlPlane {
    member: Arc<Member>,
    credentials: Arc<Credentials>,
    certificates: Arc<Certificates>,
    own: Own,
}

impl ControlPlane {
    pub(crate) fn new(member: Arc<Member>, credentials: Arc<Credentials>, certificates: Arc<Certificates>) -> Self {
        let own = Own::new(&member, &credentials, Server::Here);
        Self { member, credentials, certificates, own }
    }

    /// The root of the services, in boot order.
    pub(crate) async fn run(self: Arc<Self>, cx: Context) -> Result<(), BoxError> {
        let Self { member, credentials, .. } = &*self;
        let (certificates, clock) = (Arc::clone(&self.certificates), member.keeper.state());
        cx.start("certificates", move |cx| Arc::clone(&certificates).run(cx, clock.clone()));
        let Ground { modules, guard } = member.begin(&cx, None);
        let etcd = cx.start("etcd", etcd::service(&member.services));
        etcd.healthy().await?;
        let apiserver = cx.start("kube-apiserver", apiserver::service(&member.services, credentials));

        // While the API server starts.
        let runtime = member.runtime(&cx, guard).await?;

        apiserver.healthy().await?;
        let renewals = self.certificates.kept();
        let seen = renewals.borrow().administrators;
        self.announce_credentials();
        cx.start("kube-controller-manager", controller_manager::service(&member.services, credentials));
        cx.start("kube-scheduler", scheduler::service(&member.services, credentials));
        let admin = credentials.client(Identity::Admin).await?;
        let approver = start_approver(&cx, &admin, &member.services);
        let tokens = start_tokens(&cx, &admin);
        let own = self.own.clone();
        let identity = cx.start("storage-identity", move |cx| own.clone().identify(cx));
        member.pods(&cx, credentials, Identity::Proxy, modules, runtime).await?;

        // What the provisioner's identity may do is one of the reconciler's objects.
        let reconciler = start_reconciler(&cx, &admin);
        reconciler.healthy().await?;
        let release = start_release(&cx, &admin);
        if let Some(stored) = credentials.secrets().cloned() {
            let client = admin.clone();
            cx.start("secrets", move |cx| secrets::rewrite(cx, client.clone(), stored.clone()));
        }
        let its = Arc::clone(member);
        cx.start("node", move |cx| Arc::clone(&its).watch_node(cx, admin.clone()));

        identity.healthy().await?;
        member.network_and_storage(&cx, &self.own);
        cx.healthy();
        self.administer(&cx, renewals, seen, [approver, tokens, reconciler, release]).await
    }

    /// Starts the services that work with the administrator's client anew with each of its certificates but the one that
    /// they were started with.
    async fn administer(
        &self,
        cx: &Context,
        mut renewals: watch::Receiver<Kept>,
        mut seen: u32,
        mut services: [Handle; 4],
    ) -> Result<(), BoxError> {
        loop {
            let another =
                async { renewals.wait_for(|kept| kept.administrators != seen).await.map(|kept| kept.administrators) };
            seen = tokio::select! {
                () = cx.cancelled() => return Ok(()),
                another = another => another?,
            };
            info!("the administrator's certificate is another one: what uses it starts anew");
            for service in services.iter().rev() {
                service.stop().await;
            }
            self.announce_credentials();
            let admin = self.credentials.client(Identity::Admin).await?;
            let config = &self.member.services;
            services = [
                start_approver(cx, &admin, config),
                start_tokens(cx, &admin),
                start_reconciler(cx, &admin),
                start_release(cx, &admin),
            ];
        }
    }

    fn announce_credentials(&self) {
        self.member.host.tell(Announcement::Credentials { kubeconfig: self.credentials.admin_kubeconfig() });
    }
}

fn start_approver(cx: &Context, admin: &Client, services: &programs::Config) -> Handle {
    let client = admin.clone();
    let reserved = vec![services.services, services.cluster_pods];
    cx.start("approver", move |cx| reconciler::approve(cx, client.clone(), reserved.clone()))
}

fn start_tokens(cx: &Context, admin: &Client) -> Handle {
    let client = admin.clone();
    cx.start("tokens", move |cx| reconciler::tokens(cx, client.clone()))
}

fn start_reconciler(cx: &Context, admin: &Client) -> Handle {
    let client = admin.clone();
    cx.start("reconciler", move |cx| reconciler::run(cx, client.clone()))
}

fn start_release(cx: &Context, admin: &Client) -> Handle {
    let client = admin.clone();
    cx.start("reclaimer", move |cx| reconciler::reclaim(cx, client.clone()))
}
