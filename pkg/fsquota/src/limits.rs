//! Limits and usage, and their conversion from and to the units of the kernel.

use units::{Bytes, Inodes};

use crate::error::LimitError;
use crate::project::ProjectId;
use crate::sys::{self, DiskQuota};

/// Hard limits of a project.
///
/// In a request, `None` leaves a limit unchanged. In a result, `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Space for data, directories and extended attributes.
    pub bytes: Option<Bytes>,
    /// Number of inodes, including the directory itself.
    pub inodes: Option<Inodes>,
}

impl Limits {
    /// The largest limit of space, 2^63−2^16: the kernel counts in signed 64 bits and rounds up to a block of at most
    /// 64 KiB.
    pub const MAX_BYTES: Bytes = Bytes::new((i64::MAX as u64) & !0xffff);
    /// The largest limit of inodes: the kernel counts in signed 64 bits.
    pub const MAX_INODES: Inodes = Inodes::new(i64::MAX as u64);

    /// Limits for a volume of this size: the size in bytes, and its [`default_inodes`].
    pub fn for_size(size: Bytes) -> Self {
        Self { bytes: Some(size), inodes: Some(default_inodes(size)) }
    }
}

/// The default inode limit for a size: one inode per 2 KiB, at least 64.
///
/// An XFS inode takes 512 bytes and XFS gives inodes at most a quarter of the space by default: a project with this
/// limit has no more used inodes than its share. XFS does not charge inode chunks to the blocks of a project, and keeps
/// a chunk of 64 inodes as long as one of them is used. A project that leaves one in each can have chunks for its limit
/// in each allocation group (`xfs_dialloc`, `xfs_difree_inobt`).
pub const fn default_inodes(size: Bytes) -> Inodes {
    let share = size.get() / 2048;
    Inodes::new(if share < 64 { 64 } else { share })
}

/// Usage of a project.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Usage {
    /// Space of its files, directories and extended attributes.
    pub bytes: Bytes,
    /// Number of inodes with its ID.
    pub inodes: Inodes,
}

impl Usage {
    /// The larger share of the limits that is used, in percent, rounded down; `None` without limits.
    pub fn percent_of(self, limits: Limits) -> Option<u64> {
        let share = |used: u64, limit: u64| (u128::from(used) * 100).checked_div(u128::from(limit));
        let bytes = limits.bytes.and_then(|limit| share(self.bytes.get(), limit.get()));
        let inodes = limits.inodes.and_then(|limit| share(self.inodes.get(), limit.get()));
        bytes.max(inodes).map(|percent| u64::try_from(percent).unwrap_or(u64::MAX))
    }
}

/// Limits and usage of a project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Project ID.
    pub id: ProjectId,
    /// Limits; `None` for one that is not set.
    pub limits: Limits,
    /// Limits that `statfs` shows: the soft ones, or the hard ones where no soft limit is set. They equal `limits`,
    /// unless [`Quotas::set_limits_showing`](crate::Quotas::set_limits_showing) or another program has set others.
    pub shown: Limits,
    /// Usage.
    pub used: Usage,
}

impl Quota {
    pub(crate) fn from_kernel(id: ProjectId, found: &DiskQuota) -> Self {
        let limit = |number: u64| (number > 0).then_some(number);
        let limits = |blocks, inodes| Limits {
            bytes: limit(blocks).map(|blocks| BasicBlocks(blocks).bytes()),
            inodes: limit(inodes).map(Inodes::new),
        };
        let shown = |soft: u64, hard: u64| if soft > 0 { soft } else { hard };
        Self {
            id,
            limits: limits(found.blk_hardlimit, found.ino_hardlimit),
            // `xfs_fill_statvfs_from_dquot`, fs/xfs/xfs_qm_bhv.c.
            shown: limits(
                shown(found.blk_softlimit, found.blk_hardlimit),
                shown(found.ino_softlimit, found.ino_hardlimit),
            ),
            used: Usage { bytes: BasicBlocks(found.bcount).bytes(), inodes: Inodes::new(found.icount) },
        }
    }
}

/// Basic blocks of 512 bytes, the unit of limits and usage in `fs_disk_quota`, independent of the block size of the
/// file system. Never leaves this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct BasicBlocks(u64);

impl BasicBlocks {
    /// Rounds up, so that the limit is never below the requested size.
    const fn at_least(size: Bytes) -> Self {
        Self(size.div_ceil::<512>())
    }

    const fn bytes(self) -> Bytes {
        Bytes::new(self.0.saturating_mul(512))
    }
}

/// Limits that the kernel accepts: neither 0, which the kernel interprets as "no limit", nor too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckedLimits(Limits);

impl CheckedLimits {
    /// Whether neither limit is set.
    pub(crate) fn sets_nothing(self) -> bool {
        self.0 == Limits::default()
    }

    /// Converts to the kernel's structure. Soft limits equal hard limits, so that no grace time applies.
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

    /// Like [`CheckedLimits::to_kernel`], with the soft limit of space `shown`, if it is below the hard one.
    pub(crate) fn to_kernel_showing(self, id: ProjectId, shown: Bytes) -> DiskQuota {
        let mut wanted = self.to_kernel(id);
        let BasicBlocks(soft) = BasicBlocks::at_least(shown);
        if (1..wanted.blk_hardlimit).contains(&soft) {
            wanted.blk_softlimit = soft;
            wanted.extend_grace();
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

/// The kernel's structure for removing both limits.
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
    fn a_limit_of_zero_is_rejected() {
        assert_eq!(checked(Some(0), None), Err(LimitError::NoBytes));
        assert_eq!(checked(Some(1), Some(0)), Err(LimitError::NoInodes));
    }

    #[test]
    fn a_limit_above_the_maximum_is_rejected() {
        for asked in [BYTES + 1, u64::MAX] {
            assert_eq!(checked(Some(asked), None), Err(LimitError::TooManyBytes { asked: Bytes::new(asked) }));
        }
        for asked in [INODES + 1, u64::MAX] {
            assert_eq!(checked(None, Some(asked)), Err(LimitError::TooManyInodes { asked: Inodes::new(asked) }));
        }
        assert!(checked(Some(BYTES), Some(INODES)).is_ok());
    }

    #[test]
    fn a_limit_of_none_is_not_changed() {
        let only_inodes = checked(None, Some(3)).unwrap().to_kernel(id());
        assert_eq!((only_inodes.fieldmask, only_inodes.ino_hardlimit), (sys::INODE_LIMITS, 3));
        let only_bytes = checked(Some(512), None).unwrap().to_kernel(id());
        assert_eq!((only_bytes.fieldmask, only_bytes.blk_hardlimit), (sys::BLOCK_LIMITS, 1));
        assert!(checked(None, None).unwrap().sets_nothing());
    }

    #[test]
    fn a_shown_size_that_is_not_below_the_limit_has_no_effect() {
        let limits = checked(Some(1024), Some(3)).unwrap();
        let soft = [0, 1, 512, 513, 1024, u64::MAX].map(|shown| {
            let kernel = limits.to_kernel_showing(id(), Bytes::new(shown));
            let has_times = kernel.fieldmask != limits.to_kernel(id()).fieldmask;
            (kernel.blk_softlimit, has_times, Quota::from_kernel(id(), &kernel).shown.inodes)
        });
        let of_limit = (2, false, Some(Inodes::new(3)));
        let smaller = (1, true, Some(Inodes::new(3)));
        assert_eq!(soft, [of_limit, smaller, smaller, of_limit, of_limit, of_limit]);
    }

    #[test]
    fn the_smallest_size_has_64_inodes() {
        assert_eq!(default_inodes(Bytes::new(1)), Inodes::new(64));
        assert_eq!(default_inodes(Bytes::GIB), Inodes::new(524_288));
    }

    #[test]
    fn the_larger_share_of_two_limits_counts() {
        let used = Usage { bytes: Bytes::new(899), inodes: Inodes::new(9) };
        let percent = |bytes: Option<u64>, inodes: Option<u64>| {
            used.percent_of(Limits { bytes: bytes.map(Bytes::new), inodes: inodes.map(Inodes::new) })
        };
        assert_eq!(percent(None, None), None);
        assert_eq!(percent(Some(1000), None), Some(89));
        assert_eq!(percent(Some(1000), Some(10)), Some(90));
        assert_eq!(percent(Some(1), Some(u64::MAX)), Some(89_900));
    }

    proptest! {
        #[test]
        fn a_limit_read_back_is_at_least_the_one_set(bytes in 1..=BYTES, inodes in 1..=INODES) {
            let kernel = checked(Some(bytes), Some(inodes)).unwrap().to_kernel(id());
            let back = Quota::from_kernel(id(), &kernel).limits;
            let size = back.bytes.unwrap().get();
            prop_assert!(size >= bytes && size - bytes < 512);
            prop_assert_eq!(back.inodes, Some(Inodes::new(inodes)));
        }

        #[test]
        fn conversion_from_the_kernel_never_panics(blocks: u64, used: u64, inodes: u64) {
            let mut found = DiskQuota::of(7);
            (found.blk_hardlimit, found.ino_hardlimit) = (blocks, inodes);
            (found.bcount, found.icount) = (used, used);
            let quota = Quota::from_kernel(id(), &found);
            prop_assert_eq!(quota.limits.bytes.is_none(), blocks == 0);
        }
    }
}
