//! Limits of the I/O of volumes. The record has them; the CSI plugin applies them to the devices of the volume.

use std::sync::{Arc, PoisonError, Weak};

use dir::Ensured;
use tracing::info;

use crate::error::{Error, refused};
use crate::index::Known;
use crate::plan::{Step, VolumeRefusal};
use crate::record::Record;
use crate::store::Store;
use crate::{IoLimits, IoRejection, IoThrottle, Mode, ThrottleError, VolumeId};

impl Store {
    /// Registers the part of the process that publishes volumes. Each call replaces the registration before it.
    pub fn throttle_by(&self, throttle: Weak<dyn IoThrottle>) {
        *self.throttle.lock().unwrap_or_else(PoisonError::into_inner) = Some(throttle);
    }

    pub(crate) fn check_io_limits(&self) -> Result<(), ThrottleError> {
        self.io_throttle()?.check().map_err(ThrottleError::Unsupported)
    }

    fn io_throttle(&self) -> Result<Arc<dyn IoThrottle>, ThrottleError> {
        let throttle = self.throttle.lock().unwrap_or_else(PoisonError::into_inner).clone();
        throttle.and_then(|throttle| throttle.upgrade()).ok_or(ThrottleError::None)
    }

    pub(crate) fn limit_io(&self, id: &VolumeId, limits: IoLimits) -> Result<Ensured<Record>, Error> {
        let Some(Known { record, .. }) = self.known(id)? else { return Err(Error::Unknown { id: id.clone() }) };
        match record.mode {
            Mode::Block { .. } => {}
            _ if limits.is_none() => return Ok(Ensured::Unchanged(record)),
            _ => return Err(refused(id)(VolumeRefusal::Io(IoRejection::Filesystem))),
        }
        let failed = |source| Error::Throttle { id: id.clone(), source };
        let throttle = self.io_throttle().map_err(failed)?;
        if !limits.is_none() {
            throttle.check().map_err(|source| failed(ThrottleError::Unsupported(source)))?;
        }
        let former = record.io;
        let record = Record { io: limits, ..record };
        if former != limits {
            let failed = |source| Error::Act { id: id.clone(), step: Step::WriteRecord, source };
            self.files.replace(id, &record).map_err(failed)?;
            self.index().change(id, |known| {
                known.record.io = limits;
                known.announcement = None;
            });
            info!(volume = %id, claim = %record.claim, io = %limits, former = %former, "I/O of the volume limited");
        }
        throttle.apply(id, limits).map_err(|source| failed(ThrottleError::Apply(source)))?;
        Ok(if former == limits { Ensured::Unchanged(record) } else { Ensured::Created(record) })
    }
}
