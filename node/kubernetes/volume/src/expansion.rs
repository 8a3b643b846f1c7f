//! Expands volumes.

use dir::Ensured;
use tracing::info;
use units::Bytes;

use crate::disk_state::DiskState;
use crate::error::{Error, refused};
use crate::execution::Execution;
use crate::plan::{self, Step, VolumeRefusal};
use crate::record::Record;
use crate::store::{Store, place};
use crate::{BLOCK, VolumeId};

impl Store {
    pub(crate) fn expand(&self, id: &VolumeId, to: Bytes) -> Result<Ensured<Record>, Error> {
        let too_large = || Error::TooLarge { id: id.clone(), wanted: to };
        let size = to.round_up::<BLOCK>().filter(|size| i64::try_from(size.get()).is_ok()).ok_or_else(too_large)?;
        let (known, seen) = self.look(id)?;
        let Some(known) = known else {
            return Err(if seen == DiskState::NOTHING {
                Error::Unknown { id: id.clone() }
            } else {
                refused(id)(VolumeRefusal::Foreign)
            });
        };
        let steps = plan::expand(size, &seen).map_err(refused(id))?;
        let former = known.record.clone();
        let grown = steps.iter().find_map(|step| match step {
            Step::RaiseRecord(size) => Some(former.grown(*size)),
            _ => None,
        });
        if let Some(grown) = &grown {
            if grown.limits().bytes > Some(fsquota::Limits::MAX_BYTES) {
                return Err(too_large());
            }
            let more = grown.reserved().saturating_sub(former.reserved());
            self.reserve(id, more, |index, _, disk| index.ledger.raise(id, grown.reserved(), disk))?;
        }
        let mut execution = Execution::new(self, id, None, Some(known));
        match execution.run(&steps) {
            Ok(()) => {
                let record = execution.into_record()?;
                if grown.is_none() {
                    return Ok(Ensured::Unchanged(record));
                }
                let Record { claim, size, .. } = &record;
                info!(volume = %id, %claim, limit = %size, former = %former.size, "volume expanded");
                Ok(Ensured::Created(record))
            }
            Err(error) => Err(self.after_failed_growth(id, &former, grown.as_ref(), error)),
        }
    }

    /// Restores limits and reservation after an expansion that failed because the disk is full. An image has its full
    /// or its former size. The former size is larger than that of the record if an earlier call could not write the
    /// record.
    fn after_failed_growth(&self, id: &VolumeId, former: &Record, grown: Option<&Record>, error: Error) -> Error {
        let (Error::Act { step, source, .. }, Some(grown)) = (&error, grown) else { return error };
        let unchanged = match step {
            Step::RaiseLimits(_) | Step::GrowImage(_) => true,
            Step::RaiseRecord(_) => !former.mode.is_block(),
            _ => false,
        };
        let (full, too_large) = (source.is_full(), source.is_too_large());
        // Otherwise the next call continues, and the reservation covers space that may be allocated already.
        if !unchanged || !(full || too_large) {
            return error;
        }
        let kept = match place(&self.live, id, former.mode.is_block()) {
            Ok(live) => former.grown(live.image().map_or(former.size, |image| image.max(former.size))),
            Err(source) => return Error::Look { id: id.clone(), source },
        };
        if let Err(source) = self.set_limits(&kept, self.limits(id, &kept)) {
            return Error::Act { id: id.clone(), step: *step, source: source.into() };
        }
        self.index().ledger.note(id.clone(), kept.reserved());
        if too_large {
            return Error::TooLarge { id: id.clone(), wanted: grown.size };
        }
        self.full(id, grown.reserved().saturating_sub(kept.reserved()))
    }
}
