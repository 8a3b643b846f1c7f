//! A disk that logs its writes.

use std::fs::{self, File};
use std::path::Path;

use nix::fcntl::{FallocateFlags, fallocate};

use super::Replay;
use super::device_mapper::{self, Mapped};
use crate::disk::Disk;
use crate::format::format;
use crate::mounted::Mounted;

/// Chunk size of snapshots in sectors. Recovery of an XFS log clears 2 MiB of it, so large chunks are cheaper.
const CHUNK: u32 = 256;

/// A disk whose writes, flushes and discards are logged in order, for a [`Replay`].
///
/// It takes three scratch disks of one size: the initial content, the data, and the log of all writes. It needs the
/// modules `dm_delay`, `dm_log_writes` and `dm_snapshot`. The device has a volatile write cache, so file systems flush
/// it: a cut keeps for certain only flushed data and writes with FUA.
///
/// dm-log-writes logs a write at the end of the first flush that begins after it. If a later flush ends earlier, the
/// write is missing at a cut between the two ends, although the later flush made it durable, too. Therefore one thread of
/// dm-delay sends all flushes to dm-log-writes, and each disk has one queue, in which the kernel flushes in order.
#[derive(Debug)]
pub struct Recorder {
    // Fields are dropped in this order, which is the order in which the devices must be removed.
    ordered: Mapped,
    log_writes: Mapped,
    written: Mapped,
    disks: Disks,
}

/// The disks of a recording, and then of its replay.
#[derive(Debug)]
pub(crate) struct Disks {
    pub(crate) base: Disk,
    pub(crate) copies: Disk,
    pub(crate) log: Disk,
    /// Whether `base` contained only zeros when the recording began.
    pub(crate) empty: bool,
}

impl Disks {
    /// Creates a snapshot of `base`. Writes to the snapshot are lost when it is removed.
    pub(crate) fn snapshot(&self) -> Mapped {
        snapshot(self.base.path(), self.copies.path(), device_mapper::length(self.base.path()))
    }
}

/// Maps a snapshot of `length` bytes of `base`, which stores written data in `copies`.
pub(super) fn snapshot(base: &Path, copies: &Path, length: u64) -> Mapped {
    Mapped::new("snapshot", length, &format!("{} {} N {CHUNK}", base.display(), copies.display()))
}

impl Recorder {
    /// Records a new XFS. The file system is formatted before the recording starts, so no cut is within `mkfs.xfs`.
    /// Waits for three free disks.
    pub fn on_xfs() -> Self {
        let disks = take();
        format(disks.base.path());
        Self::start(disks)
    }

    /// Records a disk of zeros. Waits for three free disks.
    pub fn on_empty_disk() -> Self {
        let disks = Disks { empty: true, ..take() };
        zero(disks.base.path());
        Self::start(disks)
    }

    fn start(disks: Disks) -> Self {
        let written = disks.snapshot();
        let length = device_mapper::length(written.path());
        let arguments = format!("{} {}", written.path().display(), disks.log.path().display());
        let log_writes = Mapped::new("log-writes", length, &arguments);
        // Device, offset and milliseconds of reads, writes and flushes.
        let device = log_writes.path().display();
        let ordered = Mapped::new("delay", length, &format!("{device} 0 0 {device} 0 0 {device} 0 1"));
        Self { ordered, log_writes, written, disks }
    }

    pub fn device(&self) -> &Path {
        self.ordered.path()
    }

    /// Mounts the XFS of the device, with mount options such as `prjquota`.
    pub fn mount(&self, options: &str) -> Mounted<'_> {
        Mounted::new(self.device(), options)
    }

    /// Writes a mark into the log. All data that was flushed before precedes the mark.
    /// [`Cut::marks`](super::Cut::marks) returns it.
    pub fn mark(&self, word: &str) {
        assert!((1..=400).contains(&word.len()), "a mark has 1 to 400 bytes: {word:?}");
        let sent = self.log_writes.message(&format!("mark {}", device_mapper::word(word)));
        sent.unwrap_or_else(|error| panic!("cannot mark {word:?} in the log of writes: {error}"));
    }

    /// Disables the write cache of the device, so that the kernel drops all flushes, as if the disk ignored them. A
    /// durability test that passes now shows nothing.
    pub fn drop_flushes(&self) {
        let name = self.device().file_name().unwrap_or_default();
        let setting = Path::new("/sys/block").join(name).join("queue/write_cache");
        fs::write(&setting, "write through")
            .unwrap_or_else(|error| panic!("cannot change {}: {error}", setting.display()));
    }

    /// Ends the recording. The device must not be open.
    pub fn finish(self) -> Replay {
        let Self { ordered, log_writes, written, disks } = self;
        drop(ordered);
        let status = log_writes.status().unwrap_or_else(|error| panic!("no status of the log of writes: {error}"));
        // If the log is full, the target only reports it in its status; writes continue.
        assert!(!status.contains("logging_disabled"), "the disk for the log of writes is too small ({status})");
        // The target writes the rest of the log when it is removed.
        drop(log_writes);
        drop(written);
        Replay::new(disks)
    }
}

fn take() -> Disks {
    let [base, copies, log] = Disk::take_several();
    Disks { base, copies, log, empty: false }
}

fn zero(device: &Path) {
    let length = device_mapper::length(device);
    let file = File::options().write(true).open(device);
    let file = file.unwrap_or_else(|error| panic!("cannot open {}: {error}", device.display()));
    // Punching a hole is cheaper, but not all disks support it.
    let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(&file, hole, 0, length as i64)
        .or_else(|_| fallocate(&file, FallocateFlags::FALLOC_FL_ZERO_RANGE, 0, length as i64))
        .unwrap_or_else(|error| panic!("cannot fill {} with zeros: {error}", device.display()));
}
