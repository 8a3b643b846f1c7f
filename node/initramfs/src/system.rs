//! Which block device holds the system image.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use gpt::Table;
use verity::{BLOCK, CheckError, Root, RootError};

/// What the command line asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// The file system with this UUID, on any block device.
    Image(Uuid),
    /// What is on this partition, if it is what the root says.
    Partition {
        /// The partition's own ID.
        id: Uuid,
        /// Its blocks and their digest.
        root: Root,
    },
}

/// A text that names no system.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSystem {
    /// What should be a UUID is none.
    #[error(transparent)]
    Uuid(#[from] BadUuid),
    /// What is behind the partition's ID is no root.
    #[error("the partition is named without what is on it")]
    Root(#[from] RootError),
}

impl FromStr for System {
    type Err = BadSystem;

    fn from_str(text: &str) -> Result<Self, BadSystem> {
        Ok(match text.split_once(':') {
            None => Self::Image(text.parse()?),
            Some((id, root)) => Self::Partition { id: id.parse()?, root: root.parse()? },
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

/// A file system's or a partition's UUID, in the form `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Uuid([u8; 16]);

/// A text that is no UUID.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no UUID of the form xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx")]
pub struct BadUuid(String);

impl FromStr for Uuid {
    type Err = BadUuid;

    fn from_str(text: &str) -> Result<Self, BadUuid> {
        let bad = || BadUuid(text.to_owned());
        let groups: Vec<usize> = text.split('-').map(str::len).collect();
        if groups != [8, 4, 4, 4, 12] {
            return Err(bad());
        }
        let digits: Vec<u32> =
            text.chars().filter(|c| *c != '-').map(|c| c.to_digit(16)).collect::<Option<_>>().ok_or_else(bad)?;
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = u8::try_from(pair[0] * 16 + pair[1]).map_err(|_| bad())?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Bytes from the start of a device that [`erofs_uuid`] needs.
pub const HEAD: usize = 1024 + 128;

/// The UUID in an EROFS superblock (`struct erofs_super_block`, fs/erofs/erofs_fs.h: at byte 1024,
/// magic first, UUID after 48 bytes).
pub fn erofs_uuid(head: &[u8]) -> Option<Uuid> {
    const MAGIC: [u8; 4] = 0xE0F5_E1E2_u32.to_le_bytes();
    let superblock = head.get(1024..)?;
    if superblock.get(..4)? != MAGIC {
        return None;
    }
    superblock.get(48..64)?.try_into().ok().map(Uuid)
}

/// A block device and what it seems to hold.
#[derive(Debug)]
pub struct Seen {
    /// Its node below `/dev`.
    pub device: PathBuf,
    /// The UUID of the EROFS on it, or why there is none to be read.
    pub image: Result<Option<Uuid>, io::Error>,
    /// What the partition table says of it, if it is a partition.
    pub partition: Option<Partition>,
}

/// What the partition table tells of a partition.
#[derive(Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its own ID.
    pub id: Uuid,
    /// Its name, which may be empty.
    pub name: String,
}

impl Seen {
    /// Its node and what the partition table calls it.
    pub fn place(&self) -> String {
        let device = self.device.display();
        match &self.partition {
            Some(Partition { id, name }) => format!("{device} (partition {name} {id})"),
            None => device.to_string(),
        }
    }

    /// Whether it is what was asked for.
    pub fn is(&self, wanted: &System) -> bool {
        match wanted {
            System::Image(uuid) => matches!(&self.image, Ok(Some(image)) if image == uuid),
            System::Partition { id, .. } => self.partition.as_ref().is_some_and(|partition| partition.id == *id),
        }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.place();
        match &self.image {
            Ok(Some(uuid)) => write!(f, "{place}: system image {uuid}"),
            Ok(None) => write!(f, "{place}: no system image"),
            Err(error) => write!(f, "{place}: {error}"),
        }
    }
}

/// Every block device that there is now.
///
/// # Errors
/// `/sys/class/block` cannot be read.
pub fn look() -> io::Result<Vec<Seen>> {
    let mut all = Vec::new();
    for entry in fs::read_dir("/sys/class/block")? {
        let entry = entry?;
        let device = Path::new("/dev").join(entry.file_name());
        let image = read_uuid(&device);
        // One without a table that can be read is told without its ID.
        all.push(Seen { device, image, partition: partition(&entry.path()) });
    }
    all.sort_by(|a, b| a.device.cmp(&b.device));
    Ok(all)
}

/// What the table of its disk says of a partition. The kernel's attributes have no ID (Linux 6.12).
fn partition(attributes: &Path) -> Option<Partition> {
    let number = number(&attributes.join("partition"))?;
    // A partition's directory lies in its disk's.
    let disk = fs::canonicalize(attributes).ok()?.parent()?.to_owned();
    let sector = number_of_bytes(&disk)?;
    let mut head = vec![0; Table::length(sector)];
    File::open(Path::new("/dev").join(disk.file_name()?)).ok()?.read_exact_at(&mut head, 0).ok()?;
    find(&Table::parse(&head, sector).ok()?, number)
}

fn find(table: &Table, number: u32) -> Option<Partition> {
    let found = table.partitions().find(|partition| partition.number.get() == number)?;
    Some(Partition { id: found.id.to_string().parse().ok()?, name: found.name })
}

/// Bytes of a sector.
fn number_of_bytes(disk: &Path) -> Option<u32> {
    number(&disk.join("queue/logical_block_size")).filter(|size| (512..=1 << 16).contains(size))
}

fn number(attribute: &Path) -> Option<u32> {
    fs::read_to_string(attribute).ok()?.trim_end().parse().ok()
}

/// Which of them is what was asked for. Partitions of all releases have the same IDs: of several, the first counts that
/// `is_whole`, which looks at its content; if none is, the first of all, once the caller `has_waited` for another.
pub fn choose(
    seen: &[Seen],
    wanted: &System,
    is_whole: impl Fn(&Seen, &Root) -> bool,
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

/// Compares the first block of a device with what it should be.
///
/// # Errors
/// [`CheckError`]: it is not that, or cannot be read.
pub fn check_first(device: &Path, root: &Root) -> Result<(), CheckError> {
    let device = File::open(device).map_err(|source| CheckError::Read { place: 0, source })?;
    root.check(0, |place, block| device.read_exact_at(block, place * BLOCK as u64))
}

fn read_uuid(device: &Path) -> io::Result<Option<Uuid>> {
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
    fn a_uuid_is_shown_as_it_was_read() {
        assert_eq!(TEXT.parse::<Uuid>().unwrap().to_string(), TEXT);
    }

    #[test]
    fn other_texts_are_no_uuid() {
        for text in [
            "",
            "0",
            "00112233445566778899aabbccddeeff",
            "g0112233-4455-6677-8899-aabbccddeeff",
            "é0112233-4455-6677-8899-aabbccddeef",
        ] {
            assert_eq!(text.parse::<Uuid>(), Err(BadUuid(text.to_owned())));
        }
    }

    #[test]
    fn a_system_is_an_image_or_a_partition_with_what_is_on_it() {
        assert_eq!(TEXT.parse(), Ok(System::Image(TEXT.parse().unwrap())));
        let root = format!("30000:{}", "5a".repeat(32));
        let partition = System::Partition { id: TEXT.parse().unwrap(), root: root.parse().unwrap() };
        assert_eq!(format!("{TEXT}:{root}").parse(), Ok(partition));
        for wrong in [format!("{TEXT}:"), format!("{TEXT}:1"), format!(":{root}"), root] {
            assert!(wrong.parse::<System>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_partition_is_known_by_its_own_id() {
        let id: Uuid = TEXT.parse().unwrap();
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
        let seen = Seen { device: "/dev/vda2".into(), image: Ok(Some(id)), partition };
        assert!(seen.is(&System::Partition { id, root }) && seen.is(&System::Image(id)));
        assert_eq!(seen.place(), format!("/dev/vda2 (partition SYSTEM A {TEXT})"));
    }

    /// The first was started, and called damaged.
    #[test]
    fn of_two_disks_with_other_releases_the_one_is_chosen_that_was_asked_for() {
        let id: Uuid = TEXT.parse().unwrap();
        let wanted = System::Partition { id, root: format!("1:{}", "5a".repeat(32)).parse().unwrap() };
        let seen = |device: &str| Seen {
            device: device.into(),
            image: Ok(None),
            partition: Some(Partition { id, name: "SYSTEM-A".into() }),
        };
        let both = [seen("/dev/vda2"), seen("/dev/vdb2")];
        let is_second = |seen: &Seen, _: &Root| seen.device == Path::new("/dev/vdb2");
        assert_eq!(choose(&both, &wanted, is_second, false), Some(1));
        assert_eq!(choose(&both, &wanted, is_second, true), Some(1));
        // The second may yet appear; later the first is told to be damaged.
        assert_eq!(choose(&both[..1], &wanted, is_second, false), None);
        assert_eq!(choose(&both[..1], &wanted, is_second, true), Some(0));
        assert_eq!(choose(&[], &wanted, is_second, true), None);
    }

    #[test]
    fn the_superblock_names_the_image() {
        let mut head = vec![0; HEAD];
        assert_eq!(erofs_uuid(&head), None);
        head[1024..1028].copy_from_slice(&[0xE2, 0xE1, 0xF5, 0xE0]);
        head[1072..1088].copy_from_slice(&TEXT.parse::<Uuid>().unwrap().0);
        assert_eq!(erofs_uuid(&head), Some(TEXT.parse().unwrap()));
        assert_eq!(erofs_uuid(&head[..1080]), None);
    }
}
