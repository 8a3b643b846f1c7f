//! The services of a control plane node.

use std::sync::Arc;
use std::time::Duration;

use cluster::announcement::Announcement;
use cluster::{AdministratorRequest, STATUS_PORT};
use kube::Client;
use programs::discovery::ca_digest;
use programs::{
    Credentials, Identity, Service, apiserver, controller_manager, database, etcd, first_range, scheduler, secrets,
    snapshot_controller,
};
use supervisor::{BoxError, Context, Handle};
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::certificates::{CertificateStatus, Certificates};
use crate::member::{BaseServices, Member, StorageIdentity};
use crate::status::administrator_path;

/// Deadline of the requests that assign the node's pod range, because the boot waits for them.
const RANGE_LIMIT: Duration = Duration::from_secs(30);

/// Longest time that the snapshot services wait for the boot.
const BOOT_LIMIT: Duration = Duration::from_mins(5);

pub(crate) struct ControlPlane {
    member: Arc<Member>,
    credentials: Arc<Credentials>,
    certificates: Arc<Certificates>,
}

impl ControlPlane {
    pub(crate) fn new(member: Arc<Member>, credentials: Arc<Credentials>, certificates: Arc<Certificates>) -> Self {
        Self { member, credentials, certificates }
    }

    /// The root of the services, in boot order. A Node is Ready without kube-controller-manager, which starts slowly.
    /// Therefore the pod range and the storage identity do not wait for it.
    pub(crate) async fn run(self: Arc<Self>, cx: Context) -> Result<(), BoxError> {
        let Self { member, credentials, .. } = &*self;
        let (certificates, clock) = (Arc::clone(&self.certificates), member.keeper.state());
        cx.start("certificates", move |cx| Arc::clone(&certificates).run(cx, clock.clone()));
        let BaseServices { modules, guard } = member.start_base(&cx, None);
        let etcd = cx.start("etcd", etcd::service(&member.services));
        etcd.healthy().await?;
        // Started before the API server, which does not become ready while the database is full.
        let paths = member.services.paths.clone();
        cx.start("database", move |cx| database::recover(cx, paths.clone()));
        let apiserver = cx.start("kube-apiserver", apiserver::service(&member.services, credentials));

        // The container runtime starts while the API server starts.
        let runtime = member.start_runtime(&cx, guard).await?;

        apiserver.healthy().await?;
        let renewals = self.certificates.status();
        let seen = renewals.borrow().client_renewals;
        self.announce_credentials();
        self.show_ca();
        let admin = credentials.client(Identity::Admin).await?;
        // The first service with this client: until it runs, users that the configuration does not list any more have
        // all rights.
        let administrators = start_administrators(&cx, &admin, &member.services);
        // The reconciler is next, because its objects give the storage identity its permissions.
        let reconciler = start_reconciler(&cx, &admin);
        member.start_pods(&cx, credentials, Identity::Proxy, modules, runtime).await?;
        assign_range(&admin, &member.services).await;
        let controllers =
            cx.start("kube-controller-manager", controller_manager::service(&member.services, credentials));
        cx.start("kube-scheduler", scheduler::service(&member.services, credentials));
        let approver = start_approver(&cx, &admin, &member.services);
        let tokens = start_tokens(&cx, &admin);
        let dns = start_dns_service(&cx, &admin, &member.services);
        if let Some(stored) = credentials.secrets().cloned() {
            let client = admin.clone();
            cx.start("secrets", move |cx| secrets::rewrite(cx, client.clone(), stored.clone()));
        }
        let (node, client) = (Arc::clone(member), admin.clone());
        let ready = cx.start("node", move |cx| Arc::clone(&node).watch_node(cx, client.clone()));
        let boot = [ready, controllers];
        let snapshots = start_snapshots(&cx, &admin, &boot);
        let controller = snapshot_controller::service(&member.services, credentials);
        start_snapshot_controller(&cx, controller, snapshots.clone());

        reconciler.healthy().await?;
        let reclaimer = start_reclaimer(&cx, &admin);
        let identity = StorageIdentity::signed(credentials, renewals.clone());
        member.start_network_and_storage(&cx, credentials, &identity, None);
        cx.healthy();
        let services = [approver, tokens, dns, snapshots, reconciler, reclaimer, administrators];
        self.administer(&cx, renewals, seen, &boot, services).await
    }

    /// Restarts the services that use the administrator's client after each renewal of its certificate.
    async fn administer(
        &self,
        cx: &Context,
        mut renewals: watch::Receiver<CertificateStatus>,
        mut seen: u32,
        boot: &[Handle; 2],
        mut services: [Handle; 7],
    ) -> Result<(), BoxError> {
        loop {
            seen = tokio::select! {
                () = cx.cancelled() => return Ok(()),
                status = renewals.wait_for(|status| status.client_renewals != seen) => status?.client_renewals,
            };
            info!("administrator's certificate renewed, starting the services that use it again");
            for service in services.iter().rev() {
                service.stop().await;
            }
            self.announce_credentials();
            let admin = self.credentials.client(Identity::Admin).await?;
            services = [
                start_approver(cx, &admin, &self.member.services),
                start_tokens(cx, &admin),
                start_dns_service(cx, &admin, &self.member.services),
                start_snapshots(cx, &admin, boot),
                start_reconciler(cx, &admin),
                start_reclaimer(cx, &admin),
                start_administrators(cx, &admin, &self.member.services),
            ];
        }
    }

    fn announce_credentials(&self) {
        self.member.host.announce(Announcement::Credentials { kubeconfig: self.credentials.admin_kubeconfig() });
    }

    /// Logs the digest with which a user verifies `/ca.crt`, because that file comes from the network.
    fn show_ca(&self) {
        let public = self.credentials.public();
        if let Some(digest) = ca_digest(&public.ca) {
            info!(ca = %digest, "digest of the cluster's CA");
        }
        for one in &public.administrators {
            let url = format!("http://{}:{STATUS_PORT}{}", self.member.services.address, administrator_path(&one.name));
            info!(user = one.user, url, "certificate of an administrator published");
        }
    }
}

/// Must precede kube-controller-manager. If the assignment fails, the node waits until kube-controller-manager assigns
/// a range.
async fn assign_range(admin: &Client, services: &programs::Config) {
    let error: BoxError = match timeout(RANGE_LIMIT, first_range::assign(admin, services)).await {
        Ok(Ok(None)) => return,
        Ok(Ok(Some(range))) => return info!(%range, "range of pod addresses assigned to this node"),
        Ok(Err(error)) => error.into(),
        Err(late) => late.into(),
    };
    let error = causes::of(&*error);
    warn!(error, "cannot assign a range of pod addresses to this node, waiting for kube-controller-manager");
}

fn start_administrators(cx: &Context, admin: &Client, services: &programs::Config) -> Handle {
    let client = admin.clone();
    let users: Vec<String> = services.settings.administrators.iter().map(AdministratorRequest::user).collect();
    cx.start("administrators", move |cx| reconciler::administrators(cx, client.clone(), users.clone()))
}

fn start_approver(cx: &Context, admin: &Client, services: &programs::Config) -> Handle {
    let (client, reserved) = (admin.clone(), services.not_for_workers());
    cx.start("approver", move |cx| reconciler::approve(cx, client.clone(), reserved.clone()))
}

fn start_tokens(cx: &Context, admin: &Client) -> Handle {
    let client = admin.clone();
    cx.start("tokens", move |cx| reconciler::tokens(cx, client.clone()))
}

fn start_dns_service(cx: &Context, admin: &Client, services: &programs::Config) -> Handle {
    let (client, address) = (admin.clone(), services.dns_service());
    cx.start("dns-service", move |cx| reconciler::dns(cx, client.clone(), address))
}

fn start_snapshots(cx: &Context, admin: &Client, boot: &[Handle; 2]) -> Handle {
    let (client, boot) = (admin.clone(), boot.clone());
    cx.start("snapshots", move |cx| {
        let (client, boot) = (client.clone(), boot.clone());
        async move {
            after_boot(&cx, &boot).await;
            reconciler::snapshots(cx, client).await
        }
    })
}

/// The controller needs the kinds that [`start_snapshots`] creates, and restarts until they exist.
fn start_snapshot_controller(cx: &Context, controller: Service, snapshots: Handle) {
    let (controller, boot) = (Arc::new(controller), [snapshots]);
    cx.start("snapshot-controller", move |cx| {
        let (controller, boot) = (Arc::clone(&controller), boot.clone());
        async move {
            after_boot(&cx, &boot).await;
            if cx.is_cancelled() { Ok(()) } else { controller(cx).await }
        }
    });
}

/// Waits, in the first attempt of a service, until each of `services` was healthy, or for [`BOOT_LIMIT`]. No pod needs
/// snapshots before kube-controller-manager has created service accounts, and the kinds and the controller of snapshots
/// would take CPU time from its start. Other nodes need them even if this one never becomes Ready.
async fn after_boot(cx: &Context, services: &[Handle]) {
    if cx.attempt() > 1 {
        return;
    }
    let healthy = async {
        for service in services {
            // A stopped service has been started again with another client.
            _ = service.healthy().await;
        }
    };
    tokio::select! {
        () = cx.cancelled() => {}
        _ = timeout(BOOT_LIMIT, healthy) => {}
    }
}

fn start_reconciler(cx: &Context, admin: &Client) -> Handle {
    let client = admin.clone();
    cx.start("reconciler", move |cx| reconciler::run(cx, client.clone()))
}

fn start_reclaimer(cx: &Context, admin: &Client) -> Handle {
    let client = admin.clone();
    cx.start("reclaimer", move |cx| reconciler::reclaim(cx, client.clone()))
}

#[cfg(test)]
mod tests {
    use supervisor::{Settings, Supervisor};
    use tokio::sync::mpsc;
    use tokio::time::{Instant, sleep};

    use super::*;

    /// Time that a service waits for a Ready node and a kube-controller-manager that is healthy after `delay`.
    async fn wait_with(delay: Duration) -> Duration {
        let (sender, mut waited) = mpsc::channel(1);
        let tree = Supervisor::start("granary", Settings::default(), move |cx| {
            let sender = sender.clone();
            async move {
                let ready = cx.start("node", |cx| async move {
                    cx.done();
                    Ok::<_, BoxError>(())
                });
                let controllers = cx.start("kube-controller-manager", move |cx| async move {
                    tokio::select! {
                        () = cx.cancelled() => return Ok::<_, BoxError>(()),
                        () = sleep(delay) => cx.healthy(),
                    }
                    cx.cancelled().await;
                    Ok(())
                });
                let start = Instant::now();
                after_boot(&cx, &[ready, controllers]).await;
                _ = sender.try_send(start.elapsed());
                cx.cancelled().await;
                Ok::<_, BoxError>(())
            }
        });
        let waited = waited.recv().await.unwrap();
        tree.stop(Duration::from_secs(10)).await.unwrap();
        waited
    }

    /// Regression: a Ready node started the snapshot services while kube-controller-manager started.
    #[tokio::test(start_paused = true)]
    async fn snapshots_wait_for_kube_controller_manager() {
        let delay = Duration::from_secs(40);
        let waited = wait_with(delay).await;
        assert!((delay..delay * 2).contains(&waited), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn snapshots_do_not_wait_for_ever() {
        let waited = wait_with(BOOT_LIMIT * 3).await;
        assert!((BOOT_LIMIT..BOOT_LIMIT * 2).contains(&waited), "{waited:?}");
    }
}
