//! Limits and usage in our units, and the one place that knows the kernel's.

use units::{Bytes, Inodes};

use crate::error::LimitError;
use crate::project::ProjectId;
use crate::sys::{self, DiskQuota};

/// Hard limits of a project.
///
/// To set: `None` leaves that limit as it is. Read back: `None` means that there is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Limits {
    /// What data, directories and extended attributes may take.
    pub bytes: Option<Bytes>,
    /// How many inodes there may be, the directory itself among them.
    pub inodes: Option<Inodes>,
}

impl Limits {
    /// The largest size: the kernel counts in signed 64 bits and rounds up to a block, which is 64 KiB
    /// at most.
    pub const MAX_BYTES: Bytes = Bytes::new((i64::MAX as u64) & !0xffff);
    /// The largest count of inodes: the kernel counts in signed 64 bits.
    pub const MAX_INODES: Inodes = Inodes::new(i64::MAX as u64);

    /// This size, and as many inodes as [`default_inodes`] finds fit for it.
    pub fn for_size(size: Bytes) -> Self {
        Self { bytes: Some(size), inodes: Some(default_inodes(size)) }
    }
}

/// The inode limit for a project of this size: one for every 2 KiB, at least 64.
///
/// An inode of XFS takes 512 bytes and inodes get a quarter of the space at most, so that no project
/// can have more of them than its share. Inode chunks are not charged to a project's blocks.
pub const fn default_inodes(size: Bytes) -> Inodes {
    let share = size.get() / 2048;
    Inodes::new(if share < 64 { 64 } else { share })
}

/// What a project has in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Usage {
    /// Blocks of its files, directories and extended attributes.
    pub bytes: Bytes,
    /// Inodes that carry it.
    pub inodes: Inodes,
}

/// What a project may have and what it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The project.
    pub id: ProjectId,
    /// Its limits; `None` where it has none.
    pub limits: Limits,
    /// What it uses.
    pub used: Usage,
}

impl Quota {
    /// Bytes that can still be written: nothing if the limit is below what is in use already,
    /// `None` if there is no limit.
    pub fn available_bytes(&self) -> Option<Bytes> {
        self.limits.bytes.map(|limit| limit.saturating_sub(self.used.bytes))
    }

    /// Inodes that can still be made: none if the limit is below what is in use already, `None` if
    /// there is no limit.
    pub fn available_inodes(&self) -> Option<Inodes> {
        self.limits.inodes.map(|limit| limit.saturating_sub(self.used.inodes))
    }

    pub(crate) fn from_kernel(id: ProjectId, found: &DiskQuota) -> Self {
        let limit = |number: u64| (number > 0).then_some(number);
        Self {
            id,
            limits: Limits {
                bytes: limit(found.blk_hardlimit).map(|blocks| BasicBlocks(blocks).bytes()),
                inodes: limit(found.ino_hardlimit).map(Inodes::new),
            },
            used: Usage { bytes: BasicBlocks(found.bcount).bytes(), inodes: Inodes::new(found.icount) },
        }
    }
}

/// `fs_disk_quota` counts blocks of 512 bytes, for limits and usage alike, whatever the file system's
/// own block is. Never leaves this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct BasicBlocks(u64);

impl BasicBlocks {
    /// Rounds up: nobody gets less than was promised.
    const fn at_least(size: Bytes) -> Self {
        Self(size.div_ceil::<512>())
    }

    const fn bytes(self) -> Bytes {
        Bytes::new(self.0.saturating_mul(512))
    }
}

/// Limits that the kernel takes: not 0, which would mean "no limit" to it, and not too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckedLimits(Limits);

impl CheckedLimits {
    /// Sets nothing.
    pub(crate) fn sets_nothing(self) -> bool {
        self.0 == Limits::default()
    }

    /// The kernel's form. Soft limits equal the hard ones: there is no time of grace.
    pub(crate) fn to_kernel(self, id: ProjectId) -> DiskQuota {
        let mut wanted = DiskQuota::of(id.get());
        if let Some(size) = self.0.bytes {
            let BasicBlocks(blocks) = BasicBlocks::at_least(size);
            (wanted.blk_hardlimit, wanted.blk_softlimit) = (blocks, blocks);
            wanted.fieldmask |= sys::BLOCK_LIMITS;
        }
        if let Some(count) = self.0.inodes {
            (wanted.ino_hardlimit, wanted.ino_softlimit) = (count.get(), count.get());
            wanted.fieldmask |= sys::INODE_LIMITS;
        }
        wanted
    }
}

impl TryFrom<Limits> for CheckedLimits {
    type Error = LimitError;

    fn try_from(limits: Limits) -> Result<Self, LimitError> {
        match limits.bytes {
            Some(Bytes::ZERO) => return Err(LimitError::NoBytes),
            Some(asked) if asked > Limits::MAX_BYTES => return Err(LimitError::TooManyBytes { asked }),
            _ => {}
        }
        match limits.inodes {
            Some(Inodes::ZERO) => Err(LimitError::NoInodes),
            Some(asked) if asked > Limits::MAX_INODES => Err(LimitError::TooManyInodes { asked }),
            _ => Ok(Self(limits)),
        }
    }
}

/// The kernel's form of "no limits": removes both.
pub(crate) fn unlimited(id: ProjectId) -> DiskQuota {
    let mut wanted = DiskQuota::of(id.get());
    wanted.fieldmask = sys::BLOCK_LIMITS | sys::INODE_LIMITS;
    wanted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BYTES: u64 = Limits::MAX_BYTES.get();
    const INODES: u64 = Limits::MAX_INODES.get();

    fn checked(bytes: Option<u64>, inodes: Option<u64>) -> Result<CheckedLimits, LimitError> {
        Limits { bytes: bytes.map(Bytes::new), inodes: inodes.map(Inodes::new) }.try_into()
    }

    fn id() -> ProjectId {
        ProjectId::new(7).unwrap()
    }

    #[test]
    fn zero_is_refused_because_the_kernel_takes_it_for_no_limit() {
        assert_eq!(checked(Some(0), None), Err(LimitError::NoBytes));
        assert_eq!(checked(Some(1), Some(0)), Err(LimitError::NoInodes));
    }

    #[test]
    fn a_limit_beyond_the_kernels_numbers_is_refused() {
        for asked in [BYTES + 1, u64::MAX] {
            assert_eq!(checked(Some(asked), None), Err(LimitError::TooManyBytes { asked: Bytes::new(asked) }));
        }
        for asked in [INODES + 1, u64::MAX] {
            assert_eq!(checked(None, Some(asked)), Err(LimitError::TooManyInodes { asked: Inodes::new(asked) }));
        }
        assert!(checked(Some(BYTES), Some(INODES)).is_ok());
    }

    #[test]
    fn a_limit_that_is_not_named_is_not_touched() {
        let only_inodes = checked(None, Some(3)).unwrap().to_kernel(id());
        assert_eq!((only_inodes.fieldmask, only_inodes.ino_hardlimit), (sys::INODE_LIMITS, 3));
        let only_bytes = checked(Some(512), None).unwrap().to_kernel(id());
        assert_eq!((only_bytes.fieldmask, only_bytes.blk_hardlimit), (sys::BLOCK_LIMITS, 1));
        assert!(checked(None, None).unwrap().sets_nothing());
    }

    #[test]
    fn the_smallest_volume_still_gets_inodes() {
        assert_eq!(default_inodes(Bytes::new(1)), Inodes::new(64));
        assert_eq!(default_inodes(Bytes::GIB), Inodes::new(524_288));
    }

    #[test]
    fn nothing_is_available_when_the_limit_is_below_the_usage() {
        let used = Usage { bytes: Bytes::MIB, inodes: Inodes::new(9) };
        let limits = Limits { bytes: Some(Bytes::KIB), inodes: None };
        let quota = Quota { id: id(), limits, used };
        assert_eq!(quota.available_bytes(), Some(Bytes::ZERO));
        assert_eq!(quota.available_inodes(), None);
    }

    proptest! {
        #[test]
        fn what_is_read_back_is_at_least_what_was_set(bytes in 1..=BYTES, inodes in 1..=INODES) {
            let kernel = checked(Some(bytes), Some(inodes)).unwrap().to_kernel(id());
            let back = Quota::from_kernel(id(), &kernel).limits;
            let size = back.bytes.unwrap().get();
            prop_assert!(size >= bytes && size - bytes < 512);
            prop_assert_eq!(back.inodes, Some(Inodes::new(inodes)));
        }

        #[test]
        fn no_numbers_of_the_kernel_make_reading_panic(blocks: u64, used: u64, inodes: u64) {
            let mut found = DiskQuota::of(7);
            (found.blk_hardlimit, found.ino_hardlimit) = (blocks, inodes);
            (found.bcount, found.icount) = (used, used);
            let quota = Quota::from_kernel(id(), &found);
            prop_assert_eq!(quota.available_bytes().is_none(), blocks == 0);
        }
    }
}
