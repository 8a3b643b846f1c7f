//! Has certificates made again before they expire, while the node runs.

use std::sync::Arc;
use std::time::Duration;

use programs::{Credentials, Expiry, Identity, Lasting, PkiError};
use supervisor::Context;
use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::sleep;
use tracing::info;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(3600);

/// The certificates cannot be kept. The service is started again.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The disk, or the clock.
    #[error(transparent)]
    Renew(#[from] PkiError),
    /// The thread that looks at them.
    #[error("looking at the certificates ended early")]
    Panicked(#[from] JoinError),
}

/// What the last look found.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// When each certificate ends, by name: those that the node makes, and those that it asks for.
    pub expiries: Vec<Expiry>,
    /// How often the administrator's was made again: clients of it have to be made again, too.
    pub administrators: u32,
}

/// The certificates of a running node.
pub struct Certificates {
    credentials: Arc<Credentials>,
    kept: watch::Sender<Kept>,
}

impl Certificates {
    /// Those that there are at the start. Whoever subscribed to `kept` hears of them, now and later.
    pub fn new(credentials: Arc<Credentials>, kept: watch::Sender<Kept>) -> Self {
        Self { credentials, kept }
    }

    /// What is known of them, now and later.
    pub fn kept(&self) -> watch::Receiver<Kept> {
        self.kept.subscribe()
    }

    /// The service: looks each hour, when one is due, when the node got one that it had asked for, and after the clock
    /// was set. Healthy after the first look.
    ///
    /// # Errors
    /// [`KeepError`].
    pub async fn run(
        self: Arc<Self>,
        cx: Context,
        mut clock: watch::Receiver<clock::ClockState>,
    ) -> Result<(), KeepError> {
        let mut requested = self.credentials.requested();
        loop {
            let steps = clock.borrow_and_update().steps;
            let credentials = Arc::clone(&self.credentials);
            let renewal = spawn_blocking(move || credentials.renew(OffsetDateTime::now_utc())).await??;
            let administrator = renewal.made.contains(&Identity::Admin.name());
            if !renewal.made.is_empty() {
                info!(certificates = renewal.made.join(" "), "certificates renewed");
            }
            let mut expiries = renewal.expiries;
            expiries.extend_from_slice(&requested.borrow_and_update());
            expiries.sort_unstable_by_key(|expiry| expiry.name);
            self.kept.send_modify(|kept| {
                kept.expiries = expiries;
                kept.administrators += u32::from(administrator);
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
                // The credentials are here, so that there always is somebody who may tell.
                Ok(()) = requested.changed() => {}
                // An authority near its end is told again, long before the next certificate is due.
                () = sleep(LOOK) => {}
                () = is_set(&mut clock, steps) => {}
            }
        }
    }
}

/// Waits until the clock has been set another time than so often. Cancel-safe.
async fn is_set(clock: &mut watch::Receiver<clock::ClockState>, steps: u32) {
    if clock.wait_for(|state| state.steps != steps).await.is_err() {
        // Nobody keeps the clock any more.
        std::future::pending::<()>().await;
    }
}

/// Waits until it is time for another certificate, and looks at once when the clock is set. Cancel-safe.
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

    #[tokio::test]
    async fn a_running_node_renews_what_expires_and_looks_again_when_the_clock_is_set() {
        let scratch = tempfile::tempdir().unwrap();
        let pki = scratch.path().join("pki");
        // With 25 days left.
        let made = OffsetDateTime::now_utc() - Span::days(340);
        let credentials = Arc::new(Credentials::ensure(&config(&pki), made).unwrap());
        let old = credentials.admin_kubeconfig();
        let certificates = Arc::new(Certificates::new(Arc::clone(&credentials), watch::Sender::default()));
        let mut kept = certificates.kept();
        let clock = watch::Sender::new(clock::ClockState::default());
        let state = clock.subscribe();
        let tree = Supervisor::start("certificates", Settings::default(), move |cx| {
            Arc::clone(&certificates).run(cx, state.clone())
        });

        let limit = Duration::from_secs(30);
        let first = timeout(limit, kept.wait_for(|kept| kept.administrators == 1)).await.unwrap().unwrap().clone();
        let soon = OffsetDateTime::now_utc() + Span::days(300);
        assert!(first.expiries.len() > 5 && first.expiries.iter().all(|expiry| expiry.at > soon), "{first:?}");
        assert_ne!(credentials.admin_kubeconfig(), old);

        fs::remove_file(pki.join("admin.crt")).unwrap();
        clock.send_modify(|state| state.steps = 1);
        timeout(limit, kept.wait_for(|kept| kept.administrators == 2)).await.unwrap().unwrap();
        assert!(pki.join("admin.crt").exists());
        tree.stop(Duration::from_secs(5)).await.unwrap();
    }

    /// The authority's end was told once a year, when the other certificates were due.
    #[tokio::test(start_paused = true)]
    async fn a_running_node_looks_each_hour() {
        let scratch = tempfile::tempdir().unwrap();
        let pki = scratch.path().join("pki");
        let credentials = Credentials::ensure(&config(&pki), OffsetDateTime::now_utc()).unwrap();
        let certificates = Arc::new(Certificates::new(Arc::new(credentials), watch::Sender::default()));
        let mut kept = certificates.kept();
        let clock = watch::Sender::new(clock::ClockState::default());
        let state = clock.subscribe();
        let tree = Supervisor::start("certificates", Settings::default(), move |cx| {
            Arc::clone(&certificates).run(cx, state.clone())
        });
        kept.wait_for(|kept| !kept.expiries.is_empty()).await.unwrap();
        fs::remove_file(pki.join("admin.crt")).unwrap();
        timeout(2 * LOOK, kept.wait_for(|kept| kept.administrators == 1)).await.unwrap().unwrap();
        tree.stop(Duration::from_secs(5)).await.unwrap();
    }

    /// The metric did not know of the storage identity's certificate, whose end ends all work on volumes.
    #[tokio::test]
    async fn what_the_node_was_given_is_known_as_soon_as_it_is_there() {
        let scratch = tempfile::tempdir().unwrap();
        let [control_plane, worker] = ["one", "two"].map(|name| config(&scratch.path().join(name)));
        Credentials::ensure(&control_plane, OffsetDateTime::now_utc()).unwrap();
        let authority = fs::read_to_string(control_plane.paths.pki.join("ca.crt")).unwrap();
        let credentials = Arc::new(Credentials::joining(&worker, "10.0.2.15:6443", &authority).unwrap());
        let certificates = Arc::new(Certificates::new(Arc::clone(&credentials), watch::Sender::default()));
        let mut kept = certificates.kept();
        let clock = watch::Sender::new(clock::ClockState::default()).subscribe();
        let tree = Supervisor::start("certificates", Settings::default(), move |cx| {
            Arc::clone(&certificates).run(cx, clock.clone())
        });

        let names = |kept: &Kept| kept.expiries.iter().map(|expiry| expiry.name).collect::<Vec<_>>();
        let limit = Duration::from_secs(30);
        timeout(limit, kept.wait_for(|kept| names(kept) == ["ca"])).await.unwrap().unwrap();
        for extension in ["crt", "key"] {
            let file = format!("kubelet-server.{extension}");
            fs::copy(control_plane.paths.pki.join(&file), worker.paths.pki.join(&file)).unwrap();
        }
        Requested::kubelet_server(&worker, &credentials).ensure().await.unwrap();
        timeout(limit, kept.wait_for(|kept| names(kept) == ["ca", "kubelet-server"])).await.unwrap().unwrap();
        tree.stop(Duration::from_secs(5)).await.unwrap();
    }
}
