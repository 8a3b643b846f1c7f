//! Simulated power cuts. A [`Recorder`] logs the writes of a disk. A [`Replay`] cuts the log at any position and
//! restores the disk as a power cut would have left it, hundreds of times in one guest. This finds missing flushes,
//! which a real power cut rarely shows. A recording needs three disks of one size and the modules `dm_delay`,
//! `dm_log_writes` and `dm_snapshot`; see the example in README.md of ktest. To verify a check, run it with
//! [`Recorder::drop_flushes`]: it must fail.

mod content;
mod cut;
mod device_mapper;
mod recorder;
#[expect(unsafe_code, reason = "the device mapper is controlled by an ioctl")]
mod sys;

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::marker::PhantomData;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use ktest_init::write_log::{Entry, Extent};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::libc;

use self::content::Content;
use self::cut::{END_MARK, KeptWrite, Part, SECTOR};
use self::device_mapper::Mapped;
use self::recorder::Disks;
use crate::mounted::Mounted;

pub use self::cut::{Cut, Tearing};
pub use self::recorder::Recorder;
pub use ktest_init::write_log;

#[derive(Debug)]
pub struct Replay {
    log: Log,
    base: File,
    /// Number of entries that are applied to `base`.
    applied: usize,
    _spare: Spare,
    // Dropped last.
    disks: Disks,
}

/// A disk as a power cut left it. Changes are discarded on drop. The value borrows the [`Replay`], so only one disk
/// exists at a time. A panic prints the cut.
#[derive(Debug)]
pub struct Restored<'a> {
    snapshot: Mapped,
    cut: &'a Cut,
    replay: PhantomData<&'a mut Replay>,
}

impl Replay {
    pub(crate) fn new(disks: Disks) -> Self {
        let log = Log::open(disks.log.path());
        // O_DIRECT, because snapshots bypass the page cache of this device.
        let base = open(disks.base.path(), File::options().write(true).custom_flags(libc::O_DIRECT));
        Self { log, base, applied: 0, _spare: Spare::new(&disks), disks }
    }

    pub fn entries(&self) -> &[Entry] {
        &self.log.entries
    }

    /// Cuts at each entry of the log that lose no earlier write: one cut for each different state of the disk.
    pub fn every_cut(&self) -> Vec<Cut> {
        cut::every(&self.log.entries)
    }

    /// [`Self::every_cut`] without most cuts between consecutive in-place writes of metadata, of which an unmount
    /// issues dozens. The journal already has the content of these writes, so XFS recovers the same state from each of
    /// them. The first and the last cut of such a sequence stay, and cuts with other marks. With
    /// [`Recorder::drop_flushes`], writes of the journal look like in-place writes: use [`Self::lossy_cuts`] instead. A
    /// check that reads the disk without recovery sees only the states before and after a sequence.
    pub fn every_recovered_cut(&self) -> Vec<Cut> {
        cut::recovered(&self.log.entries)
    }

    /// [`Self::every_recovered_cut`] without cuts that have the same marks and content as an earlier one: formatting,
    /// for example, writes zeros over zeros. The disk must have been empty when the recording began.
    pub fn every_different_cut(&mut self) -> Vec<Cut> {
        assert!(self.disks.empty, "what was on the disk before the recording is not known");
        let entries = Arc::clone(&self.log.entries);
        let (mut content, mut applied) = (Content::default(), 0);
        let mut seen = HashSet::new();
        let mut cuts = self.every_recovered_cut();
        cuts.retain(|cut| {
            for entry in &entries[applied..cut.position()] {
                self.log.note(entry, &mut content);
            }
            applied = cut.position();
            seen.insert((cut.marks().count(), content.digest()))
        });
        cuts
    }

    /// `count` cuts at random positions. Each cut loses a random part of the writes that were not durable at its
    /// position. Flushed writes and complete writes with FUA are never lost. The same seed gives the same cuts of the
    /// same log, but the log differs a little from run to run, because the kernel decides when it writes back. Returns
    /// no cuts if no write can be lost.
    pub fn lossy_cuts(&self, seed: u64, count: usize, tearing: Tearing) -> Vec<Cut> {
        cut::lossy(&self.log.entries, seed, count, tearing)
    }

    /// Restores the disk as `cut` left it. With a mount and a small check this takes 0.1 to 0.2 s in an emulated guest,
    /// plus the replay of writes that became durable since the previous cut. Cuts must be restored in the order of
    /// their positions.
    pub fn restore<'a>(&'a mut self, cut: &'a Cut) -> Restored<'a> {
        let (applied, durable) = (self.applied, cut.durable());
        assert!(applied <= durable, "{cut}: entry {applied} is durable already, restore cuts in their order");
        for entry in applied..durable {
            self.log.write(&KeptWrite::all(entry), &self.base);
        }
        self.applied = durable;

        let snapshot = self.disks.snapshot();
        if !cut.kept().is_empty() {
            let device = open(snapshot.path(), File::options().write(true).custom_flags(libc::O_DIRECT));
            for kept in cut.kept() {
                self.log.write(kept, &device);
            }
        }
        Restored { snapshot, cut, replay: PhantomData }
    }
}

/// An unused snapshot, which keeps the slab caches. The kernel frees the caches with the last snapshot and waits for
/// two RCU grace periods, a third of the cost of a cut.
#[derive(Debug)]
struct Spare {
    _snapshot: Mapped,
    _copies: Mapped,
}

impl Spare {
    fn new(disks: &Disks) -> Self {
        let length = 1 << 20;
        let copies = Mapped::new("error", length, "");
        Self { _snapshot: recorder::snapshot(disks.base.path(), copies.path(), length), _copies: copies }
    }
}

impl Restored<'_> {
    pub fn device(&self) -> &Path {
        self.snapshot.path()
    }

    /// Mounts the XFS of the disk, with mount options such as `prjquota`. XFS recovers its log.
    pub fn mount(&self, options: &str) -> Mounted<'_> {
        Mounted::new(self.device(), options)
    }

    /// As [`Self::mount`], for a file system that may be damaged.
    pub fn try_mount(&self, options: &str) -> Result<Mounted<'_>, Errno> {
        Mounted::try_new(self.device(), options)
    }

    pub fn cut(&self) -> &Cut {
        self.cut
    }
}

impl Drop for Restored<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("on the disk after a {}", self.cut);
        }
    }
}

#[derive(Debug)]
struct Log {
    file: File,
    entries: Arc<[Entry]>,
    buffer: Buffer,
}

impl Log {
    fn open(device: &Path) -> Self {
        let mut file = open(device, File::options().read(true));
        let entries = write_log::parse(&mut file).unwrap_or_else(|error| panic!("{}: {error}", device.display()));
        let ends = entries.last().is_some_and(|entry| matches!(entry, Entry::Mark(text) if text == END_MARK));
        assert!(ends, "the log of writes has no end: its disk {} is too small", device.display());
        Self { file, entries: entries.into(), buffer: Buffer::new() }
    }

    fn write(&mut self, kept: &KeptWrite, device: &File) {
        let KeptWrite { entry, part } = kept;
        let entries = Arc::clone(&self.entries);
        let written = match (&entries[*entry], part) {
            (Entry::Flush | Entry::Mark(_), _) => Ok(()),
            (Entry::Discard(extent), _) => zero(device, *extent),
            (Entry::Write(write), Part::All) => self.copy(write.data, write.extent, device),
            (Entry::Write(write), Part::Sectors(sectors)) => {
                let mut done = 0;
                sectors.chunk_by(|one, next| one == next).try_for_each(|run| {
                    let length = run.len() as u64 * SECTOR;
                    let (data, start) = (write.data + done, write.extent.start + done);
                    done += length;
                    if run[0] { self.copy(data, Extent { start, length }, device) } else { Ok(()) }
                })
            }
        };
        written.unwrap_or_else(|error| panic!("cannot replay entry {entry} of the log of writes: {error}"));
    }

    fn note(&mut self, entry: &Entry, content: &mut Content) {
        match entry {
            Entry::Flush | Entry::Mark(_) => {}
            Entry::Discard(extent) => content.discard(*extent),
            Entry::Write(write) => {
                let mut done = 0;
                while done < write.extent.length {
                    let piece = self.buffer.first(write.extent.length - done);
                    let read = self.file.read_exact_at(piece, write.data + done);
                    read.unwrap_or_else(|error| panic!("cannot read the log of writes: {error}"));
                    content.write(write.extent.start + done, piece);
                    done += piece.len() as u64;
                }
            }
        }
    }

    fn copy(&mut self, data: u64, to: Extent, device: &File) -> io::Result<()> {
        let mut done = 0;
        while done < to.length {
            let piece = self.buffer.first(to.length - done);
            self.file.read_exact_at(piece, data + done)?;
            device.write_all_at(piece, to.start + done)?;
            done += piece.len() as u64;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Buffer(Vec<u8>);

impl Buffer {
    const SIZE: usize = 1 << 20;
    const ALIGNMENT: usize = 4096;

    fn new() -> Self {
        Self(vec![0; Self::SIZE + Self::ALIGNMENT])
    }

    fn first(&mut self, length: u64) -> &mut [u8] {
        let start = self.0.as_ptr().align_offset(Self::ALIGNMENT);
        let length = usize::try_from(length).map_or(Self::SIZE, |length| length.min(Self::SIZE));
        &mut self.0[start..start + length]
    }
}

fn zero(device: &File, extent: Extent) -> io::Result<()> {
    let (start, length) = (extent.start as i64, extent.length as i64);
    Ok(fallocate(device, FallocateFlags::FALLOC_FL_ZERO_RANGE, start, length)?)
}

fn open(device: &Path, options: &mut OpenOptions) -> File {
    options.open(device).unwrap_or_else(|error| panic!("cannot open {}: {error}", device.display()))
}
