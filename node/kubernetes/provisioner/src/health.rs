//! Reports faults of the disk and of volumes as events. The kernel is the only source: health flags of XFS, failed
//! requests in its log, and the quotas.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use fsquota::Limits;
use k8s_openapi::api::core::v1::ObjectReference;
use supervisor::Context;
use tokio::task::JoinError;
use tokio::time::sleep;
use tracing::{error, warn};
use volume::{ALMOST_FULL, DiskFault, Mode, State, VolumeId, VolumeUsage};

use crate::context::{Provisioner, RunError};

const INTERVAL: Duration = Duration::from_mins(1);

/// Percentage below which a volume has recovered. A recovered volume is reported again when it is almost full the next
/// time.
const RECOVERED: u64 = 85;

/// Maximum number of findings that one check reports. The next checks report the others.
const MOST: usize = 20;

#[derive(Debug, Default)]
struct Reported {
    disk: BTreeMap<&'static str, u64>,
    full: BTreeSet<VolumeId>,
    changed: BTreeSet<VolumeId>,
}

#[derive(Debug, PartialEq)]
enum Finding<'a> {
    AlmostFull { volume: &'a VolumeUsage, percent: u64, claim: ObjectReference },
    LimitsChanged { volume: &'a VolumeUsage, limits: Limits },
}

/// Checks for faults until it is cancelled: at the start, once per interval, and when the PVs are listed, because the
/// PVs name the claims of full volumes. This check reports the faults of the start again: the API server may have been
/// unreachable or without the role of the node, and rejected events are not sent again.
pub(crate) async fn run(cx: Context, provisioner: Arc<Provisioner>) -> Result<(), RunError> {
    cx.healthy();
    tokio::select! {
        () = cx.cancelled() => Ok(()),
        failed = provisioner.watch_faults() => failed,
    }
}

impl Provisioner {
    async fn watch_faults(&self) -> Result<(), RunError> {
        let (mut reported, mut has_pvs) = (Reported::default(), false);
        loop {
            self.report_faults(&mut reported).await?;
            tokio::select! {
                () = self.pvs_listed(), if !has_pvs => (reported, has_pvs) = (Reported::default(), true),
                () = sleep(INTERVAL) => {}
            }
        }
    }

    async fn pvs_listed(&self) {
        self.index.listed().await;
        let pvs = self.watched_pvs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(pvs) = pvs
            && pvs.wait_until_ready().await.is_err()
        {
            warn!("watch of PVs ended, events about full volumes are delayed");
        }
    }

    async fn report_faults(&self, reported: &mut Reported) -> Result<(), JoinError> {
        let (faults, volumes) = self.on_disk(|store| (store.faults(), store.usage())).await?;
        match faults {
            Ok(faults) => {
                for fault in reported.disk_faults(&faults) {
                    error!(%fault, "data disk is faulty");
                    self.events.disk_fault(&self.node, &fault);
                }
            }
            Err(error) => {
                warn!(error = causes::of(&error), "faults of the disk not read, will retry");
            }
        }
        match volumes {
            Ok(volumes) => {
                for finding in reported.volume_faults(&volumes, |id| self.claim_of(id)) {
                    self.report_fault(finding);
                }
            }
            Err(error) => {
                warn!(error = causes::of(&error), "usage of volumes not read, will retry");
            }
        }
        Ok(())
    }

    pub(crate) fn claim_of(&self, id: &VolumeId) -> Option<ObjectReference> {
        self.watched_pv_of(id)?.spec.as_ref()?.claim_ref.clone()
    }

    fn report_fault(&self, finding: Finding<'_>) {
        match finding {
            Finding::AlmostFull { volume: VolumeUsage { id, record, used, .. }, percent, claim } => {
                warn!(volume = %id, claim = %record.claim, used = %used.bytes, limit = %record.size, percent, "volume is almost full");
                self.events.almost_full(claim, percent, record, *used);
            }
            Finding::LimitsChanged { volume: VolumeUsage { id, record, .. }, limits } => {
                error!(volume = %id, claim = %record.claim, found = ?limits, "limits of the volume were changed");
                self.events.limits_changed(&self.node, id, limits, record);
            }
        }
    }
}

impl Reported {
    /// Faults that are new, or whose count grew since the last check.
    fn disk_faults(&mut self, found: &[DiskFault]) -> Vec<DiskFault> {
        let is_new = |fault: &&DiskFault| self.disk.get(fault.kind()).is_none_or(|count| *count < fault.count());
        let new = found.iter().filter(is_new).cloned().collect();
        self.disk = found.iter().map(|fault| (fault.kind(), fault.count())).collect();
        new
    }

    /// Faults that have no event yet. Volumes without a claim are not reported as full.
    fn volume_faults<'a>(
        &mut self,
        found: &'a [VolumeUsage],
        claim_of: impl Fn(&VolumeId) -> Option<ObjectReference>,
    ) -> Vec<Finding<'a>> {
        let mut findings = Vec::new();
        let (mut full, mut changed) = (BTreeSet::new(), BTreeSet::new());
        for volume in found.iter().filter(|volume| volume.record.state == State::Announced) {
            let id = &volume.id;
            match percent(volume) {
                Some(RECOVERED..) if self.full.contains(id) => {
                    full.insert(id.clone());
                }
                Some(percent @ ALMOST_FULL..) if findings.len() < MOST => {
                    if let Some(claim) = claim_of(id) {
                        full.insert(id.clone());
                        findings.push(Finding::AlmostFull { volume, percent, claim });
                    }
                }
                Some(_) | None => {}
            }
            match volume.changed {
                Some(_) if self.changed.contains(id) => {
                    changed.insert(id.clone());
                }
                Some(limits) if findings.len() < MOST => {
                    changed.insert(id.clone());
                    findings.push(Finding::LimitsChanged { volume, limits });
                }
                Some(_) | None => {}
            }
        }
        (self.full, self.changed) = (full, changed);
        findings
    }
}

/// Usage of a filesystem volume. The usage of a block volume is in the file system on it.
fn percent(VolumeUsage { record, used, .. }: &VolumeUsage) -> Option<u64> {
    match record.mode {
        Mode::Filesystem { inodes } => used.percent_of(Limits { bytes: Some(record.size), inodes: Some(inodes) }),
        Mode::Block { .. } | Mode::Snapshot { .. } | Mode::SnapshotTree { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use std::iter;
    use std::num::NonZeroU64;

    use fsquota::{Fault, Usage};
    use kube::runtime::watcher::Event;
    use supervisor::Supervisor;
    use units::{Bytes, Inodes};

    use super::*;
    use crate::fixture;
    use crate::inventory::example;

    /// A volume of 1 GiB and 64 files.
    fn volume(number: usize, percent: u64) -> VolumeUsage {
        let used = Usage { bytes: Bytes::new(Bytes::GIB.get().div_ceil(100) * percent), inodes: Inodes::new(1) };
        let id = format!("pvc-{number:03}").parse().expect("an identifier");
        VolumeUsage { id, used, changed: None, ..example().volumes[0].clone() }
    }

    fn claim(_: &VolumeId) -> Option<ObjectReference> {
        Some(ObjectReference::default())
    }

    #[test]
    fn a_full_volume_is_reported_again_after_it_had_space() {
        let mut reported = Reported::default();
        let found = [50, 89, 90, 99, 86, 95, 84, 89, 90]
            .map(|percent| reported.volume_faults(&[volume(1, percent)], claim).len());
        assert_eq!(found, [0, 0, 1, 0, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn a_volume_without_free_files_is_full() {
        let found = [VolumeUsage { used: Usage { bytes: Bytes::ZERO, inodes: Inodes::new(63) }, ..volume(1, 0) }];
        let findings = Reported::default().volume_faults(&found, claim);
        assert!(matches!(findings[..], [Finding::AlmostFull { percent: 98, .. }]), "{findings:?}");
        assert_eq!(Reported::default().volume_faults(&found, |_| None), []);
    }

    #[test]
    fn many_volumes_are_reported_bit_by_bit() {
        let mut reported = Reported::default();
        let found: Vec<_> = (0..50).map(|number| volume(number, 95)).collect();
        let counts = [(); 4].map(|()| reported.volume_faults(&found, claim).len());
        assert_eq!(counts, [20, 20, 10, 0]);
    }

    #[test]
    fn changed_limits_are_reported_once() {
        let mut reported = Reported::default();
        let changed = [VolumeUsage { changed: Some(Limits::default()), ..volume(1, 0) }];
        let repaired = [volume(1, 0)];
        let found = [&changed, &changed, &repaired, &changed].map(|found| reported.volume_faults(found, claim).len());
        assert_eq!(found, [1, 0, 0, 1]);
    }

    #[test]
    fn faults_of_the_disk_are_reported_when_they_grow() {
        let mut reported = Reported::default();
        let failed = |count| DiskFault::Requests(NonZeroU64::new(count).expect("a count"));
        let shut_down = || DiskFault::FileSystem(Fault::ShutDown);
        assert_eq!(reported.disk_faults(&[]), []);
        assert_eq!(reported.disk_faults(&[failed(1)]), [failed(1)]);
        assert_eq!(reported.disk_faults(&[failed(1)]), []);
        assert_eq!(reported.disk_faults(&[shut_down(), failed(3)]), [shut_down(), failed(3)]);
        assert_eq!(reported.disk_faults(&[shut_down(), failed(3)]), []);
    }

    /// Regression: the node sent the event at its start, also if the API server did not accept it, and never again.
    #[tokio::test(start_paused = true)]
    async fn a_fault_at_the_start_is_reported_again_when_the_pvs_are_listed() {
        let (provisioner, disk) = fixture::unanswered(&[]);
        disk.set_faults(vec![DiskFault::Requests(NonZeroU64::MIN)]);
        let shared = Arc::clone(&provisioner);
        let tree = Supervisor::start("health", supervisor::Settings::default(), move |cx| run(cx, Arc::clone(&shared)));
        let events = || iter::from_fn(|| provisioner.events.queue.next()).map(|queued| queued.event.reason);
        sleep(INTERVAL * 2).await;
        assert_eq!(events().collect::<Vec<_>>(), ["DataDiskFault"]);
        provisioner.index.update(&Ok(Event::Init));
        provisioner.index.update(&Ok(Event::InitDone));
        sleep(INTERVAL * 2).await;
        assert_eq!(events().collect::<Vec<_>>(), ["DataDiskFault"]);
        tree.stop(INTERVAL).await.expect("it ends");
    }
}
