//! The data partition on the disk from which the node was started.
//!
//! A disk with a written image has the system partitions and, after them, free space. The first boot creates a
//! partition in all of the free space, and a boot on an enlarged disk extends the partition. Partitions begin and end
//! at whole MiB, and the data partition begins at the end of the image. If the same image is written to the same disk
//! again, the new system finds the former data.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use gpt::{Extent, Guid, ParseError, Partition, PartitionTable, Table};
use tracing::{info, warn};
use units::Bytes;

use crate::content::{DATA_PARTITION, Ends, MINIMUM};
use crate::disk::root;
use crate::error::{BootDiskError, FindError};
use crate::found::{FoundDisk, Role};
use crate::{sys, sysfs};

const NAME: &str = "DATA";
/// Returns a new random UUID at each read, random(4).
const RANDOM: &str = "/proc/sys/kernel/random/uuid";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// A data partition in the free space.
    New,
    /// Extend the data partition as far as the disk allows.
    Longer,
}

/// A change of the table: the new table, and the changed partition.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    table: Table,
    partition: Partition,
}

/// Changes the table of the disk from which the node was started, if necessary. `true` if the disks have changed.
pub(crate) fn change(seen: &[FoundDisk], wanted: Wanted) -> Result<bool, FindError> {
    let Some(disk) = BootDisk::open(seen)? else { return Ok(false) };
    let Some(table) = disk.table()? else { return Ok(false) };
    let id = random_id()?;
    let Some(mut change) = plan(table.clone(), disk.sectors(), wanted, id) else { return Ok(false) };
    if wanted == Wanted::New {
        disk.is_free(&change.partition)?;
    }
    if let Some(writes) = move_backup(&table, disk.sectors()) {
        disk.write(&writes)?;
        let planned = disk.table()?.and_then(|table| plan(table, disk.sectors(), wanted, id));
        let Some(planned) = planned else { return Ok(false) };
        change = planned;
    }
    let Ok(writes) = change.table.writes(disk.sectors()) else { return Ok(false) };
    disk.write(&writes)?;
    let Change { partition, .. } = change;
    let number = partition.number;
    let bytes = |sectors: u64| Bytes::new(sectors.saturating_mul(u64::from(disk.sector)));
    let (start, size) = (bytes(partition.first), bytes(partition.last - partition.first + 1));
    let shown = match wanted {
        Wanted::New => sys::add_partition(disk.device.as_fd(), number, start, size),
        Wanted::Longer => sys::resize_partition(disk.device.as_fd(), number, start, size),
    };
    let path = disk.path;
    shown.map_err(|source| BootDiskError::Shown { path: path.clone(), number, source })?;
    info!(device = %path.display(), %number, %size, "data partition created or enlarged on the boot disk");
    Ok(true)
}

/// Name of the boot disk if it has the node's file system outside of all partitions: an image was written over the
/// beginning of the disk. Writes nothing.
pub(crate) fn former_data(seen: &[FoundDisk]) -> Result<Option<String>, FindError> {
    let Some(disk) = BootDisk::open(seen)? else { return Ok(None) };
    let found = holds_former_data(disk.size, disk.sector, |buffer, at| disk.device.read_exact_at(buffer, at));
    Ok(found.map_err(disk.failed("read the partition table of"))?.then_some(disk.name))
}

struct BootDisk {
    name: String,
    path: PathBuf,
    device: File,
    size: Bytes,
    sector: u32,
}

impl BootDisk {
    fn open(seen: &[FoundDisk]) -> Result<Option<Self>, FindError> {
        let root = root()?;
        let blocks = Path::new("/sys/block");
        let disk = find_boot_disk(seen, |disk| sysfs::holds(&blocks.join(disk.name.replace('/', "!")), root))?;
        let Some(FoundDisk { name, device: path, size, .. }) = disk.cloned() else { return Ok(None) };
        let opened = File::options().read(true).write(true).open(&path);
        let device = opened.map_err(|source| BootDiskError::Disk { step: "open", path: path.clone(), source })?;
        let sector = sector(&name)?;
        Ok(Some(Self { name, path, device, size, sector }))
    }

    fn failed(&self, step: &'static str) -> impl Fn(io::Error) -> BootDiskError {
        move |source| BootDiskError::Disk { step, path: self.path.clone(), source }
    }

    fn sectors(&self) -> u64 {
        self.size.get() / u64::from(self.sector)
    }

    fn table(&self) -> Result<Option<Table>, BootDiskError> {
        let mut head = vec![0; Table::length(self.sector)];
        if self.size.get() < head.len() as u64 {
            return Ok(None);
        }
        self.device.read_exact_at(&mut head, 0).map_err(self.failed("read the partition table of"))?;
        match Table::parse(&head, self.sector) {
            Ok(table) => Ok(Some(table)),
            // The disk is a plain system image, which a kernel without firmware gets.
            Err(ParseError::None) => Ok(None),
            Err(error) => {
                warn!(device = %self.path.display(), %error, "no data partition created, partition table not usable");
                Ok(None)
            }
        }
    }

    /// Rejects the place of a new partition if the former table has a partition there.
    fn is_free(&self, new: &Partition) -> Result<(), BootDiskError> {
        let read = |buffer: &mut [u8], at: u64| self.device.read_exact_at(buffer, at);
        let last = PartitionTable::last(self.size, self.sector, read);
        let last = last.map_err(self.failed("read the end of"))?;
        let Some(found) = last.and_then(|last| former(&last, new, self.sector)) else { return Ok(()) };
        let number = found.number;
        let (start, size, kind) = (found.start, found.size, found.kind);
        Err(BootDiskError::Former { path: self.path.clone(), number, start, size, kind })
    }

    /// Makes each write durable before the next.
    fn write(&self, writes: &[gpt::Write]) -> Result<(), BootDiskError> {
        for write in writes {
            let written = self.device.write_all_at(&write.bytes, write.at);
            written.and_then(|()| self.device.sync_all()).map_err(self.failed("write the partition table of"))?;
        }
        Ok(())
    }
}

/// Selects the only disk whose table may be changed. A serial number can exclude a disk, but does not show that it is
/// the boot disk.
fn find_boot_disk(
    seen: &[FoundDisk],
    holds_root: impl Fn(&FoundDisk) -> Result<bool, FindError>,
) -> Result<Option<&FoundDisk>, FindError> {
    for disk in seen.iter().filter(|disk| disk.role == Role::System && !disk.read_only) {
        if holds_root(disk)? {
            return Ok(Some(disk));
        }
    }
    Ok(None)
}

/// Partition of the former table that overlaps the place of a new partition or is after it. A data partition with the
/// same start is excluded: its node's image was written again, or a power cut interrupted a change.
fn former(last: &PartitionTable, new: &Partition, sector: u32) -> Option<Extent> {
    let start = Bytes::new(new.first.saturating_mul(u64::from(sector)));
    let is_in_the_way = |found: &&Extent| {
        let is_the_same = found.kind == DATA_PARTITION && found.start == start;
        found.start.saturating_add(found.size) > start && !is_the_same
    };
    // If several partitions are in the way, the error should name the node's data.
    last.partitions.iter().filter(is_in_the_way).max_by_key(|found| found.kind == DATA_PARTITION).copied()
}

/// Whether the node's file system begins at a data partition of the former table, or at the place of a new data
/// partition.
fn holds_former_data<R>(size: Bytes, sector: u32, mut read: R) -> io::Result<bool>
where
    R: FnMut(&mut [u8], u64) -> io::Result<()>,
{
    let last = PartitionTable::last(size, sector, &mut read)?;
    let mut starts: Vec<u64> =
        last.iter().flat_map(|last| last.of_kind(DATA_PARTITION)).map(|found| found.start.get()).collect();
    let mut head = vec![0; Table::length(sector)];
    if size.get() >= head.len() as u64 {
        read(&mut head, 0)?;
        let change = Table::parse(&head, sector)
            .ok()
            .and_then(|table| plan(table, size.get() / u64::from(sector), Wanted::New, Guid::ZERO));
        starts.extend(change.map(|change| change.partition.first.saturating_mul(u64::from(sector))));
    }
    for at in starts {
        let mut head = [0; 512];
        read(&mut head, at)?;
        let rest = Bytes::new(size.get().saturating_sub(at));
        if (Ends { head: &head, tail: &[], size: rest }).geometry().is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn sector(disk: &str) -> Result<u32, BootDiskError> {
    let path = Path::new("/sys/block").join(disk.replace('/', "!")).join("queue/logical_block_size");
    let failed = |source| BootDiskError::Disk { step: "read", path: path.clone(), source };
    let text = fs::read_to_string(&path).map_err(failed)?;
    text.trim_end().parse().map_err(|_| failed(io::ErrorKind::InvalidData.into()))
}

fn random_id() -> Result<Guid, BootDiskError> {
    let failed = |source| BootDiskError::Disk { step: "read", path: RANDOM.into(), source };
    let text = fs::read_to_string(RANDOM).map_err(failed)?;
    text.trim_end().parse().map_err(|_| failed(io::ErrorKind::InvalidData.into()))
}

/// The change for a disk of `sectors` sectors, if one is necessary. Only space after all partitions counts.
fn plan(mut table: Table, sectors: u64, wanted: Wanted, id: Guid) -> Option<Change> {
    let mib = (1 << 20) / u64::from(table.sector());
    let end = (table.last_usable(sectors)? + 1) / mib * mib;
    let behind = table.partitions().map(|partition| partition.last + 1).max().unwrap_or(table.first_usable());
    let mut data = table.partitions().filter(|partition| partition.kind == DATA_PARTITION);
    let partition = match (wanted, data.next(), data.next()) {
        (Wanted::New, None, None) => {
            // The backup table of the image is after its partitions.
            let image = match table.former_end() {
                Some(former) if former < sectors - 1 => former + 1,
                Some(_) => image_end(&table)?,
                None => 0,
            };
            let first = behind.max(image).checked_next_multiple_of(mib)?;
            let number = table.free_number()?;
            let size = end.checked_sub(first)?.checked_mul(table.sector().into())?;
            (size >= MINIMUM.get()).then_some(())?;
            Partition { number, kind: DATA_PARTITION, id, first, last: end - 1, name: NAME.to_owned() }
        }
        (Wanted::Longer, Some(found), None) => {
            (found.last + 1 == behind && end >= behind + mib).then_some(Partition { last: end - 1, ..found })?
        }
        _ => return None,
    };
    drop(data);
    match wanted {
        Wanted::New => table.add(&partition).ok()?,
        Wanted::Longer => table.extend(partition.number, partition.last).ok()?,
    }
    Some(Change { table, partition })
}

/// Writes that must precede a change if the backup table is at the end of the disk already, where sgdisk and parted
/// move it. The change would overwrite the backup while the primary table still counts, and the two would differ until
/// the last write. These writes move the backup to its place in an image.
fn move_backup(table: &Table, sectors: u64) -> Option<[gpt::Write; 3]> {
    table.former_end().filter(|former| *former == sectors - 1)?;
    table.writes(image_end(table)?).ok()
}

/// End of an image with these partitions: a MiB for the backup table follows them (`tools/image`).
fn image_end(table: &Table) -> Option<u64> {
    let mib = (1 << 20) / u64::from(table.sector());
    let behind = table.partitions().map(|partition| partition.last + 1).max().unwrap_or(table.first_usable());
    behind.checked_next_multiple_of(mib)?.checked_add(mib)
}

#[cfg(test)]
mod tests;
