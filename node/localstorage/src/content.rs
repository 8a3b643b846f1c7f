//! Content of a disk.

use gpt::{Guid, guid};
use units::Bytes;

use crate::signature::{Mark, Signature};

/// Size of the smallest disk that is formatted. XFS itself needs 300 MiB.
pub const MINIMUM: Bytes = Bytes::new(512 << 20);

/// Type of the partition with the node's data: a random UUID, generated for this purpose.
pub const DATA_PARTITION: Guid = guid!("793a9f54-88f2-464f-99d7-63533fe78374");

/// Label of the node's file system: twelve bytes, the maximum of XFS.
pub const LABEL: &str = "granary-data";

/// Label of the node's file system until it is complete. No other program uses the label, because a file system with it
/// is formatted.
pub(crate) const UNFINISHED_LABEL: &str = "new-793a9f54";

/// Bytes that are read at each end of a disk.
pub(crate) const END: usize = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Zeros at both ends, and no signature of any format.
    Empty,
    /// A complete file system of the node.
    Data(Geometry),
    /// An incomplete file system of the node, which never had data.
    Unfinished,
    /// Content that does not come from the node.
    Foreign(Signature),
    /// Not read, because the disk is not a candidate.
    Unexamined,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub block: Bytes,
    pub blocks: u64,
    /// Maximum percentage of the space for inodes.
    pub inode_percent: u8,
}

impl Geometry {
    /// Number of blocks on a disk of this size, if the file system should grow. XFS cannot use less than 1 MiB of
    /// additional space.
    pub(crate) fn blocks_to_grow_to(&self, disk: Bytes) -> Option<u64> {
        let present = self.block.checked_mul(self.blocks)?;
        let gained = disk.saturating_sub(present);
        if gained < Bytes::MIB { None } else { disk.get().checked_div(self.block.get()) }
    }
}

/// The first and the last MiB of a disk, or the whole disk twice if it is smaller.
#[derive(Clone, Copy, Debug)]
pub struct Ends<'disk> {
    pub head: &'disk [u8],
    pub tail: &'disk [u8],
    pub size: Bytes,
}

impl Ends<'_> {
    /// Geometry of the node's file system, if the disk has it. Only the superblock decides: it contains no data of
    /// tenants, which could imitate the signatures of other formats elsewhere.
    pub fn geometry(&self) -> Option<Geometry> {
        Superblock::parse(self.head).filter(|found| found.state() == Some(Progress::Whole)).map(|found| found.geometry)
    }

    /// Content of the disk, by its ends and the signatures that `blkid` finds. A disk is empty only if both show
    /// nothing.
    pub fn content(&self, marks: &[Mark]) -> Content {
        if let Some(geometry) = self.geometry() {
            return Content::Data(geometry);
        }
        let begun = Superblock::parse(self.head).is_some_and(|found| found.state() == Some(Progress::Begun));
        // `blkid` finds this signature on the node's own file system.
        if begun && marks.iter().all(|mark| mark.format == "xfs") {
            return Content::Unfinished;
        }
        if !marks.is_empty() {
            return Content::Foreign(Signature::Known(marks.to_vec()));
        }
        match self.first_byte_that_is_not_zero() {
            Some(at) => Content::Foreign(Signature::Unknown { at }),
            None => Content::Empty,
        }
    }

    fn first_byte_that_is_not_zero(&self) -> Option<u64> {
        let first = |bytes: &[u8]| {
            // Compares words of 8 bytes, because each end has 1 MiB.
            let (words, _) = bytes.as_chunks::<8>();
            let zeros = 8 * words.iter().take_while(|word| u64::from_ne_bytes(**word) == 0).count();
            bytes[zeros..].iter().position(|byte| *byte != 0).map(|at| (zeros + at) as u64)
        };
        let tail_begins = self.size.get().saturating_sub(self.tail.len() as u64);
        first(self.head).or_else(|| first(self.tail).map(|at| tail_begins + at))
    }
}

/// `struct xfs_dsb`, fs/xfs/libxfs/xfs_format.h. Big endian.
struct Superblock {
    geometry: Geometry,
    label: String,
    in_progress: bool,
}

impl Superblock {
    fn parse(head: &[u8]) -> Option<Self> {
        let head = head.first_chunk::<512>().filter(|head| head.starts_with(b"XFSB"))?;
        let u32_at = |at: usize| head[at..].first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
        let u64_at = |at: usize| head[at..].first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
        let label = String::from_utf8_lossy(&head[108..120]).trim_end_matches('\0').to_owned();
        let geometry = Geometry { block: Bytes::new(u32_at(4)?.into()), blocks: u64_at(8)?, inode_percent: head[127] };
        Some(Self { geometry, label, in_progress: head[126] != 0 })
    }

    /// Progress of the format; `None` for any other file system.
    fn state(&self) -> Option<Progress> {
        match (self.label.as_str(), self.in_progress) {
            (LABEL, false) => Some(Progress::Whole),
            // mkfs.xfs writes the superblock first, with an in-progress flag that it clears last. The final label with
            // this flag does not come from the node, which sets the label afterwards, but from an interrupted copy
            // (xfs_copy, xfs_mdrestore) or damage.
            (UNFINISHED_LABEL, _) => Some(Progress::Begun),
            _ => None,
        }
    }
}

/// Progress of the format of the node's file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Begun,
    Whole,
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::signature::Usage;

    const SIZE: u64 = 16 << 20;

    struct Image {
        head: Vec<u8>,
        tail: Vec<u8>,
    }

    impl Image {
        fn empty() -> Self {
            Self { head: vec![0; END], tail: vec![0; END] }
        }

        fn with(offset: usize, mark: &[u8]) -> Self {
            let mut image = Self::empty();
            image.head[offset..offset + mark.len()].copy_from_slice(mark);
            image
        }

        fn ends(&self) -> Ends<'_> {
            Ends { head: &self.head, tail: &self.tail, size: Bytes::new(SIZE) }
        }

        fn content(&self) -> Content {
            self.ends().content(&[])
        }
    }

    fn mark(format: &str) -> Mark {
        Mark { format: format.into(), usage: Usage::Filesystem, label: None }
    }

    fn xfs(label: &[u8], in_progress: u8) -> Image {
        let mut image = Image::with(0, b"XFSB\x00\x00\x10\x00\x00\x00\x00\x00\x00\x04\x00\x00");
        image.head[108..108 + label.len()].copy_from_slice(label);
        (image.head[126], image.head[127]) = (in_progress, 25);
        image
    }

    /// The beginning of a disk that a node formatted.
    pub(crate) fn our_superblock() -> Vec<u8> {
        xfs(LABEL.as_bytes(), 0).head[..512].to_vec()
    }

    #[test]
    fn our_own_file_system_is_known_by_its_label() {
        let geometry = Geometry { block: Bytes::new(4096), blocks: 0x40000, inode_percent: 25 };
        assert_eq!(xfs(LABEL.as_bytes(), 0).content(), Content::Data(geometry));
        assert_eq!(xfs(LABEL.as_bytes(), 0).ends().geometry(), Some(geometry));
    }

    #[test]
    fn a_file_system_that_was_begun_is_not_taken_for_whole() {
        for image in [xfs(UNFINISHED_LABEL.as_bytes(), 1), xfs(UNFINISHED_LABEL.as_bytes(), 0)] {
            assert_eq!(image.content(), Content::Unfinished);
            assert_eq!(image.ends().content(&[mark("xfs")]), Content::Unfinished);
        }
    }

    #[test]
    fn another_xfs_is_foreign_even_if_it_was_not_finished() {
        // The last image is an interrupted xfs_copy of a data disk.
        for image in [xfs(b"home", 0), xfs(b"home", 1), xfs(b"", 0), xfs(LABEL.as_bytes(), 1)] {
            let marks = [mark("xfs")];
            assert_eq!(image.ends().content(&marks), Content::Foreign(Signature::Known(marks.to_vec())));
            assert_eq!(image.content(), Content::Foreign(Signature::Unknown { at: 0 }));
        }
    }

    #[test]
    fn what_was_begun_and_then_made_something_else_is_foreign() {
        let marks = vec![mark("xfs"), mark("ext4")];
        let begun = xfs(UNFINISHED_LABEL.as_bytes(), 0);
        assert_eq!(begun.ends().content(&marks), Content::Foreign(Signature::Known(marks)));
    }

    #[test]
    fn what_tenants_write_cannot_make_our_file_system_foreign() {
        let whole = xfs(LABEL.as_bytes(), 0);
        assert!(matches!(whole.ends().content(&[mark("linux_raid_member")]), Content::Data(_)));
    }

    #[test]
    fn a_disk_grows_by_no_less_than_a_mebibyte() {
        let geometry = Geometry { block: Bytes::new(4096), blocks: 256, inode_percent: 25 };
        assert_eq!(geometry.blocks_to_grow_to(Bytes::MIB), None);
        assert_eq!(geometry.blocks_to_grow_to(Bytes::new((2 << 20) - 1)), None);
        assert_eq!(geometry.blocks_to_grow_to(Bytes::new((2 << 20) + 5)), Some(512));
        assert_eq!(geometry.blocks_to_grow_to(Bytes::ZERO), None);
    }

    proptest! {
        #[test]
        fn a_disk_with_a_single_byte_is_foreign(at in 0..2 * END, byte in 1_u8..) {
            let mut image = Image::empty();
            match at.checked_sub(END) {
                None => image.head[at] = byte,
                Some(at) => image.tail[at] = byte,
            }
            prop_assert!(matches!(image.content(), Content::Foreign(_)));
        }

        #[test]
        fn no_superblock_makes_probing_panic(bytes in prop::collection::vec(any::<u8>(), 508)) {
            let head = [b"XFSB", bytes.as_slice()].concat();
            let content = Ends { head: &head, tail: &[], size: Bytes::new(SIZE) }.content(&[]);
            if let Content::Data(geometry) = content {
                let _ = geometry.blocks_to_grow_to(Bytes::new(SIZE));
            }
        }
    }
}
