//! Configuration of a device.

use std::fmt;

use nix::unistd::{SysconfVar, sysconf};
use units::Bytes;

use crate::error::ConfigError;
use crate::sys;

/// Unit of a device's size.
const SECTOR: Bytes = Bytes::new(512);

/// Configuration of a device. By default the device is as large as its backing file, writable and buffered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Config {
    /// Logical block size. `None` leaves the choice to the kernel: 512 bytes, or with direct I/O the block size of the
    /// disk below (Linux 6.15; before only if the backing descriptor has `O_DIRECT`). Always `Some` in a status.
    pub block_size: Option<BlockSize>,
    /// Writes to the device fail (`EPERM`). Needed if the backing file is open for reading only.
    pub read_only: bool,
    /// The kernel detaches the device when its last user closes it. Also set in a status after a deferred detach.
    pub autoclear: bool,
    /// The kernel reads the partition table and creates a device for each partition. Always set in a status if the
    /// module has `max_part`.
    pub partscan: bool,
    /// Bypasses the page cache of the backing file. The kernel drops this flag **without an error** if the file system
    /// has no direct I/O, if the block size is smaller than that of the disk below, or if `offset` is not a multiple of
    /// the disk's block size. A status has the actual value.
    pub direct_io: bool,
    /// Offset of the device in the backing file.
    pub offset: Bytes,
    /// Maximum size from `offset`, at least 512 bytes; the device has whole sectors only. `None` is the size up to the
    /// end of the file.
    pub size_limit: Option<Bytes>,
}

impl Config {
    /// Rejects values that the kernel could misinterpret.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let limit = self.size_limit.unwrap_or(self.offset);
        if let Some(asked) = self.size_limit.filter(|limit| *limit < SECTOR) {
            return Err(ConfigError::NoSector { asked });
        }
        match [self.offset, limit].into_iter().find(|size| i64::try_from(size.get()).is_err()) {
            Some(asked) => Err(ConfigError::TooLarge { asked }),
            None => Ok(()),
        }
    }

    /// `block_size` of `struct loop_config`.
    pub(crate) fn kernel_block_size(&self) -> u32 {
        self.block_size.map_or(0, BlockSize::get)
    }

    pub(crate) fn to_kernel(self) -> sys::LoopInfo {
        let flags = [
            (self.read_only, sys::READ_ONLY),
            (self.autoclear, sys::AUTOCLEAR),
            (self.partscan, sys::PARTSCAN),
            (self.direct_io, sys::DIRECT_IO),
        ];
        let flags = flags.into_iter().filter(|(wanted, _)| *wanted).map(|(_, flag)| flag).sum();
        sys::LoopInfo::wanted(self.offset.get(), self.size_limit.map_or(0, Bytes::get), flags)
    }

    pub(crate) fn from_kernel(info: &sys::LoopInfo, block_size: u32) -> Self {
        let on = |flag| info.flags & flag != 0;
        Self {
            block_size: Some(BlockSize(block_size)),
            read_only: on(sys::READ_ONLY),
            autoclear: on(sys::AUTOCLEAR),
            partscan: on(sys::PARTSCAN),
            direct_io: on(sys::DIRECT_IO),
            offset: Bytes::new(info.offset),
            size_limit: Some(Bytes::new(info.sizelimit)).filter(|limit| *limit != Bytes::ZERO),
        }
    }
}

/// A logical block size: a power of two from 512 bytes to the size of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockSize(u32);

impl BlockSize {
    /// 512 bytes, which every kernel supports.
    pub const SECTOR: Self = Self(512);

    /// A block size in bytes.
    ///
    /// # Errors
    /// [`ConfigError::BlockSize`] if no device of this machine can have the size, also for 0: use `None` in [`Config`].
    pub fn new(bytes: u32) -> Result<Self, ConfigError> {
        // Linux always reports the page size.
        let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().and_then(|page| u32::try_from(page).ok());
        Self::up_to(bytes, page.unwrap_or(4096))
    }

    fn up_to(bytes: u32, page: u32) -> Result<Self, ConfigError> {
        if bytes.is_power_of_two() && (512..=page).contains(&bytes) {
            Ok(Self(bytes))
        } else {
            Err(ConfigError::BlockSize { asked: bytes, page })
        }
    }

    /// The plain number of bytes.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for BlockSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Bytes::new(self.0.into()).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn block_sizes_are_powers_of_two_from_a_sector_to_a_page() {
        let good: Vec<u32> = (0..=1 << 17).filter(|bytes| BlockSize::up_to(*bytes, 65536).is_ok()).collect();
        assert_eq!(good, [512, 1024, 2048, 4096, 8192, 16384, 32768, 65536]);
        assert_eq!(BlockSize::up_to(8192, 4096), Err(ConfigError::BlockSize { asked: 8192, page: 4096 }));
        assert_eq!(BlockSize::new(512), Ok(BlockSize::SECTOR));
        assert!(BlockSize::new(0).is_err());
        assert!(BlockSize::new(1 << 31).is_err());
    }

    #[test]
    fn sizes_that_the_kernel_takes_for_something_else_are_refused() {
        let most = Bytes::new(i64::MAX as u64);
        let more = Bytes::new(1 << 63);
        let check = |offset, size_limit| Config { offset, size_limit, ..Config::default() }.check();
        assert_eq!(check(Bytes::ZERO, None), Ok(()));
        assert_eq!(check(most, Some(most)), Ok(()));
        assert_eq!(check(more, None), Err(ConfigError::TooLarge { asked: more }));
        assert_eq!(check(Bytes::ZERO, Some(more)), Err(ConfigError::TooLarge { asked: more }));
        for asked in [0, 1, 511].map(Bytes::new) {
            assert_eq!(check(Bytes::ZERO, Some(asked)), Err(ConfigError::NoSector { asked }));
        }
        assert_eq!(check(Bytes::ZERO, Some(SECTOR)), Ok(()));
    }

    fn configs() -> impl Strategy<Value = Config> {
        (9_u32..=12, any::<[bool; 4]>(), 0_u64..1 << 63, proptest::option::of(512_u64..1 << 63)).prop_map(
            |(shift, [read_only, autoclear, partscan, direct_io], offset, limit)| Config {
                block_size: Some(BlockSize(1 << shift)),
                read_only,
                autoclear,
                partscan,
                direct_io,
                offset: Bytes::new(offset),
                size_limit: limit.map(Bytes::new),
            },
        )
    }

    proptest! {
        #[test]
        fn a_configuration_is_read_back(config in configs()) {
            prop_assert_eq!(config.check(), Ok(()));
            prop_assert_eq!(Config::from_kernel(&config.to_kernel(), config.kernel_block_size()), config);
        }
    }
}
