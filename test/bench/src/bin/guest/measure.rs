//! The tracing side: all operations, in turn and again.

use std::io;
use std::path::Path;

use bench::{Operation, Sample, Subject, Word};
use ktest_support::{XfsDisk, block_stats};
use nix::errno::Errno;
use nix::sys::utsname::uname;
use serde::Serialize;

use crate::call::{self, CallError};
use crate::control::{self, ControlError};
use crate::loops::Attached;
use crate::publishes::Mounted;
use crate::tracer::{Seen, TraceError, trace};
use crate::{quota, volumes};

/// Why there are no samples, or not all.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MeasureError {
    #[error("the control experiment failed")]
    Control(#[from] ControlError),
    #[error("cannot read the kernel's release")]
    Kernel(#[source] Errno),
    #[error("cannot arrange {present} {things}")]
    Populate { present: u32, things: &'static str, source: CallError },
    #[error("cannot count the system calls of {operation} with {present} {}", operation.subject().things())]
    Trace { operation: Operation, present: u32, source: TraceError },
    #[error("cannot print a sample")]
    Print(#[source] io::Error),
}

/// Measures every operation `runs` times and prints the samples. Runs are interleaved, so that a drift affects all
/// alike.
pub(crate) fn all(runs: u32) -> Result<(), MeasureError> {
    control::check()?;
    let kernel = uname().map_err(MeasureError::Kernel)?;
    print(&Word::Kernel(kernel.release().to_string_lossy().into_owned()))?;
    let [few, many] = Subject::Fsquota.populations();
    let disks = [(arrange(few)?, few), (arrange(many)?, many)];
    let [few, many] = Subject::Volume.populations();
    let stores = [(provide(few)?, few), (provide(many)?, many)];
    // The kernel keeps detached devices: from here on their number is constant.
    let [_, most] = Subject::Loopdev.populations();
    devices(disks[0].0.path(), most + 1, || Ok(()))?;
    for run in 1..=runs {
        for operation in Subject::Fsquota.operations().chain(Subject::Dir.operations()) {
            for (disk, present) in &disks {
                one(operation, *present, run, disk)?;
            }
        }
        for operation in Subject::Volume.operations() {
            for (disk, present) in &stores {
                one(operation, *present, run, disk)?;
            }
        }
        for present in Subject::Snapshot.populations() {
            Subject::Snapshot.operations().try_for_each(|operation| one(operation, present, run, &stores[0].0))?;
        }
        // Mounts and devices are the machine's: few and many cannot be there at the same time.
        let disk = &disks[0].0;
        for present in Subject::Csi.populations() {
            devices(disk.path(), most.min(present), || {
                mounts(disk.path(), present, || {
                    Subject::Csi.operations().try_for_each(|operation| one(operation, present, run, disk))
                })
            })?;
        }
        for present in Subject::Loopdev.populations() {
            devices(disk.path(), present, || {
                Subject::Loopdev.operations().try_for_each(|operation| one(operation, present, run, disk))
            })?;
        }
    }
    Ok(())
}

fn devices(mount: &Path, present: u32, act: impl FnOnce() -> Result<(), MeasureError>) -> Result<(), MeasureError> {
    let failed = |source| MeasureError::Populate { present, things: Subject::Loopdev.things(), source };
    let attached = Attached::new(mount, present).map_err(failed)?;
    act()?;
    attached.detach().map_err(failed)
}

fn mounts(mount: &Path, present: u32, act: impl FnOnce() -> Result<(), MeasureError>) -> Result<(), MeasureError> {
    let failed = |source| MeasureError::Populate { present, things: Subject::Csi.things(), source };
    let mounted = Mounted::new(mount, present).map_err(failed)?;
    act()?;
    mounted.unmount().map_err(failed)
}

fn arrange(present: u32) -> Result<XfsDisk, MeasureError> {
    let disk = XfsDisk::with_project_quota();
    let things = Subject::Fsquota.things();
    quota::populate(disk.path(), present).map_err(|source| MeasureError::Populate { present, things, source })?;
    Ok(disk)
}

fn provide(present: u32) -> Result<XfsDisk, MeasureError> {
    let disk = XfsDisk::with_project_quota();
    let things = Subject::Volume.things();
    volumes::populate(disk.path(), present).map_err(|source| MeasureError::Populate { present, things, source })?;
    Ok(disk)
}

/// Serves so many claims at once, so often, and prints the samples.
pub(crate) fn burst(runs: u32, claims: u32) -> Result<(), MeasureError> {
    for run in 1..=runs {
        let mut samples = Vec::new();
        volumes::burst(run, claims, |sample| samples.push(sample)).map_err(|source| MeasureError::Populate {
            present: claims,
            things: Subject::Volume.things(),
            source,
        })?;
        samples.iter().try_for_each(print)?;
    }
    Ok(())
}

fn one(operation: Operation, present: u32, run: u32, disk: &XfsDisk) -> Result<(), MeasureError> {
    let arguments = [
        "call".into(),
        operation.to_string(),
        format!("--directory={}", disk.path().display()),
        format!("--present={present}"),
    ];
    let Seen { syscalls, observed: [before, after] } = trace(&arguments, || block_stats(disk.device()))
        .map_err(|source| MeasureError::Trace { operation, present, source })?;
    print(&Word::Sample(Sample { operation, present, run, syscalls, flushes: after.since(before).flushes }))
}

fn print(message: &impl Serialize) -> Result<(), MeasureError> {
    call::print(message).map_err(MeasureError::Print)
}
