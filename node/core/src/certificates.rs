//! Renews certificates before they expire, while the node runs.

use std::sync::Arc;
use std::time::Duration;

use programs::{Credentials, Expiry, Identity, Lasting, PublicCertificates};
use supervisor::{BoxError, Context};
use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::info;

use crate::error::StepError;

const INTERVAL: Duration = Duration::from_secs(3600);

#[derive(Clone, Debug, Default)]
pub struct CertificateStatus {
    pub expiries: Vec<Expiry>,
    /// Number of renewals of the client certificates that this program uses (administrator, storage). After each
    /// renewal, the clients connect again.
    pub client_renewals: u32,
    pub public: PublicCertificates,
}

pub struct Certificates {
    credentials: Arc<Credentials>,
    status: watch::Sender<CertificateStatus>,
}

impl Certificates {
    pub fn new(credentials: Arc<Credentials>, status: watch::Sender<CertificateStatus>) -> Self {
        Self { credentials, status }
    }

    pub fn status(&self) -> watch::Receiver<CertificateStatus> {
        self.status.subscribe()
    }

    /// Service that checks the certificates each hour, when one is due, when a requested one arrives, and after a step
    /// of the clock. Healthy after the first check.
    pub async fn run(
        self: Arc<Self>,
        cx: Context,
        mut clock: watch::Receiver<clock::ClockState>,
    ) -> Result<(), BoxError> {
        let mut requested = self.credentials.requested();
        loop {
            let steps = clock.borrow_and_update().steps;
            let credentials = Arc::clone(&self.credentials);
            let renewal = spawn_blocking(move || credentials.renew(OffsetDateTime::now_utc())).await;
            let renewal = renewal.map_err(StepError::of("the thread that checks the certificates panicked"))??;
            let clients = [Identity::Admin, Identity::Storage].map(Identity::name);
            let clients = clients.iter().any(|name| renewal.made.contains(name));
            if !renewal.made.is_empty() {
                info!(certificates = renewal.made.join(" "), "certificates renewed");
            }
            let mut expiries = renewal.expiries;
            expiries.extend_from_slice(&requested.borrow_and_update());
            expiries.sort_unstable_by_key(|expiry| expiry.name);
            let public = self.credentials.public();
            self.status.send_modify(|status| {
                status.expiries = expiries;
                status.public = public;
                status.client_renewals += u32::from(clients);
            });
            cx.healthy();
            let is_due = async {
                match renewal.lasting {
                    Some(lasting) => lasting.renewal().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                () = is_due => {}
                Ok(()) = requested.changed() => {}
                // Reports an expiring CA again, long before the next certificate is due.
                () = sleep(INTERVAL) => {}
                () = is_set(&mut clock, steps) => {}
            }
        }
    }
}

/// Waits for the first clock step after the step number `steps`. Cancel-safe.
async fn is_set(clock: &mut watch::Receiver<clock::ClockState>, steps: u32) {
    if clock.wait_for(|state| state.steps != steps).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Waits until a certificate is due for renewal. A step of the clock takes effect immediately. Cancel-safe.
pub(crate) async fn renewal(lasting: Lasting, mut clock: watch::Receiver<clock::ClockState>) {
    loop {
        let steps = clock.borrow().steps;
        tokio::select! {
            () = lasting.renewal() => return,
            () = is_set(&mut clock, steps) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use programs::Requested;
    use supervisor::{Settings, Supervisor};
    use time::Duration as Span;
    use tokio::time::timeout;

    use super::*;
    use crate::example::services as config;

    /// Starts the service, and returns its status and its clock.
    fn start(
        credentials: Arc<Credentials>,
    ) -> (Supervisor, watch::Receiver<CertificateStatus>, watch::Sender<clock::ClockState>) {
        let certificates = Arc::new(Certificates::new(credentials, watch::Sender::default()));
        let (status, clock) = (certificates.status(), watch::Sender::default());
        let state = clock.subscribe();
        let run = move |cx| Arc::clone(&certificates).run(cx, state.clone());
        (Supervisor::start("certificates", Settings::default(), run), status, clock)
    }

    #[tokio::test]
    async fn certificates_are_renewed_in_time_and_after_a_clock_step() {
        let scratch = tempfile::tempdir().unwrap();
        let pki = scratch.path().join("pki");
        // 25 days before the expiry.
        let issued = OffsetDateTime::now_utc() - Span::days(340);
        let credentials = Arc::new(Credentials::ensure(&config(&pki), issued).unwrap());
        let old = credentials.admin_kubeconfig();
        let (tree, mut status, clock) = start(Arc::clone(&credentials));

        let limit = Duration::from_secs(30);
        let first =
            timeout(limit, status.wait_for(|status| status.client_renewals == 1)).await.unwrap().unwrap().clone();
        let soon = OffsetDateTime::now_utc() + Span::days(300);
        assert!(first.expiries.len() > 5 && first.expiries.iter().all(|expiry| expiry.at > soon), "{first:?}");
        assert_ne!(credentials.admin_kubeconfig(), old);

        fs::remove_file(pki.join("admin.crt")).unwrap();
        clock.send_modify(|state| state.steps = 1);
        timeout(limit, status.wait_for(|status| status.client_renewals == 2)).await.unwrap().unwrap();
        assert!(pki.join("admin.crt").exists());
        tree.stop(Duration::from_secs(5)).await.unwrap();
    }

    /// Regression: the expiry of the CA was logged once a year, when the other certificates were due.
    #[tokio::test(start_paused = true)]
    async fn certificates_are_checked_each_hour() {
        let scratch = tempfile::tempdir().unwrap();
        let pki = scratch.path().join("pki");
        let credentials = Credentials::ensure(&config(&pki), OffsetDateTime::now_utc()).unwrap();
        let (tree, mut status, _clock) = start(Arc::new(credentials));
        status.wait_for(|status| !status.expiries.is_empty()).await.unwrap();
        fs::remove_file(pki.join("admin.crt")).unwrap();
        timeout(2 * INTERVAL, status.wait_for(|status| status.client_renewals == 1)).await.unwrap().unwrap();
        tree.stop(Duration::from_secs(5)).await.unwrap();
    }

    /// Regression: the metric lacked the certificate of the storage identity, without which the node provisions no
    /// volumes.
    #[tokio::test]
    async fn the_expiry_of_a_requested_certificate_is_published_at_once() {
        let scratch = tempfile::tempdir().unwrap();
        let [control_plane, worker] = ["one", "two"].map(|name| config(&scratch.path().join(name)));
        Credentials::ensure(&control_plane, OffsetDateTime::now_utc()).unwrap();
        let ca = fs::read_to_string(control_plane.paths.pki.join("ca.crt")).unwrap();
        let credentials = Arc::new(Credentials::joining(&worker, "10.0.2.15:6443", &ca).unwrap());
        let (tree, mut status, _clock) = start(Arc::clone(&credentials));

        let names = |status: &CertificateStatus| status.expiries.iter().map(|expiry| expiry.name).collect::<Vec<_>>();
        let limit = Duration::from_secs(30);
        timeout(limit, status.wait_for(|status| names(status) == ["ca"])).await.unwrap().unwrap();
        for extension in ["crt", "key"] {
            let file = format!("kubelet-server.{extension}");
            fs::copy(control_plane.paths.pki.join(&file), worker.paths.pki.join(&file)).unwrap();
        }
        Requested::kubelet_server(&worker, &credentials).ensure().await.unwrap();
        timeout(limit, status.wait_for(|status| names(status) == ["ca", "kubelet-server"])).await.unwrap().unwrap();
        tree.stop(Duration::from_secs(5)).await.unwrap();
    }
}
