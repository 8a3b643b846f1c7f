//! The tracing process: measures all operations in each run.

use std::path::Path;

use bench::{DiskWork, Operation, Sample, Subject, Word, print};
use ktest_support::{BlockStats, XfsDisk, block_stats};
use nix::sys::utsname::uname;

use crate::call::CallError;
use crate::control;
use crate::loops::Attached;
use crate::publishes::Mounted;
use crate::tracer::{Seen, trace};
use crate::{quota, snapshots, volumes};

/// Measures every operation `runs` times, optionally with times, and prints the samples. Runs are interleaved, so that
/// a drift affects all operations alike.
pub(crate) fn all(runs: u32, times: bool) -> Result<(), CallError> {
    control::check()?;
    let kernel = uname()?;
    print(&Word::Kernel(kernel.release().to_string_lossy().into_owned()))?;
    let [few, many] = Subject::Fsquota.populations();
    let disks = [(populated(quota::populate, few)?, few), (populated(quota::populate, many)?, many)];
    quota::check(disks[0].0.path())?;
    let [few, many] = Subject::Volume.populations();
    let stores = [(populated(volumes::populate, few)?, few), (populated(volumes::populate, many)?, many)];
    // The kernel keeps detached devices, so from here on their number is constant.
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
        if times {
            for extents in Subject::Snapshot.populations() {
                let samples = snapshots::time(stores[0].0.path(), extents, run)?;
                samples.into_iter().map(Word::Time).try_for_each(|word| print(&word))?;
            }
        }
        // Mounts and devices exist once per machine, so few and many of them cannot exist at the same time.
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

fn devices(mount: &Path, present: u32, act: impl FnOnce() -> Result<(), CallError>) -> Result<(), CallError> {
    let attached = Attached::new(mount, present)?;
    act()?;
    attached.detach()
}

fn mounts(mount: &Path, present: u32, act: impl FnOnce() -> Result<(), CallError>) -> Result<(), CallError> {
    let mounted = Mounted::new(mount, present)?;
    act()?;
    mounted.unmount()
}

fn populated(populate: fn(&Path, u32) -> Result<(), CallError>, present: u32) -> Result<XfsDisk, CallError> {
    let disk = XfsDisk::with_project_quota();
    populate(disk.path(), present)?;
    Ok(disk)
}

/// Serves `claims` claims at once, `runs` times, and prints the samples.
pub(crate) fn burst(runs: u32, claims: u32) -> Result<(), CallError> {
    (1..=runs).try_for_each(|run| Ok(print(&volumes::burst(run, claims)?)?))
}

fn one(operation: Operation, present: u32, run: u32, disk: &XfsDisk) -> Result<(), CallError> {
    let arguments = ["call".into(), operation.to_string(), disk.path().display().to_string(), present.to_string()];
    let Seen { syscalls, observed: [before, after] } =
        trace(&arguments, || block_stats(disk.device())).map_err(|error| {
            let (things, causes) = (operation.subject().things(), causes::lines(&*error));
            format!("cannot count the system calls of {operation} with {present} {things}: {causes}")
        })?;
    let BlockStats { flushes, writes, written_bytes, read_ns, write_ns, flush_ns, .. } = after.since(before);
    let disk = DiskWork { flushes, writes, written_bytes, time_ns: read_ns + write_ns + flush_ns, flush_ns };
    print(&Word::Sample(Sample { operation, present, run, syscalls, disk }))?;
    Ok(())
}
