//! Inodes and space that the image of a block volume takes from the disk. Pure.

use units::{Bytes, Inodes};

/// Inodes of a block volume: the directory and the image.
pub(crate) const INODES: Inodes = Inodes::new(2);

const BLOCK: u64 = 4096;

/// The maximum that an image of this size takes from the disk: its blocks, the map of its extents, and the blocks that
/// XFS reserves for a moment while it writes.
///
/// XFS maps a file by a tree of extents, 16 bytes each. In the worst case, every block is an extent of its own (for
/// example, if every second block was written), and every leaf of the tree is half full: 125 extents per block, and 125
/// leaves per block above them. Together, this is one block for 124. The map is charged to the same project as the
/// data.
///
/// A write into a hole first reserves five blocks, to split the tree on every level. A loop device has up to 128 such
/// writes in flight. A thick image has holes too, where the pod has discarded blocks. Writes to allocated blocks
/// reserve without regard to the quota (`xfs_iomap_write_unwritten`).
pub(crate) const fn taken(size: Bytes) -> Bytes {
    const AT_ONCE: u64 = 128;
    const LEVELS: u64 = 5;
    let map = size.get().div_ceil(BLOCK).div_ceil(124).saturating_add(AT_ONCE * LEVELS);
    size.saturating_add(Bytes::new(map.saturating_mul(BLOCK)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_worst_map_fits_beside_the_data(blocks in 1u64..1 << 40) {
            let size = Bytes::new(blocks * BLOCK);
            let (mut map, mut entries) = (0, blocks);
            while entries > 1 {
                entries = entries.div_ceil(125);
                map += entries;
            }
            prop_assert!(taken(size).get() >= size.get() + map * BLOCK);
        }

        #[test]
        fn a_larger_image_never_takes_less(a: u64, b: u64) {
            prop_assert!(taken(Bytes::new(a.min(b))) <= taken(Bytes::new(a.max(b))));
        }
    }
}
