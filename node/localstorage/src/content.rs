//! What is on a disk, judged by both its ends.

use std::fmt;

use units::Bytes;

/// Label of the file system that this node makes, all twelve bytes that XFS has for one.
pub const LABEL: &str = "granary-data";

/// How much of each end of a disk is read.
pub(crate) const END: usize = 1 << 20;

/// What a disk holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Zeros at both ends.
    Empty,
    /// Our file system.
    Ours(Geometry),
    /// Our file system, of which `mkfs.xfs` wrote only a part: there never was data in it.
    Unfinished,
    /// Something that we did not make.
    Foreign(Signature),
}

/// Numbers of an XFS superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size of a block.
    pub block: Bytes,
    /// How many blocks the file system has.
    pub blocks: u64,
    /// Part of the space that inodes may take.
    pub inode_percent: u8,
}

impl Geometry {
    /// How many blocks there could be on a disk of this size, if the file system should grow. Less
    /// than 1 MiB is not worth it: XFS cannot use so little.
    pub(crate) fn blocks_to_grow_to(&self, disk: Bytes) -> Option<u64> {
        let present = self.block.checked_mul(self.blocks)?;
        let gained = disk.saturating_sub(present);
        if gained < Bytes::MIB { None } else { disk.get().checked_div(self.block.get()) }
    }
}

/// What foreign content looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signature {
    /// Something known by its mark.
    Known(&'static str),
    /// An XFS with another label.
    Xfs {
        /// Its label, empty if it has none.
        label: String,
    },
    /// Bytes that are not zero.
    Unknown {
        /// Where the first of them is.
        at: u64,
    },
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(name) => f.write_str(name),
            Self::Xfs { label } if label.is_empty() => f.write_str("an XFS file system without a label"),
            Self::Xfs { label } => write!(f, "an XFS file system with the label {label:?}"),
            Self::Unknown { at } => write!(f, "data of an unknown kind (byte {at} is not zero)"),
        }
    }
}

/// The two ends of a disk, [`END`] bytes each, or the whole disk twice if it is smaller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends<'disk> {
    pub(crate) head: &'disk [u8],
    pub(crate) tail: &'disk [u8],
    pub(crate) size: u64,
}

/// Marks by their place from the beginning, the more particular ones first.
const AT_HEAD: &[(&str, usize, &[u8])] = &[
    ("a LUKS encrypted volume", 0, b"LUKS\xba\xbe"),
    ("a GUID partition table", 512, b"EFI PART"),
    ("a GUID partition table", 4096, b"EFI PART"),
    ("an LVM physical volume", 0, b"LABELONE"),
    ("an LVM physical volume", 512, b"LABELONE"),
    ("an LVM physical volume", 1024, b"LABELONE"),
    ("an LVM physical volume", 1536, b"LABELONE"),
    ("a member of an MD RAID", 0, b"\xfc\x4e\x2b\xa9"),
    ("a member of an MD RAID", 4096, b"\xfc\x4e\x2b\xa9"),
    ("an EROFS file system", 1024, b"\xe2\xe1\xf5\xe0"),
    ("an F2FS file system", 1024, b"\x10\x20\xf5\xf2"),
    ("an ext2, ext3 or ext4 file system", 1080, b"\x53\xef"),
    ("a btrfs file system", 65_600, b"_BHRfS_M"),
    ("a bcache or bcachefs device", 4120, b"\xc6\x85\x73\xf6"),
    ("swap space", 4086, b"SWAPSPACE2"),
    ("swap space", 4086, b"SWAP-SPACE"),
    ("an ISO 9660 file system", 32_769, b"CD001"),
    ("a squashfs file system", 0, b"hsqs"),
    ("an NTFS file system", 3, b"NTFS    "),
    ("a FAT file system", 82, b"FAT32"),
    ("a FAT file system", 54, b"FAT1"),
    ("a partition table or boot sector", 510, b"\x55\xaa"),
];

impl Ends<'_> {
    pub(crate) fn content(&self) -> Content {
        if let Some(found) = Superblock::parse(self.head) {
            return found.content();
        }
        let known = |name: &&'static str| Content::Foreign(Signature::Known(name));
        if let Some(name) = self.known().as_ref().map(known) {
            return name;
        }
        match self.first_byte_that_is_not_zero() {
            Some(at) => Content::Foreign(Signature::Unknown { at }),
            None => Content::Empty,
        }
    }

    fn known(&self) -> Option<&'static str> {
        let is = |offset: usize, mark: &[u8]| self.head.get(offset..).is_some_and(|rest| rest.starts_with(mark));
        AT_HEAD
            .iter()
            .find(|(_, offset, mark)| is(*offset, mark))
            .map(|(name, ..)| *name)
            .or_else(|| self.known_at_tail())
    }

    fn known_at_tail(&self) -> Option<&'static str> {
        // From the end, rounded down as each format does it: md(4), and the UEFI specification.
        let version_090 = (self.size & !0xffff).checked_sub(0x10000);
        let version_1_0 = self.size.checked_sub(8192).map(|at| at & !0xfff);
        let raid = [version_090, version_1_0];
        let partitions = [self.size.checked_sub(512), self.size.checked_sub(4096)];
        let is =
            |at: Option<u64>, mark: &[u8]| at.and_then(|at| self.from(at)).is_some_and(|rest| rest.starts_with(mark));
        if raid.into_iter().any(|at| is(at, b"\xfc\x4e\x2b\xa9")) {
            Some("a member of an MD RAID")
        } else if partitions.into_iter().any(|at| is(at, b"EFI PART")) {
            Some("the second copy of a GUID partition table")
        } else {
            None
        }
    }

    /// The tail from a place of the disk on.
    fn from(&self, at: u64) -> Option<&[u8]> {
        let from_end = usize::try_from(self.size.checked_sub(at)?).ok()?;
        self.tail.get(self.tail.len().checked_sub(from_end)?..)
    }

    fn first_byte_that_is_not_zero(&self) -> Option<u64> {
        let first = |bytes: &[u8]| bytes.iter().position(|byte| *byte != 0).map(|at| at as u64);
        let tail_begins = self.size.saturating_sub(self.tail.len() as u64);
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

    fn content(self) -> Content {
        match (self.label == LABEL, self.in_progress) {
            (true, false) => Content::Ours(self.geometry),
            // mkfs.xfs writes the superblock first and takes this mark off last.
            (true, true) => Content::Unfinished,
            (false, _) => Content::Foreign(Signature::Xfs { label: self.label }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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

        fn content(&self) -> Content {
            Ends { head: &self.head, tail: &self.tail, size: SIZE }.content()
        }
    }

    fn xfs(label: &[u8], in_progress: u8) -> Image {
        let mut image = Image::with(0, b"XFSB\x00\x00\x10\x00\x00\x00\x00\x00\x00\x04\x00\x00");
        image.head[108..108 + label.len()].copy_from_slice(label);
        (image.head[126], image.head[127]) = (in_progress, 25);
        image
    }

    #[test]
    fn zeros_at_both_ends_are_an_empty_disk() {
        assert_eq!(Image::empty().content(), Content::Empty);
    }

    #[test]
    fn our_own_file_system_is_known_by_its_label() {
        let geometry = Geometry { block: Bytes::new(4096), blocks: 0x40000, inode_percent: 25 };
        assert_eq!(xfs(LABEL.as_bytes(), 0).content(), Content::Ours(geometry));
        assert_eq!(xfs(LABEL.as_bytes(), 1).content(), Content::Unfinished);
    }

    #[test]
    fn another_xfs_is_foreign_even_if_it_was_not_finished() {
        let home = Content::Foreign(Signature::Xfs { label: "home".into() });
        assert_eq!(xfs(b"home", 0).content(), home);
        assert_eq!(xfs(b"home", 1).content(), home);
        assert_eq!(xfs(b"", 0).content(), Content::Foreign(Signature::Xfs { label: String::new() }));
    }

    #[test]
    fn what_is_at_the_beginning_is_named() {
        for (name, offset, mark) in AT_HEAD {
            assert_eq!(Image::with(*offset, mark).content(), Content::Foreign(Signature::Known(name)), "{offset}");
        }
    }

    #[test]
    fn what_is_at_the_end_is_named() {
        for (name, from_end, mark) in [
            ("a member of an MD RAID", 0x10000, b"\xfc\x4e\x2b\xa9".as_slice()),
            ("a member of an MD RAID", 8192, b"\xfc\x4e\x2b\xa9"),
            ("the second copy of a GUID partition table", 512, b"EFI PART"),
        ] {
            let mut image = Image::empty();
            image.tail[END - from_end..][..mark.len()].copy_from_slice(mark);
            assert_eq!(image.content(), Content::Foreign(Signature::Known(name)), "{from_end}");
        }
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
        fn a_single_byte_anywhere_makes_a_disk_foreign(at in 0..2 * END, byte in 1_u8..) {
            let mut image = Image::empty();
            match at.checked_sub(END) {
                None => image.head[at] = byte,
                Some(at) => image.tail[at] = byte,
            }
            prop_assert!(matches!(image.content(), Content::Foreign(_)));
        }

        #[test]
        fn no_bytes_of_any_length_make_probing_panic(head: Vec<u8>, tail: Vec<u8>, size: u64) {
            let _ = Ends { head: &head, tail: &tail, size }.content();
        }

        #[test]
        fn no_superblock_makes_probing_panic(bytes in prop::collection::vec(any::<u8>(), 508)) {
            let head = [b"XFSB", bytes.as_slice()].concat();
            let content = Ends { head: &head, tail: &[], size: SIZE }.content();
            if let Content::Ours(geometry) = content {
                let _ = geometry.blocks_to_grow_to(Bytes::new(SIZE));
            }
        }
    }
}
