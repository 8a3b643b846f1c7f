//! [`Server`]: a provisioner in a separate process. The benchmark counts the responses that it gets from the API
//! server.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::mem;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bench::{Progress, Until, request_name};
use envtest::{PATIENCE, Seen, eventually};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::Failure;

/// A provisioner without a request for this long has finished its work. It writes events last.
const QUIET: Duration = Duration::from_secs(2);

pub(crate) struct Server {
    child: Child,
    log: Arc<Mutex<Log>>,
}

/// Counts of the responses since the start, or since the last [`Server::take`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    pub(crate) requests: BTreeMap<String, u64>,
    pub(crate) pvs_created: u32,
    pub(crate) pvs_deleted: u32,
    /// Number of requests that name each PV.
    pub(crate) of_pvs: BTreeMap<String, u64>,
    first_write: Option<Instant>,
    last_pv: Option<Instant>,
    last_write: Option<Instant>,
    last_request: Option<Instant>,
}

impl Server {
    /// Starts the process. It ends when the value is dropped.
    pub(crate) fn start(mut command: Command) -> Result<Self, Failure> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let log = Arc::<Mutex<Log>>::default();
        if let Some(stdout) = child.stdout.take() {
            let log = Arc::clone(&log);
            // The task ends with the process.
            tokio::spawn(async move {
                let mut lines = BufReader::new(stdout).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    lock(&log).add(&line, Instant::now());
                }
            });
        }
        Ok(Self { child, log })
    }

    /// Waits until the count of the log reaches `wanted`, and then until no request has arrived for [`QUIET`].
    pub(crate) async fn until(
        &mut self,
        progress: &Progress,
        what: &str,
        limit: Duration,
        count: impl Fn(&Log) -> u32,
        wanted: u32,
    ) -> Result<(), Failure> {
        let Self { child, log } = self;
        let reached = eventually(limit, what, async || {
            let log = lock(log);
            let count = count(&log);
            progress.show(&format!("{what}: {count} of {wanted}"));
            let quiet = log.last_request.is_some_and(|last| last.elapsed() >= QUIET);
            let seen =
                if count >= wanted && quiet { Seen::Done(()) } else { Seen::NotYet(format!("{count} of {wanted}")) };
            Ok::<_, Infallible>(seen)
        });
        tokio::select! {
            reached = reached => Ok(reached?),
            ended = child.wait() => Err(format!("{what}: the provisioner ended with {}", ended?).into()),
        }
    }

    /// Waits until no request has arrived for [`QUIET`].
    pub(crate) async fn quiet(&mut self, progress: &Progress, what: &str) -> Result<(), Failure> {
        self.until(progress, what, PATIENCE, |_| 0, 0).await
    }

    /// Returns the log and resets its counts.
    pub(crate) fn take(&self) -> Log {
        let last_request = lock(&self.log).last_request;
        mem::replace(&mut *lock(&self.log), Log { last_request, ..Log::default() })
    }

    pub(crate) fn memory(&self) -> Result<u64, Failure> {
        Ok(bench::memory(self.child.id().ok_or("the provisioner has ended")?)?)
    }

    pub(crate) async fn stop(mut self) -> Result<(), Failure> {
        Ok(self.child.kill().await?)
    }
}

impl Log {
    /// Milliseconds from the first write to each recorded end. `last_bound` is the time at which the last claim became
    /// bound.
    pub(crate) fn times(&self, last_bound: Option<Instant>) -> BTreeMap<Until, u64> {
        let milliseconds = |end: Instant| {
            let time = end.saturating_duration_since(self.first_write?).as_millis();
            u64::try_from(time).ok()
        };
        let ends = [(Until::LastPv, self.last_pv), (Until::LastWrite, self.last_write), (Until::LastBound, last_bound)];
        ends.into_iter().filter_map(|(until, end)| Some((until, milliseconds(end?)?))).collect()
    }

    fn add(&mut self, line: &str, now: Instant) {
        let mut parts = line.split(' ');
        let (Some(method), Some(target), Some(status)) = (parts.next(), parts.next(), parts.next()) else { return };
        let name = request_name(method, target);
        let done = status.starts_with('2');
        let path = target.split_once('?').map_or(target, |(path, _)| path);
        if let Some((_, pv)) = path.split_once("/persistentvolumes/") {
            *self.of_pvs.entry(pv.to_owned()).or_default() += 1;
        }
        // The API server may end a watch at any time, and the client starts it again.
        if !name.starts_with("watch ") {
            self.last_request = Some(now);
        }
        match name.as_str() {
            "create persistentvolumes" if done => {
                self.pvs_created += 1;
                self.last_pv = Some(now);
                self.wrote(now);
            }
            "delete persistentvolumes" if done => self.pvs_deleted += 1,
            "create events" | "patch events" => self.wrote(now),
            _ => {}
        }
        *self.requests.entry(name).or_default() += 1;
    }

    fn wrote(&mut self, now: Instant) {
        self.first_write.get_or_insert(now);
        self.last_write = Some(now);
    }
}

fn lock(log: &Mutex<Log>) -> MutexGuard<'_, Log> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_and_timed() {
        let (mut log, start) = (Log::default(), Instant::now());
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        for (time, line) in [
            (0, "GET /api/v1/persistentvolumes?limit=500 200"),
            (10, "POST /api/v1/namespaces/a/events 201"),
            (30, "POST /api/v1/persistentvolumes 201"),
            (40, "POST /api/v1/persistentvolumes 409"),
            (50, "POST /api/v1/persistentvolumes 201"),
            (60, "POST /apis/events.k8s.io/v1/namespaces/a/events 201"),
            (70, "PATCH /api/v1/persistentvolumes/pvc-1?fieldManager=granary 200"),
            (90, "GET /api/v1/persistentvolumes?watch=true 200"),
            (95, "no answer"),
        ] {
            log.add(line, at(time));
        }
        assert_eq!(log.pvs_created, 2);
        let own = [(Until::LastPv, 40), (Until::LastWrite, 50)];
        assert_eq!(log.times(None), BTreeMap::from(own));
        assert_eq!(log.times(Some(at(80))), own.into_iter().chain([(Until::LastBound, 70)]).collect());
        assert_eq!(log.last_request, Some(at(70)));
        assert_eq!(log.requests["create persistentvolumes"], 3);
        assert_eq!(log.of_pvs, BTreeMap::from([("pvc-1".to_owned(), 1)]));
    }
}
