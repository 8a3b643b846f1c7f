//! The disks of the machine.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use gpt::{Extent, PartitionTable, TableState};
use nix::errno::Errno;
use nix::libc::dev_t;
use tracing::warn;
use units::Bytes;

use crate::boot_disk::{self, Wanted};
use crate::content::{Content, DATA_PARTITION, END, Ends, Geometry};
use crate::error::{FindError, NoDataDisk};
use crate::found::{FoundDisk, Role};
use crate::plan::{Decision, plan};
use crate::probe::{ProbeError, probe};
use crate::program::Programs;
use crate::signature::Mark;
use crate::sysfs::{self, look};

const SYSTEM_SERIAL: &str = "system";
const DATA_SERIAL: &str = "data";
/// Prefix of the serial numbers of disks with archives of images.
pub const ARCHIVE_SERIALS: &str = "image-";

/// The selected disk for the data, not changed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataDisk {
    pub(crate) device: PathBuf,
    pub(crate) size: Bytes,
    pub(crate) state: DiskState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskState {
    Formatted,
    Empty,
    Unfinished,
}

impl DataDisk {
    /// Reads all disks and selects one. If no disk fits, creates a partition in the free space at the end of the boot
    /// disk. If a partition of the boot disk was selected, extends it as far as the disk allows. Writes nothing else.
    pub fn find() -> Result<Self, FindError> {
        Self::find_with(&Programs::default())
    }

    /// Like [`DataDisk::find`], with other programs.
    pub fn find_with(programs: &Programs) -> Result<Self, FindError> {
        let seen = disks(programs)?;
        let chosen = Self::choose(&seen);
        if let Ok(disk) = &chosen
            && disk.state != DiskState::Formatted
            && seen.iter().all(|disk| disk.role != Role::Partition)
            // An image was written over the beginning of a node's disk, whose data must not be ignored.
            && let Some(system) = boot_disk::former_data(&seen)?
        {
            return Err(NoDataDisk::Several { disks: vec![system, disk.name()] }.into());
        }
        let Some(wanted) = wanted(&seen, &chosen) else { return chosen };
        if boot_disk::change(&seen, wanted)? { Self::choose(&disks(programs)?) } else { chosen }
    }

    pub fn choose(seen: &[FoundDisk]) -> Result<Self, FindError> {
        let decision = plan(seen)?;
        let state = match decision {
            Decision::Use(_) => DiskState::Formatted,
            Decision::Format(disk) if disk.content == Content::Unfinished => DiskState::Unfinished,
            Decision::Format(_) => DiskState::Empty,
        };
        let disk = decision.disk();
        Ok(Self { device: disk.device.clone(), size: disk.size, state })
    }

    /// Selects the only disk for which `is_selected` returns `true`, independent of all other disks; `None` without
    /// such a disk. Reads its content if necessary, because a disk that is not a candidate has not been read.
    ///
    /// # Errors
    /// [`FindError::Refused`]: the disk has other content, or `is_selected` selects several disks. [`FindError::Look`],
    /// [`FindError::Probe`].
    pub fn choose_named<N>(seen: &[FoundDisk], is_selected: N, programs: &Programs) -> Result<Option<Self>, FindError>
    where
        N: Fn(&FoundDisk) -> bool,
    {
        let selected = seen.iter().filter(|disk| is_selected(disk)).cloned().map(|disk| designated(disk, programs));
        let selected = selected.collect::<Result<Vec<_>, _>>()?;
        if selected.is_empty() { Ok(None) } else { Self::choose(&selected).map(Some) }
    }

    fn name(&self) -> String {
        self.device.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    pub fn device(&self) -> &Path {
        &self.device
    }

    /// Whether the disk already has a node's data.
    pub fn has_data(&self) -> bool {
        self.state == DiskState::Formatted
    }
}

/// The required change of the boot disk. `None` while another disk has any content, because it may be a damaged data
/// disk.
fn wanted(seen: &[FoundDisk], chosen: &Result<DataDisk, FindError>) -> Option<Wanted> {
    let has_role = |role| seen.iter().any(|disk| disk.role == role);
    match chosen {
        Err(FindError::Refused(NoDataDisk::None { foreign })) => foreign.is_empty().then_some(Wanted::New),
        Err(FindError::Refused(NoDataDisk::TooSmall { .. })) => {
            (!has_role(Role::Data) && !has_role(Role::Partition)).then_some(Wanted::New)
        }
        Ok(_) => has_role(Role::Partition).then_some(Wanted::Longer),
        Err(_) => None,
    }
}

fn designated(disk: FoundDisk, programs: &Programs) -> Result<FoundDisk, FindError> {
    if disk.role == Role::System {
        return Ok(disk);
    }
    let content = match disk.content {
        Content::Unexamined => examine(&disk.device, disk.size, programs)?,
        known => known,
    };
    let role = disk.role.max(Role::Data);
    Ok(FoundDisk { role, content, ..disk })
}

/// All disks of the machine and their data partitions, by name. Reads the content of all candidates: both ends, and the
/// signatures that `blkid` finds. For other disks, only compares the superblock with [`Content::Data`]. Writes nothing.
///
/// # Errors
/// [`FindError`] names the disk and the failed step. [`FindError::Refused`]: the kernel shows a data partition
/// differently from the partition table.
pub fn disks(programs: &Programs) -> Result<Vec<FoundDisk>, FindError> {
    disks_among(programs, |_| true)
}

/// Like [`disks`], for the disks whose sysfs directories `is_selected` selects. Other disks are not read, because they
/// may be broken.
pub fn disks_among<N>(programs: &Programs, is_selected: N) -> Result<Vec<FoundDisk>, FindError>
where
    N: Fn(&Path) -> bool,
{
    let root = root()?;
    let ask = |device: &Path| probe(&programs.blkid, device);
    Machine { blocks: "/sys/block".into(), devices: "/dev".into(), root, ask: &ask }.disks(is_selected)
}

/// Device of the running system's root file system.
pub(crate) fn root() -> Result<dev_t, FindError> {
    let root = Path::new("/");
    Ok(fs::metadata(root).map_err(look("read the device of", root))?.dev())
}

/// Content of a block device of this size, or of the first `size` bytes. Writes nothing.
pub fn examine(device: &Path, size: Bytes, programs: &Programs) -> Result<Content, FindError> {
    content(device, size, |device| probe(&programs.blkid, device))
}

struct Machine<'ask> {
    blocks: PathBuf,
    devices: PathBuf,
    root: dev_t,
    ask: &'ask dyn Fn(&Path) -> Result<Vec<Mark>, ProbeError>,
}

impl Machine<'_> {
    fn disks(&self, is_selected: impl Fn(&Path) -> bool) -> Result<Vec<FoundDisk>, FindError> {
        let mut disks = Vec::new();
        for entry in fs::read_dir(&self.blocks).map_err(look("list", &self.blocks))? {
            let path = entry.map_err(look("list", &self.blocks))?.path();
            // Loop devices, RAM disks and stacked devices have no hardware.
            if path.join("device").exists()
                && is_selected(&path)
                && !sysfs::is_hidden(&path)?
                && let Some(disk) = self.seen(&path)?
                && let Some(medium) = medium(&disk.device, File::open(&disk.device))?
            {
                disks.extend(self.data_partitions(&path, &disk, &medium)?);
                disks.push(FoundDisk { role: self.role(&path)?, ..disk });
            }
        }
        disks.sort_by(|a, b| a.name.cmp(&b.name));
        self.examine(&mut disks)?;
        Ok(disks)
    }

    fn examine(&self, disks: &mut [FoundDisk]) -> Result<(), FindError> {
        let Some(role) = disks.iter().map(|disk| disk.role).max() else { return Ok(()) };
        for disk in disks.iter_mut().filter(|disk| disk.role == role && role != Role::System && !disk.read_only) {
            disk.content = content(&disk.device, disk.size, self.ask)?;
        }
        let is_unselected = |disk: &FoundDisk| disk.role != Role::System && (disk.role < role || disk.read_only);
        for disk in disks.iter_mut().filter(|disk| is_unselected(disk)) {
            if let Some(geometry) = geometry(&disk.device, disk.size)? {
                disk.content = Content::Data(geometry);
            }
        }
        Ok(())
    }

    /// The disk at a path like `/sys/block/vda` or `/sys/block/vda/vda1`; `None` if its size is 0, as for a card reader
    /// without a card.
    fn seen(&self, path: &Path) -> Result<Option<FoundDisk>, FindError> {
        let size = sysfs::read_size(&path.join("size"))?;
        let Some(name) = sysfs::name(path).filter(|_| size > Bytes::ZERO) else { return Ok(None) };
        let read_only = sysfs::read_number(&path.join("ro"))? != 0;
        let device = self.devices.join(&name);
        Ok(Some(FoundDisk { name, device, role: Role::Unnamed, read_only, size, content: Content::Unexamined }))
    }

    fn role(&self, path: &Path) -> Result<Role, FindError> {
        if sysfs::holds(path, self.root)? {
            return Ok(Role::System);
        }
        Ok(match sysfs::serial(path)?.as_deref() {
            Some(SYSTEM_SERIAL) => Role::System,
            Some(DATA_SERIAL) => Role::Data,
            Some(serial) if serial.starts_with(ARCHIVE_SERIALS) => Role::System,
            _ => Role::Unnamed,
        })
    }

    fn data_partitions(&self, path: &Path, disk: &FoundDisk, medium: &File) -> Result<Vec<FoundDisk>, FindError> {
        let sector = path.join("queue/logical_block_size");
        let sector = u32::try_from(sysfs::read_number(&sector)?).map_err(|_| FindError::Malformed { path: sector })?;
        let table = PartitionTable::read(disk.size, sector, |buffer, at| medium.read_exact_at(buffer, at));
        let Some(table) = table.map_err(look("read the partition table of", &disk.device))? else {
            return Ok(Vec::new());
        };
        let wanted: Vec<_> = table.of_kind(DATA_PARTITION).collect();
        match table.state {
            _ if wanted.is_empty() => {}
            TableState::Whole => {}
            TableState::FirstOnly => {
                warn!(device = %disk.device.display(), "second copy of the partition table is missing or damaged")
            }
            state @ (TableState::LastOnly | TableState::Different) => {
                return Err(NoDataDisk::Table { disk: disk.name.clone(), state }.into());
            }
        }
        wanted.into_iter().map(|wanted| self.data_partition(path, disk, wanted)).collect()
    }

    /// The kernel may have an older table or none. Therefore the partition must have the same number, start and size in
    /// the kernel.
    fn data_partition(&self, disk_path: &Path, disk: &FoundDisk, wanted: &Extent) -> Result<FoundDisk, FindError> {
        for path in sysfs::partitions(disk_path)? {
            let number = sysfs::read_number(&path.join("partition"))?;
            let start = sysfs::read_size(&path.join("start"))?;
            if number == u64::from(wanted.number)
                && start == wanted.start
                && let Some(seen) = self.seen(&path)?
                && seen.size == wanted.size
            {
                return Ok(FoundDisk { role: Role::Partition, ..seen });
            }
        }
        Err(NoDataDisk::NotShown { disk: disk.name.clone(), number: wanted.number }.into())
    }
}

fn medium(device: &Path, opened: io::Result<File>) -> Result<Option<File>, FindError> {
    match opened {
        Err(error) if error.raw_os_error() == Some(Errno::ENOMEDIUM as i32) => Ok(None),
        opened => opened.map(Some).map_err(look("open", device)),
    }
}

/// Geometry of the node's file system, by its superblock alone.
fn geometry(device: &Path, size: Bytes) -> Result<Option<Geometry>, FindError> {
    let mut head = [0; 512];
    let disk = File::open(device).map_err(look("open", device))?;
    disk.read_exact_at(&mut head, 0).map_err(look("read the beginning of", device))?;
    Ok(Ends { head: &head, tail: &[], size }.geometry())
}

fn content<P>(device: &Path, size: Bytes, ask: P) -> Result<Content, FindError>
where
    P: FnOnce(&Path) -> Result<Vec<Mark>, ProbeError>,
{
    // The ends can have any data of the file system: a block of them that cannot be read must not stop the node.
    if let Some(geometry) = geometry(device, size)? {
        return Ok(Content::Data(geometry));
    }
    let disk = File::open(device).map_err(look("open", device))?;
    let length = usize::try_from(size.get()).unwrap_or(usize::MAX).min(END);
    let (mut head, mut tail) = (vec![0; length], vec![0; length]);
    disk.read_exact_at(&mut head, 0).map_err(look("read the beginning of", device))?;
    disk.read_exact_at(&mut tail, size.get() - length as u64).map_err(look("read the end of", device))?;
    let ends = Ends { head: &head, tail: &tail, size };
    let marks = ask(device).map_err(|source| FindError::Probe { device: device.to_owned(), source })?;
    Ok(ends.content(&marks))
}

#[cfg(test)]
mod tests;
