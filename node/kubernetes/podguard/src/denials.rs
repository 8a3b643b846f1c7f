//! Denied calls of containers, reported at most once a minute for each container.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lsm::{Operation, Recent};
use provisioner::Notice;
use tracing::warn;

use crate::container::Container;

/// Minimum time between two reports about one container.
const PAUSE: Duration = Duration::from_secs(60);
/// Maximum number of recorded containers. Further containers are not reported.
const RECORDED: usize = 1024;

#[derive(Debug)]
pub(crate) struct Denials {
    /// The kubelet's directory with links to the logs of containers.
    links: PathBuf,
    reported: BTreeMap<Container, Instant>,
}

impl Denials {
    pub(crate) const fn new(links: PathBuf) -> Self {
        Self { links, reported: BTreeMap::new() }
    }

    /// Logs denied calls, and returns the notice if it is due. `cgroup` is the directory of the calling task's cgroup,
    /// if the cgroup still exists.
    pub(crate) fn notice(&mut self, denied: &Recent, cgroup: Option<&Path>, now: Instant) -> Option<Notice> {
        let Recent { operation, count, .. } = *denied;
        let container = cgroup.and_then(Container::of_cgroup);
        let is_due = container.as_ref().is_some_and(|container| self.is_due(container, now));
        if container.is_some() && !is_due {
            return None;
        }
        let found = container.and_then(|container| match container.names(&self.links) {
            Ok(names) => names,
            Err(error) => {
                warn!(path = %self.links.display(), %error, "cannot look up the pod whose calls were denied");
                None
            }
        });
        match found {
            Some((pod, container)) => {
                warn!(%operation, count, %pod, container, "calls of a container were denied");
                Some(Notice::Denied { pod, container, operation: operation.name(), call: call(operation) })
            }
            None => {
                let cgroup = cgroup.unwrap_or_else(|| Path::new("of a container that has ended"));
                warn!(%operation, count, cgroup = %cgroup.display(), "calls of a pod were denied");
                None
            }
        }
    }

    /// Whether a report about the container is due: none in the last minute. Records a report now.
    fn is_due(&mut self, container: &Container, now: Instant) -> bool {
        self.reported.retain(|_, at| now.duration_since(*at) < PAUSE);
        let is_due = !self.reported.contains_key(container) && self.reported.len() < RECORDED;
        if is_due {
            self.reported.insert(container.clone(), now);
        }
        is_due
    }
}

const fn call(operation: Operation) -> &'static str {
    match operation {
        Operation::Project => "a change of a project ID or of the inherit flag (FS_IOC_FSSETXATTR, FS_IOC_SETFLAGS)",
        Operation::Quota => "a change of quotas (quotactl)",
        Operation::Loop => "a change of a loop device (LOOP_* ioctl)",
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn denied(operation: Operation) -> Recent {
        let cgroup = lsm::CgroupId::from(7);
        Recent { cgroup, operation, count: 3 }
    }

    fn path(container: usize) -> PathBuf {
        format!("/sys/fs/cgroup/kubepods/pod0a-0b/{container:x}").into()
    }

    #[test]
    fn the_first_denial_of_a_container_in_a_minute_is_a_notice() {
        let links = tempfile::tempdir().unwrap();
        for id in ["a", "b"] {
            fs::write(links.path().join(format!("tenant_team_main-{id}.log")), "").unwrap();
        }
        let mut denials = Denials::new(links.path().into());
        let start = Instant::now();
        let mut notice =
            |operation, cgroup: usize, after| denials.notice(&denied(operation), Some(&path(cgroup)), start + after);
        let Some(Notice::Denied { pod, container, operation, call }) = notice(Operation::Project, 0xa, Duration::ZERO)
        else {
            panic!("no notice")
        };
        assert_eq!((pod.to_string(), &*pod.uid, &*container), ("team/tenant".to_owned(), "0a-0b", "main"));
        assert_eq!(operation, "project");
        assert!(call.contains("project ID"));
        assert_eq!(notice(Operation::Loop, 0xa, Duration::from_secs(59)), None, "the same container");
        assert!(notice(Operation::Loop, 0xb, Duration::from_secs(59)).is_some(), "another container");
        assert!(notice(Operation::Loop, 0xa, Duration::from_secs(60)).is_some(), "a minute later");
    }

    #[test]
    fn without_a_pod_there_is_no_notice() {
        let links = tempfile::tempdir().unwrap();
        let mut denials = Denials::new(links.path().into());
        let now = Instant::now();
        for cgroup in [None, Some(Path::new("/sys/fs/cgroup/kubepods/self-test")), Some(&*path(1))] {
            assert_eq!(denials.notice(&denied(Operation::Quota), cgroup, now), None);
        }
        let mut denials = Denials::new("/nonexistent".into());
        assert_eq!(denials.notice(&denied(Operation::Quota), Some(&path(1)), now), None);
    }

    #[test]
    fn a_limited_number_of_containers_is_recorded() {
        let mut denials = Denials::new("/nonexistent".into());
        let start = Instant::now();
        let container = |number| Container::of_cgroup(&path(number)).unwrap();
        assert!((0..RECORDED).all(|number| denials.is_due(&container(number), start)));
        assert!(!denials.is_due(&container(RECORDED), start));
        assert_eq!(denials.reported.len(), RECORDED);
        assert!(denials.is_due(&container(RECORDED), start + PAUSE));
        assert_eq!(denials.reported.len(), 1);
    }
}
