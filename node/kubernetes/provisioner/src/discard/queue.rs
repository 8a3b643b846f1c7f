//! The order in which deleted volumes are discarded.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;
use volume::{Error, IdlePasses, VolumeId};

/// Volumes in the trash without a PV. The sweep fills the queue again after a restart.
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
struct QueuedVolume {
    end: EndOfPv,
    /// End of the last pass, or the time when the volume was added.
    queued: Instant,
    is_checked: bool,
    /// Idle passes since the last pause.
    idle: IdlePasses,
}

impl DiscardQueue {
    pub(crate) fn add(&self, id: VolumeId, end: EndOfPv) {
        let queued = Instant::now();
        self.volumes()
            .entry(id)
            .and_modify(|volume| *volume = QueuedVolume { end, queued, ..*volume })
            .or_insert(QueuedVolume { end, queued, is_checked: false, idle: IdlePasses::default() });
        self.added.notify_one();
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

    pub(crate) fn remove(&self, id: &VolumeId) {
        self.volumes().remove(id);
    }

    pub(crate) fn begin(&self, id: &VolumeId) -> bool {
        self.volumes().get_mut(id).is_some_and(|volume| !std::mem::replace(&mut volume.is_checked, true))
    }

    pub(crate) fn in_order(&self) -> Vec<(VolumeId, EndOfPv)> {
        let mut volumes: Vec<_> = self.volumes().iter().map(|(id, volume)| (id.clone(), *volume)).collect();
        volumes.sort_by_key(|(_, volume)| volume.queued);
        volumes.into_iter().map(|(id, volume)| (id, volume.end)).collect()
    }

    fn volumes(&self) -> MutexGuard<'_, BTreeMap<VolumeId, QueuedVolume>> {
        self.volumes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use units::Inodes;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn an_unfinished_removal_waits_behind_the_others() {
        let queue = DiscardQueue::default();
        let ids: Vec<VolumeId> =
            (1..=6).map(|number| format!("pvc-{number}").parse().expect("an identifier")).collect();
        for id in &ids {
            queue.add(id.clone(), EndOfPv { before: Instant::now(), after: Instant::now() });
            tokio::time::advance(SECOND).await;
        }
        let order = || queue.in_order().into_iter().map(|(id, _)| id).collect::<Vec<_>>();
        assert_eq!(order(), ids);
        for id in &ids[..4] {
            tokio::time::advance(SECOND).await;
            queue.requeue(id);
        }
        assert_eq!(order(), [&ids[4..], &ids[..4]].concat());
        let ends: Vec<_> = queue.in_order().into_iter().map(|(_, end)| end.after).collect();
        assert!(ends[0] > ends[2], "{ends:?}");
    }

    /// Regression: each pass over the names of one file was followed by a pause of up to five minutes. A tenant could
    /// delete volume after volume, and their space stayed reserved for days.
    #[tokio::test(start_paused = true)]
    async fn passes_that_free_no_inode_pause_rarely() {
        let (queue, id): (_, VolumeId) = (DiscardQueue::default(), "pvc-1".parse().expect("an identifier"));
        let idle = Error::Unfinished { id: id.clone(), freed: Inodes::new(0), left: Inodes::new(1) };
        assert!(!queue.continues(&id, &idle), "it is not in the queue");
        queue.add(id.clone(), EndOfPv { before: Instant::now(), after: Instant::now() });
        let pauses = (0..3 * IdlePasses::LIMIT).filter(|_| !queue.continues(&id, &idle)).count();
        assert_eq!(pauses, 3);
    }
}
