//! Leader election of replicas by a Lease (`coordination.k8s.io/v1`): only the holder acts.
//!
//! The holder stops acting when its last successful renewal is older than [`Times::renewal`], counted from before it
//! sent the request. Another replica takes the Lease over when it has read it unchanged for [`Times::duration`],
//! counted from after the first response. The first time is shorter by more than stopping takes, so two replicas never
//! act at once. Each process compares only times of its own monotonic clock; `renewTime` is informational.
//!
//! A process that the kernel suspends can resume in the middle of a request. Requests of the holder must therefore name
//! the resource version that they are based on.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::PostParams;
use supervisor::{BoxError, Context, Handle, Settings};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tracing::{info, warn};

/// Time limit for giving up the Lease when the replica stops.
const RELEASE: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    #[error("another replica holds the Lease {0}")]
    Lost(String),
    #[error("the Lease {0} was not renewed in time; the API server is unreachable, or the Lease is not installed")]
    Expired(String),
}

/// Times of the election. The defaults are the usual values of Kubernetes' components.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Time that other replicas wait after the last renewal that they read. Whole seconds.
    pub duration: Duration,
    /// Time without a renewal after which the holder stops acting.
    pub renewal: Duration,
    pub retry: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self { duration: Duration::from_secs(15), renewal: Duration::from_secs(10), retry: Duration::from_secs(2) }
    }
}

/// A replica. The Lease must exist: the chart installs it, so that the replicas need no right to create one.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub leases: Api<Lease>,
    pub name: String,
    /// Identity that is unique among the replicas, such as the name of the pod.
    pub identity: String,
    pub times: Times,
}

/// A version of the Lease, and the time when this process first read it.
struct Version {
    resource: Option<String>,
    since: Instant,
}

impl Candidate {
    /// Runs `act` while this replica holds the Lease, until cancelled. Healthy when it has read the Lease.
    ///
    /// # Errors
    /// [`LeaseError`]. The supervisor then stops `act` and restarts this service.
    pub async fn run<F, Fut, E>(&self, cx: &Context, act: F) -> Result<(), LeaseError>
    where
        F: Fn(Context) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        let Times { duration, renewal, retry } = self.times;
        let settings = Settings { stop_deadline: (duration - renewal) / 2, ..Settings::default() };
        let mut version = None;
        let mut acting: Option<Handle> = None;
        let mut confirmed = Instant::now();
        loop {
            let (sent, deadline) = (Instant::now(), confirmed + renewal);
            let attempt = tokio::select! {
                () = cx.cancelled() => break,
                attempt = timeout_at(deadline, self.attempt(&mut version)) => attempt,
            };
            match attempt {
                Ok(Ok(true)) => {
                    confirmed = sent;
                    if acting.is_none() {
                        info!(lease = self.name, identity = self.identity, "Lease acquired");
                        acting = Some(cx.start_with("holder", settings.clone(), act.clone()));
                    }
                }
                Ok(Ok(false)) if acting.is_some() => return Err(LeaseError::Lost(self.name.clone())),
                Ok(Ok(false)) => confirmed = sent,
                Ok(Err(error)) => {
                    warn!(lease = self.name, error = causes::of(&error), "cannot read or renew the Lease, will retry");
                }
                Err(_) => return Err(LeaseError::Expired(self.name.clone())),
            }
            if confirmed == sent {
                cx.healthy();
            }
            tokio::select! {
                () = cx.cancelled() => break,
                () = sleep_until((Instant::now() + retry).min(confirmed + renewal)) => {}
            }
        }
        // Children stop before their parent, so this replica no longer acts.
        if acting.is_some() && !matches!(timeout(RELEASE, self.release()).await, Ok(Ok(()))) {
            warn!(lease = self.name, "cannot release the Lease; another replica acquires it after its expiry");
        }
        Ok(())
    }

    /// Reads the Lease, and writes it if this replica holds it or may take it over. Returns whether this replica holds
    /// the Lease.
    async fn attempt(&self, version: &mut Option<Version>) -> Result<bool, kube::Error> {
        let lease = self.leases.get(&self.name).await?;
        let resource = lease.metadata.resource_version.clone();
        let read = version.take().filter(|known| known.resource == resource);
        let read = version.insert(read.unwrap_or_else(|| Version { resource, since: Instant::now() }));
        let spec = lease.spec.clone().unwrap_or_default();
        let now = MicroTime(Timestamp::now());
        let Some(spec) = renewed(spec, &self.identity, self.times.duration, read.since.elapsed(), now) else {
            return Ok(false);
        };
        self.write(Lease { spec: Some(spec), ..lease }).await
    }

    /// Gives up the Lease, so that another replica can take it over at once.
    async fn release(&self) -> Result<(), kube::Error> {
        let mut lease = self.leases.get(&self.name).await?;
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() == Some(&self.identity) {
            spec.holder_identity = None;
            self.write(lease).await?;
        }
        Ok(())
    }

    /// Writes the Lease. Returns `false` if the Lease has changed since it was read.
    async fn write(&self, lease: Lease) -> Result<bool, kube::Error> {
        match self.leases.replace(&self.name, &PostParams::default(), &lease).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.is_conflict() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The Lease with this holder, or `None` if another replica holds the Lease. `unchanged` is the time for which this
/// replica has read the same version.
fn renewed(
    spec: LeaseSpec,
    identity: &str,
    duration: Duration,
    unchanged: Duration,
    now: MicroTime,
) -> Option<LeaseSpec> {
    let holder = spec.holder_identity.as_deref().unwrap_or_default();
    let is_holder = holder == identity;
    // The holder may be a replica of another version, with another duration.
    let of_holder =
        Duration::from_secs(spec.lease_duration_seconds.and_then(|s| s.try_into().ok()).unwrap_or_default());
    if !is_holder && !holder.is_empty() && unchanged < duration.max(of_holder) {
        return None;
    }
    let transitions = spec.lease_transitions.unwrap_or_default();
    Some(LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: i32::try_from(duration.as_secs()).ok(),
        lease_transitions: Some(if is_holder { transitions } else { transitions.saturating_add(1) }),
        acquire_time: if is_holder { spec.acquire_time } else { Some(now.clone()) },
        renew_time: Some(now),
        ..spec
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};

    use http::{Method, Request, Response};
    use kube::Client;
    use kube::client::Body;
    use supervisor::Supervisor;
    use tower::service_fn;

    use super::*;

    type Journal = Arc<Mutex<Vec<(Instant, &'static str, bool)>>>;

    /// A client of an API server with one Lease. While the server is cut off, requests get no response.
    fn client(lease: &Arc<Mutex<Lease>>, is_cut: &Arc<AtomicBool>) -> Client {
        let (lease, is_cut) = (Arc::clone(lease), Arc::clone(is_cut));
        let service = service_fn(move |request: Request<Body>| {
            let (lease, is_cut) = (Arc::clone(&lease), Arc::clone(&is_cut));
            async move {
                if is_cut.load(Ordering::SeqCst) {
                    std::future::pending::<()>().await;
                }
                let is_write = request.method() == Method::PUT;
                let body = request.into_body().collect_bytes().await?;
                let mut lease = lease.lock().unwrap();
                if is_write {
                    let mut written: Lease = serde_json::from_slice(&body)?;
                    if written.metadata.resource_version != lease.metadata.resource_version {
                        let status =
                            r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Conflict","code":409}"#;
                        return Ok(Response::builder().status(409).body(Body::from(status.as_bytes().to_vec()))?);
                    }
                    let version: u64 = written.metadata.resource_version.as_deref().unwrap_or("0").parse()?;
                    written.metadata.resource_version = Some((version + 1).to_string());
                    *lease = written;
                }
                Ok::<_, BoxError>(Response::new(Body::from(serde_json::to_vec(&*lease)?)))
            }
        });
        Client::new(service, "default")
    }

    fn replica(name: &'static str, client: Client, journal: &Journal) -> Supervisor {
        let times = Times::default();
        let candidate =
            Candidate { leases: Api::default_namespaced(client), name: "l".into(), identity: name.into(), times };
        let journal = Arc::clone(journal);
        Supervisor::start(name, Settings::default(), move |cx| {
            let (candidate, journal) = (candidate.clone(), Arc::clone(&journal));
            async move {
                let act = move |cx: Context| {
                    let journal = Arc::clone(&journal);
                    async move {
                        journal.lock().unwrap().push((Instant::now(), name, true));
                        cx.cancelled().await;
                        journal.lock().unwrap().push((Instant::now(), name, false));
                        Ok::<_, BoxError>(())
                    }
                };
                candidate.run(&cx, act).await
            }
        })
    }

    async fn entry(journal: &Journal, number: usize) -> (Instant, &'static str, bool) {
        let entry = async {
            loop {
                if let Some(entry) = journal.lock().unwrap().get(number) {
                    return *entry;
                }
                sleep_until(Instant::now() + Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(60), entry).await.expect("an entry of the journal")
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_that_is_cut_off_stops_before_another_starts() {
        let mut lease = Lease::default();
        lease.metadata.resource_version = Some("1".into());
        let (lease, journal) = (Arc::new(Mutex::new(lease)), Journal::default());
        let [cut, never] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let one = replica("one", client(&lease, &cut), &journal);
        assert_eq!(entry(&journal, 0).await.1, "one");
        let two = replica("two", client(&lease, &never), &journal);
        two.handle().healthy().await.unwrap();

        cut.store(true, Ordering::SeqCst);
        let since = Instant::now();
        let (ended, name, is_start) = entry(&journal, 1).await;
        assert_eq!((name, is_start), ("one", false));
        assert!(ended - since <= Times::default().renewal);
        let (started, name, is_start) = entry(&journal, 2).await;
        assert_eq!((name, is_start), ("two", true));
        assert!(started - since >= Times::default().renewal && started > ended);

        // A replica that stops lets the other replica continue at once.
        cut.store(false, Ordering::SeqCst);
        one.handle().healthy().await.unwrap();
        assert_eq!(journal.lock().unwrap().len(), 3, "the former holder waits");
        let stopped = Instant::now();
        two.stop(Duration::from_secs(10)).await.unwrap();
        assert_eq!((entry(&journal, 3).await.1, entry(&journal, 4).await.1), ("two", "one"));
        assert!(entry(&journal, 4).await.0 - stopped <= Times::default().retry);
        one.stop(Duration::from_secs(10)).await.unwrap();
    }

    #[test]
    fn the_lease_is_taken_when_it_is_free_or_expired() {
        let now = || MicroTime(Timestamp::UNIX_EPOCH);
        let secs = Duration::from_secs;
        for (holder, of_holder, unchanged, takes) in [
            (None, None, 0, true),
            (Some(""), Some(15), 0, true),
            (Some("me"), Some(15), 0, true),
            (Some("other"), Some(15), 14, false),
            (Some("other"), Some(15), 15, true),
            (Some("other"), Some(60), 59, false),
            (Some("other"), Some(1), 14, false),
            (Some("other"), Some(-1), 14, false),
            (Some("other"), None, 15, true),
        ] {
            let spec = LeaseSpec {
                holder_identity: holder.map(str::to_owned),
                lease_duration_seconds: of_holder,
                lease_transitions: Some(4),
                ..LeaseSpec::default()
            };
            let written = renewed(spec, "me", secs(15), secs(unchanged), now());
            let case = format!("{holder:?} {of_holder:?} {unchanged}");
            assert_eq!(written.is_some(), takes, "{case}");
            let Some(written) = written else { continue };
            assert_eq!(written.holder_identity.as_deref(), Some("me"));
            assert_eq!((written.lease_duration_seconds, written.renew_time), (Some(15), Some(now())));
            let is_new = holder != Some("me");
            assert_eq!(written.lease_transitions, Some(if is_new { 5 } else { 4 }), "{case}");
            assert_eq!(written.acquire_time.is_some(), is_new, "{case}");
        }
    }

    #[test]
    fn a_holder_stops_before_its_lease_expires() {
        let Times { duration, renewal, retry } = Times::default();
        // The supervisor aborts a service at most one second after its deadline.
        assert!(renewal + (duration - renewal) / 2 + Duration::from_secs(1) < duration);
        assert!(retry * 3 < renewal);
    }
}
