//! Counts and times operations on volumes.

use std::sync::Arc;
use std::time::Instant;

use dir::Ensured;
use tokio::sync::Notify;
use units::Bytes;
use volume::{
    DriftError, Drifted, Error, ListError, LookError, Record, Records, Request, Space, Strays, UsageError, VolumeId,
    VolumeUsage,
};

use crate::metrics::{Metrics, Operation, Outcome};
use crate::{Held, HeldError, Volumes};

pub(crate) struct Observed {
    volumes: Arc<dyn Volumes>,
    metrics: Metrics,
    changes: Arc<Notify>,
}

impl Observed {
    /// `changes` is notified after operations that may have changed the reserved space.
    pub(crate) fn new(volumes: Arc<dyn Volumes>, metrics: Metrics, changes: Arc<Notify>) -> Self {
        Self { volumes, metrics, changes }
    }

    fn change<T>(
        &self,
        operation: Operation,
        work: impl FnOnce(&dyn Volumes) -> Result<Ensured<T>, Error>,
    ) -> Result<Ensured<T>, Error> {
        let started = Instant::now();
        let done = work(&*self.volumes);
        let outcome = match &done {
            Ok(Ensured::Created(_)) => Outcome::Changed,
            Ok(Ensured::Unchanged(_)) => Outcome::Unchanged,
            Err(error) => error.into(),
        };
        self.metrics.operated(operation, outcome, started.elapsed());
        // A failed operation may have reserved space.
        if !matches!(done, Ok(Ensured::Unchanged(_))) {
            self.changes.notify_one();
        }
        done
    }
}

impl Volumes for Observed {
    fn provision(&self, id: &VolumeId, want: &Request) -> Result<Ensured<Record>, Error> {
        self.change(Operation::Provision, |volumes| volumes.provision(id, want))
    }

    fn announce(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.change(Operation::Announce, |volumes| volumes.announce(id))
    }

    fn expand(&self, id: &VolumeId, to: Bytes) -> Result<Ensured<Record>, Error> {
        self.change(Operation::Expand, |volumes| volumes.expand(id, to))
    }

    fn retire(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.change(Operation::Retire, |volumes| volumes.retire(id))
    }

    fn restore(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.change(Operation::Restore, |volumes| volumes.restore(id))
    }

    fn discard(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.change(Operation::Discard, |volumes| volumes.discard(id))
    }

    fn undo(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.change(Operation::Undo, |volumes| volumes.undo(id))
    }

    fn held(&self, id: &VolumeId) -> Result<Held, HeldError> {
        self.volumes.held(id)
    }

    fn records(&self) -> Result<Records, ListError> {
        self.volumes.records()
    }

    fn retired(&self) -> Result<Vec<VolumeId>, ListError> {
        self.volumes.retired()
    }

    fn strays(&self) -> Result<Strays, ListError> {
        self.volumes.strays()
    }

    fn drifted(&self, id: &VolumeId) -> Result<Drifted, DriftError> {
        self.volumes.drifted(id)
    }

    fn space(&self) -> Result<Space, LookError> {
        self.volumes.space()
    }

    fn usage(&self) -> Result<Vec<VolumeUsage>, UsageError> {
        self.volumes.usage()
    }
}
