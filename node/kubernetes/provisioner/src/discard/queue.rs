//! The order in which deleted volumes are discarded.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use volume::{Error, IdlePasses, VolumeId};

use crate::backoff::{delay, random};

/// Volumes in the trash whose PVs have ended, or may have ended. The sweep fills the queue again after a restart.
#[derive(Debug, Default)]
pub(crate) struct DiscardQueue {
    volumes: Mutex<BTreeMap<VolumeId, QueuedVolume>>,
    pub(crate) added: Notify,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct EndOfPv {
    pub(crate) before: Instant,
    pub(crate) after: Instant,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Pass {
    pub(crate) end: EndOfPv,
    pub(crate) is_first: bool,
    /// The last pass found only PVs that are being deleted, and the volume was not added since.
    pub(crate) is_retry: bool,
}

#[derive(Clone, Copy, Debug)]
struct QueuedVolume {
    end: EndOfPv,
    /// End of the last pass, or the time when the volume was added.
    queued: Instant,
    /// The volume was added after its last pass began: that pass may have used a list from before the end of the PV.
    is_added: bool,
    is_checked: bool,
    /// Idle passes since the last pause.
    idle: IdlePasses,
    /// Passes that found only PVs that are being deleted, since the volume was added.
    waits: u32,
    not_before: Instant,
}

impl DiscardQueue {
    pub(crate) fn add(&self, id: VolumeId, end: EndOfPv) {
        let now = Instant::now();
        let added = QueuedVolume {
            end,
            queued: now,
            is_added: true,
            is_checked: false,
            idle: IdlePasses::default(),
            waits: 0,
            not_before: now,
        };
        self.volumes()
            .entry(id)
            .and_modify(|volume| *volume = QueuedVolume { is_checked: volume.is_checked, idle: volume.idle, ..added })
            .or_insert(added);
        self.added.notify_one();
    }

    pub(crate) fn has(&self, id: &VolumeId) -> bool {
        self.volumes().contains_key(id)
    }

    /// Whether the first pass over the volume, which checks it, has begun.
    pub(crate) fn is_checked(&self, id: &VolumeId) -> bool {
        self.volumes().get(id).is_some_and(|volume| volume.is_checked)
    }

    pub(crate) fn requeue(&self, id: &VolumeId) {
        if let Some(volume) = self.volumes().get_mut(id) {
            volume.queued = Instant::now();
        }
    }

    /// Counts a pass that ended with this error. Returns whether the next pass needs no pause.
    pub(crate) fn continues(&self, id: &VolumeId, error: &Error) -> bool {
        self.volumes().get_mut(id).is_some_and(|volume| volume.idle.continues(error))
    }

    /// Delays the next pass, longer after each one, until the volume is added again.
    pub(crate) fn wait(&self, id: &VolumeId) {
        if let Some(volume) = self.volumes().get_mut(id).filter(|volume| !volume.is_added) {
            volume.queued = Instant::now();
            volume.waits = volume.waits.saturating_add(1);
            volume.not_before = volume.queued + delay(volume.waits, random());
        }
    }

    /// Removes the volume after its last pass, unless the volume was added during this pass.
    pub(crate) fn remove(&self, id: &VolumeId) {
        self.volumes().retain(|queued, volume| queued != id || volume.is_added);
    }

    /// Begins a pass. The caller has the volume's lock.
    pub(crate) fn begin(&self, id: &VolumeId) -> Option<Pass> {
        let mut volumes = self.volumes();
        let volume = volumes.get_mut(id)?;
        let pass = Pass { end: volume.end, is_first: !volume.is_checked, is_retry: volume.waits > 0 };
        (volume.is_added, volume.is_checked) = (false, true);
        Some(pass)
    }

    /// All volumes in the order of their next passes, with the remaining pauses.
    pub(crate) fn in_order(&self) -> Vec<(VolumeId, Option<Duration>)> {
        let mut volumes: Vec<_> = self.volumes().iter().map(|(id, volume)| (id.clone(), *volume)).collect();
        volumes.sort_by_key(|(_, volume)| volume.queued);
        let now = Instant::now();
        let pause = |moment: Instant| moment.checked_duration_since(now).filter(|left| !left.is_zero());
        volumes.into_iter().map(|(id, volume)| (id, pause(volume.not_before))).collect()
    }

    fn volumes(&self) -> MutexGuard<'_, BTreeMap<VolumeId, QueuedVolume>> {
        self.volumes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use units::Inodes;

    use super::*;
    use crate::fixture::id;

    const SECOND: Duration = Duration::from_secs(1);

    fn end() -> EndOfPv {
        EndOfPv { before: Instant::now(), after: Instant::now() }
    }

    fn begin(queue: &DiscardQueue, id: &VolumeId) -> Pass {
        queue.begin(id).expect("a volume in the queue")
    }

    #[tokio::test(start_paused = true)]
    async fn an_unfinished_removal_waits_behind_the_others() {
        let queue = DiscardQueue::default();
        let ids: Vec<VolumeId> = (1..=6).map(|number| id(&format!("pvc-{number}"))).collect();
        for id in &ids {
            queue.add(id.clone(), end());
            tokio::time::advance(SECOND).await;
        }
        let order = || queue.in_order().into_iter().map(|(id, _)| id).collect::<Vec<_>>();
        assert_eq!(order(), ids);
        for id in &ids[..4] {
            tokio::time::advance(SECOND).await;
            queue.requeue(id);
        }
        assert_eq!(order(), [&ids[4..], &ids[..4]].concat());
        let ends: Vec<_> = order().iter().map(|id| begin(&queue, id).end.after).collect();
        assert!(ends[0] > ends[2], "{ends:?}");
    }

    /// Regression: the end of the first pass removed the second request, and the data stayed until the next sweep.
    #[tokio::test(start_paused = true)]
    async fn a_volume_that_is_added_during_its_pass_gets_another_pass() {
        let (queue, id) = (DiscardQueue::default(), id("pvc-1"));
        queue.add(id.clone(), end());
        assert!(begin(&queue, &id).is_first);
        for finish in [DiscardQueue::wait, DiscardQueue::remove] {
            tokio::time::advance(SECOND).await;
            queue.add(id.clone(), end());
            finish(&queue, &id);
            assert_eq!(queue.in_order(), [(id.clone(), None)]);
            let Pass { end, is_first, is_retry } = begin(&queue, &id);
            assert_eq!((end.after, is_first, is_retry), (Instant::now(), false, false));
        }
        queue.remove(&id);
        assert!(queue.in_order().is_empty());
        assert!(queue.begin(&id).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_whose_pv_is_being_deleted_waits_longer_after_each_pass() {
        let (queue, id) = (DiscardQueue::default(), id("pvc-1"));
        queue.add(id.clone(), end());
        for attempt in 1..=12 {
            assert_eq!(queue.in_order(), [(id.clone(), None)]);
            assert_eq!(begin(&queue, &id).is_retry, attempt > 1);
            queue.wait(&id);
            let pause = queue.in_order()[0].1.expect("a pause");
            let longest = delay(attempt, 0);
            assert!((longest / 2..=longest).contains(&pause), "{attempt}: {pause:?}");
            tokio::time::advance(pause).await;
        }
        begin(&queue, &id);
        queue.wait(&id);
        // The PV has ended.
        queue.add(id.clone(), end());
        assert_eq!(queue.in_order(), [(id.clone(), None)]);
        assert!(!begin(&queue, &id).is_retry);
    }

    /// Regression: each pass over the names of one file was followed by a pause of up to five minutes. A tenant could
    /// delete volume after volume, and their space stayed reserved for days.
    #[tokio::test(start_paused = true)]
    async fn passes_that_free_no_inode_pause_rarely() {
        let (queue, id) = (DiscardQueue::default(), id("pvc-1"));
        let idle = Error::Unfinished { id: id.clone(), freed: Inodes::new(0), left: Inodes::new(1) };
        assert!(!queue.continues(&id, &idle), "it is not in the queue");
        queue.add(id.clone(), end());
        let pauses = (0..3 * IdlePasses::LIMIT).filter(|_| !queue.continues(&id, &idle)).count();
        assert_eq!(pauses, 3);
    }
}
