//! Identifies the block device with the system image.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use gpt::{Guid, Table};
use verity::{BLOCK, CheckError, Root, RootError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// The file system with this UUID on any block device.
    Image(Guid),
    /// The content of this partition, verified with the root.
    Partition {
        /// Partition ID (PARTUUID).
        id: Guid,
        root: Root,
    },
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseSystemError {
    #[error("{0:?} is not a UUID of the form xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx")]
    Uuid(String),
    /// The text after the partition ID is not a root.
    #[error("the partition ID is not followed by a number of blocks and a root hash")]
    Root(#[from] RootError),
}

impl FromStr for System {
    type Err = ParseSystemError;

    fn from_str(text: &str) -> Result<Self, ParseSystemError> {
        let uuid = |text: &str| text.parse::<Guid>().map_err(|_| ParseSystemError::Uuid(text.to_owned()));
        Ok(match text.split_once(':') {
            None => Self::Image(uuid(text)?),
            Some((id, root)) => Self::Partition { id: uuid(id)?, root: root.parse()? },
        })
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image(uuid) => write!(f, "system image {uuid}"),
            Self::Partition { id, .. } => write!(f, "system partition {id}"),
        }
    }
}

/// Number of bytes at the start of a device that [`erofs_uuid`] needs.
pub const HEAD: usize = 1024 + 128;

/// The UUID in an EROFS superblock (`struct erofs_super_block`, fs/erofs/erofs_fs.h: at byte 1024, with the magic first
/// and the UUID at offset 48). A UUID is big-endian, a GUID begins with three little-endian numbers.
pub fn erofs_uuid(head: &[u8]) -> Option<Guid> {
    const MAGIC: [u8; 4] = 0xE0F5_E1E2_u32.to_le_bytes();
    let superblock = head.get(1024..)?;
    if superblock.get(..4)? != MAGIC {
        return None;
    }
    let mut uuid: [u8; 16] = superblock.get(48..64)?.try_into().ok()?;
    for number in [0..4, 4..6, 6..8] {
        uuid[number].reverse();
    }
    Some(Guid::from_bytes(uuid))
}

#[derive(Debug)]
pub struct BlockDevice {
    pub device: PathBuf,
    /// UUID of the EROFS on the device, or the error of reading it.
    pub image: Result<Option<Guid>, io::Error>,
    pub partition: Option<Partition>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Partition {
    pub id: Guid,
    pub name: String,
}

impl BlockDevice {
    /// Device node with name and ID of the partition.
    pub fn place(&self) -> String {
        let device = self.device.display();
        match &self.partition {
            Some(Partition { id, name }) => format!("{device} (partition {name} {id})"),
            None => device.to_string(),
        }
    }

    pub fn is(&self, wanted: &System) -> bool {
        match wanted {
            System::Image(uuid) => matches!(&self.image, Ok(Some(image)) if image == uuid),
            System::Partition { id, .. } => self.partition.as_ref().is_some_and(|partition| partition.id == *id),
        }
    }
}

impl fmt::Display for BlockDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.place();
        match &self.image {
            Ok(Some(uuid)) => write!(f, "{place}: system image {uuid}"),
            Ok(None) => write!(f, "{place}: no system image"),
            Err(error) => write!(f, "{place}: {error}"),
        }
    }
}

pub fn look() -> io::Result<Vec<BlockDevice>> {
    let mut all = Vec::new();
    for entry in fs::read_dir("/sys/class/block")? {
        let entry = entry?;
        let device = Path::new("/dev").join(entry.file_name());
        let image = read_uuid(&device);
        // Partitions of a disk with an unreadable table are listed without an ID.
        all.push(BlockDevice { device, image, partition: partition(&entry.path()) });
    }
    all.sort_by(|a, b| a.device.cmp(&b.device));
    Ok(all)
}

/// The entry of a partition in the table of its disk. The kernel's attributes do not contain the ID (Linux 6.12).
fn partition(attributes: &Path) -> Option<Partition> {
    let number = number(&attributes.join("partition"))?;
    // The directory of a partition is below that of its disk.
    let disk = fs::canonicalize(attributes).ok()?.parent()?.to_owned();
    let sector = number_of_bytes(&disk)?;
    let mut head = vec![0; Table::length(sector)];
    File::open(Path::new("/dev").join(disk.file_name()?)).ok()?.read_exact_at(&mut head, 0).ok()?;
    find(&Table::parse(&head, sector).ok()?, number)
}

fn find(table: &Table, number: u32) -> Option<Partition> {
    let found = table.partitions().find(|partition| partition.number.get() == number)?;
    Some(Partition { id: found.id, name: found.name })
}

/// Sector size in bytes.
fn number_of_bytes(disk: &Path) -> Option<u32> {
    number(&disk.join("queue/logical_block_size")).filter(|size| (512..=1 << 16).contains(size))
}

fn number(attribute: &Path) -> Option<u32> {
    fs::read_to_string(attribute).ok()?.trim_end().parse().ok()
}

/// Selects the wanted device. Partitions of all releases have the same IDs: of several, selects the first whose content
/// `is_whole`. Without a match, selects the first of all once the caller `has_waited` for other disks.
pub fn choose(
    seen: &[BlockDevice],
    wanted: &System,
    is_whole: impl Fn(&BlockDevice, &Root) -> bool,
    has_waited: bool,
) -> Option<usize> {
    let first = || seen.iter().position(|seen| seen.is(wanted));
    match wanted {
        System::Image(_) => first(),
        System::Partition { root, .. } => seen
            .iter()
            .position(|seen| seen.is(wanted) && is_whole(seen, root))
            .or_else(|| first().filter(|_| has_waited)),
    }
}

pub fn check_first(device: &Path, root: &Root) -> Result<(), CheckError> {
    let device = File::open(device).map_err(|source| CheckError::Read { place: 0, source })?;
    root.check(0, |place, block| device.read_exact_at(block, place * BLOCK as u64))
}

fn read_uuid(device: &Path) -> io::Result<Option<Guid>> {
    let mut head = [0; HEAD];
    match File::open(device)?.read_exact_at(&mut head, 0) {
        Ok(()) => Ok(erofs_uuid(&head)),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "00112233-4455-6677-8899-aabbccddeeff";

    #[test]
    fn invalid_uuids_are_rejected() {
        for text in [
            "",
            "0",
            "00112233445566778899aabbccddeeff",
            "g0112233-4455-6677-8899-aabbccddeeff",
            "é0112233-4455-6677-8899-aabbccddeef",
        ] {
            assert_eq!(text.parse::<System>(), Err(ParseSystemError::Uuid(text.to_owned())));
        }
    }

    #[test]
    fn both_forms_of_a_system_are_parsed() {
        assert_eq!(TEXT.parse(), Ok(System::Image(gpt::guid!("00112233-4455-6677-8899-aabbccddeeff"))));
        assert_eq!(TEXT.parse::<System>().unwrap().to_string(), format!("system image {TEXT}"));
        let root = format!("30000:{}", "5a".repeat(32));
        let partition = System::Partition { id: TEXT.parse().unwrap(), root: root.parse().unwrap() };
        assert_eq!(format!("{TEXT}:{root}").parse(), Ok(partition));
        for wrong in [format!("{TEXT}:"), format!("{TEXT}:1"), format!(":{root}"), root] {
            assert!(wrong.parse::<System>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_partition_is_found_by_its_id() {
        let id: Guid = TEXT.parse().unwrap();
        let mut table = Table::new(gpt::guid!("5ad00000-0000-4000-8000-000000000000"), 512).unwrap();
        let new = gpt::Partition {
            number: 2.try_into().unwrap(),
            kind: gpt::guid!("c12a7328-f81f-11d2-ba4b-00a0c93ec93b"),
            id: TEXT.parse().unwrap(),
            first: 2048,
            last: 4095,
            name: "SYSTEM A".into(),
        };
        table.add(&new).unwrap();
        assert_eq!(find(&table, 1), None);
        let partition = find(&table, 2);
        assert_eq!(partition, Some(Partition { id, name: "SYSTEM A".into() }));
        let root = format!("1:{}", "5a".repeat(32)).parse().unwrap();
        let seen = BlockDevice { device: "/dev/vda2".into(), image: Ok(Some(id)), partition };
        assert!(seen.is(&System::Partition { id, root }) && seen.is(&System::Image(id)));
        assert_eq!(seen.place(), format!("/dev/vda2 (partition SYSTEM A {TEXT})"));
    }

    /// Regression: the first partition was selected and reported as damaged.
    #[test]
    fn the_partition_with_matching_content_is_selected() {
        let id: Guid = TEXT.parse().unwrap();
        let wanted = System::Partition { id, root: format!("1:{}", "5a".repeat(32)).parse().unwrap() };
        let seen = |device: &str| BlockDevice {
            device: device.into(),
            image: Ok(None),
            partition: Some(Partition { id, name: "SYSTEM-A".into() }),
        };
        let both = [seen("/dev/vda2"), seen("/dev/vdb2")];
        let is_second = |seen: &BlockDevice, _: &Root| seen.device == Path::new("/dev/vdb2");
        assert_eq!(choose(&both, &wanted, is_second, false), Some(1));
        assert_eq!(choose(&both, &wanted, is_second, true), Some(1));
        // Wait for the second disk; later, report the first as damaged.
        assert_eq!(choose(&both[..1], &wanted, is_second, false), None);
        assert_eq!(choose(&both[..1], &wanted, is_second, true), Some(0));
        assert_eq!(choose(&[], &wanted, is_second, true), None);
    }

    #[test]
    fn the_uuid_is_read_from_the_superblock() {
        let mut head = vec![0; HEAD];
        assert_eq!(erofs_uuid(&head), None);
        head[1024..1028].copy_from_slice(&[0xE2, 0xE1, 0xF5, 0xE0]);
        head[1072..1088].copy_from_slice(&0x0011_2233_4455_6677_8899_aabb_ccdd_eeff_u128.to_be_bytes());
        assert_eq!(erofs_uuid(&head), Some(TEXT.parse().unwrap()));
        assert_eq!(erofs_uuid(&head[..1080]), None);
    }
}
