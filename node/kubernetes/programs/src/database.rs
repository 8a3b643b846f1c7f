//! Recovery of etcd from a full database.
//!
//! etcd raises the alarm `NOSPACE` when a write does not fit into its quota. The alarm outlives restarts. While it is
//! set, etcd rejects all requests that write a value, even if the database is smaller by then. The API server's own
//! compaction is such a request: it records its revision. An administrator could reach etcd only from a pod, and no pod
//! can be created. Therefore the node compacts and defragments the database, and disarms the alarm (ADR 0054).

mod member;
mod plan;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use supervisor::{BoxError, Context};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};
use tracing::{error, info, warn};
use units::Bytes;

use self::member::{Member, Status};
use self::plan::{Database, Defragmented, Outcome, PAUSE};
use crate::ready::ProbeFailure;
use crate::{Paths, etcd, headroom, ready};

/// Interval of the checks of etcd's health, each with one request on loopback.
const INTERVAL: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    #[error("cannot use the etcd client certificate in {pki}")]
    Certificate { pki: PathBuf, source: BoxError },
    #[error("cannot connect to etcd")]
    Connection(#[source] tonic::transport::Error),
    #[error("etcd call {call} failed: {status}")]
    Call { call: &'static str, status: Box<tonic::Status> },
    #[error("cannot read the free space of {directory}")]
    Space { directory: PathBuf, source: io::Error },
}

#[derive(Debug, Default)]
struct Progress {
    /// End of the last defragmentation, and the size of the data at that time.
    defragmented: Option<(Instant, Bytes)>,
    logged: Option<(Outcome, Instant)>,
}

/// Makes etcd accept writes again after its database was full. The service is healthy after the first check, and
/// stalled while the database stays full. It starts when etcd is ready, and continues when etcd starts again.
pub async fn recover(cx: Context, paths: Paths) -> Result<(), DatabaseError> {
    let mut progress = Progress::default();
    loop {
        let has_progress = |outcome: &Result<Option<Outcome>, _>| !matches!(outcome, Err(_) | Ok(Some(Outcome::Full)));
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            outcome = cx.round(round(&paths, &mut progress), has_progress) => outcome?,
        };
        cx.healthy();
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            () = sleep(INTERVAL) => {}
        }
    }
}

/// Checks etcd once, and recovers a full database. Returns `None` if etcd has no alarm.
async fn round(paths: &Paths, progress: &mut Progress) -> Result<Option<Outcome>, DatabaseError> {
    match ready::http_now(etcd::HEALTH_PORT, etcd::HEALTH).await {
        // The health may be bad for other reasons than this alarm.
        Err(ProbeFailure::Answer(_)) => {}
        // Without a response, etcd does not run, which the service of etcd reports.
        Ok(()) | Err(_) => return Ok(None),
    }
    let mut member = Member::connect(&paths.pki).await?;
    let (revision, alarms) = member.alarms().await?;
    if alarms.is_empty() {
        return Ok(None);
    }
    member.compact(revision).await?;
    let mut database = look(&mut member, paths).await?;
    if plan::needs_defragmentation(&database, progress.last()) {
        let Database { size, in_use, .. } = database;
        info!(%size, %in_use, "defragmenting the full database of etcd, etcd is unavailable during this time");
        // Even after an error, some space for writes may be left.
        if let Err(error) = member.defragment().await {
            warn!(%error, "cannot defragment the database of etcd, will retry");
        }
        database = look(&mut member, paths).await?;
        progress.defragmented = Some((Instant::now(), database.in_use));
    }
    let outcome = plan::outcome(&database);
    match outcome {
        Outcome::Recovered | Outcome::NearlyFull => member.disarm(alarms).await?,
        Outcome::Full => {}
    }
    progress.report(outcome, &database);
    Ok(Some(outcome))
}

async fn look(member: &mut Member, paths: &Paths) -> Result<Database, DatabaseError> {
    let Status { size, in_use, quota } = member.status().await?;
    let directory = paths.etcd.clone();
    let available = spawn_blocking(move || headroom::available(&directory)).await;
    let available = available.unwrap_or_else(|error| Err(io::Error::other(error)));
    let available = available.map_err(|source| DatabaseError::Space { directory: paths.etcd.clone(), source })?;
    Ok(Database { size, in_use, quota, available })
}

impl Progress {
    fn last(&self) -> Option<Defragmented> {
        self.defragmented.map(|(at, in_use)| Defragmented { ago: at.elapsed(), in_use })
    }

    /// Logs an outcome once, and again after a pause.
    fn report(&mut self, outcome: Outcome, database: &Database) {
        if self.logged.is_some_and(|(last, at)| last == outcome && at.elapsed() < PAUSE) {
            return;
        }
        self.logged = Some((outcome, Instant::now()));
        let Database { size, in_use, quota, available } = database;
        match outcome {
            Outcome::Recovered => {
                warn!(%size, limit = %quota, "database of etcd was full; compacted, and its alarm disarmed");
            }
            Outcome::NearlyFull => error!(
                %size, %in_use, limit = %quota, %available,
                "database of etcd is nearly full, its alarm is disarmed each time: delete objects, or enlarge the disk"
            ),
            Outcome::Full => error!(
                %size, %in_use, limit = %quota, %available,
                "database of etcd stays full after its compaction, so that no object can be created or changed: \
                 delete objects, or enlarge the disk"
            ),
        }
    }
}
