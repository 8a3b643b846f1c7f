//! Numbers of a device: the one in its name, and its device number.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use nix::sys::stat::{major, minor};

/// Number in the name of a loop device, such as 7 in `loop7`. `Display` prints the name. The minor number may differ,
/// see [`DeviceNumber`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Number(u32);

impl Number {
    /// The plain number.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The device node, such as `/dev/loop7`.
    pub fn path(self) -> PathBuf {
        PathBuf::from(format!("/dev/{self}"))
    }

    /// The number for `LOOP_CTL_ADD` and `LOOP_CTL_REMOVE`. All constructors accept only numbers that fit.
    pub(crate) fn to_kernel(self) -> i32 {
        i32::try_from(self.0).unwrap_or(i32::MAX)
    }

    /// Converts a number of [`Numbers`](crate::Numbers), which is below 2^20.
    pub(crate) const fn of_sequence(number: u32) -> Self {
        Self(number)
    }

    /// Converts the result of `LOOP_CTL_GET_FREE`.
    pub(crate) fn from_kernel(number: i32) -> Option<Self> {
        u32::try_from(number).ok().map(Self)
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "loop{}", self.0)
    }
}

/// The text is not the name of a loop device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the name of a loop device; those are loop0, loop1 and so on")]
pub struct InvalidName;

impl FromStr for Number {
    type Err = InvalidName;

    /// Parses the name as sysfs shows it. Names of partitions (`loop7p1`) are invalid.
    fn from_str(name: &str) -> Result<Self, InvalidName> {
        let digits = name.strip_prefix("loop").ok_or(InvalidName)?;
        let plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
        let number = if plain { digits.parse::<i32>().ok() } else { None };
        number.and_then(Self::from_kernel).ok_or(InvalidName)
    }
}

/// Major and minor number of a device, such as `7:0`. The numbers are always those that the kernel reports: with the
/// module's parameter `max_part`, minor numbers of loop devices are multiples of a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber {
    /// Number of the driver, 12 bits.
    pub major: u32,
    /// Number of the device within the driver, 20 bits.
    pub minor: u32,
}

impl DeviceNumber {
    /// Decodes a number of `struct loop_info64`: `huge_encode_dev`, include/linux/kdev_t.h.
    pub(crate) const fn from_kernel(encoded: u64) -> Self {
        // The masks leave 12 and 20 bits.
        Self { major: (encoded >> 8 & 0xfff) as u32, minor: (encoded & 0xff | encoded >> 12 & 0xf_ff00) as u32 }
    }

    /// Decodes a number of `struct stat`, such as `st_dev`.
    pub fn from_stat(encoded: u64) -> Self {
        // Numbers of the kernel have fewer bits than those of the C library.
        let [major, minor] = [major(encoded), minor(encoded)].map(|part| u32::try_from(part).unwrap_or(u32::MAX));
        Self { major, minor }
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::makedev;
    use proptest::prelude::*;

    use super::*;

    /// `new_encode_dev`, include/linux/kdev_t.h.
    fn encode(major: u32, minor: u32) -> u64 {
        u64::from(minor & 0xff | major << 8 | (minor & !0xff) << 12)
    }

    #[test]
    fn names_of_partitions_and_other_disks_are_refused() {
        for name in ["loop", "loop0p1", "loop-1", "loop+1", "loop01", "loop 1", "loop2147483648", "vda", "Loop0", "0"] {
            assert_eq!(name.parse::<Number>(), Err(InvalidName), "{name}");
        }
        assert_eq!("loop0".parse(), Ok(Number(0)));
        assert_eq!(Number(2_147_483_647).to_string().parse(), Ok(Number(2_147_483_647)));
    }

    proptest! {
        #[test]
        fn the_kernels_encoding_gives_both_numbers_back(major in 0_u32..1 << 12, minor in 0_u32..1 << 20) {
            let found = DeviceNumber::from_kernel(encode(major, minor));
            prop_assert_eq!(found, DeviceNumber { major, minor });
            prop_assert_eq!(DeviceNumber::from_stat(makedev(major.into(), minor.into())), found);
        }

        #[test]
        fn no_encoding_gives_numbers_that_the_kernel_does_not_have(encoded: u64) {
            let found = DeviceNumber::from_kernel(encoded);
            prop_assert!(found.major < 1 << 12 && found.minor < 1 << 20);
        }

        #[test]
        fn a_name_is_read_back(number in 0_u32..1 << 31) {
            prop_assert_eq!(Number(number).to_string().parse(), Ok(Number(number)));
        }

        #[test]
        fn only_the_names_themselves_are_read(name in "(loop)?[0-9p+ -]{0,12}") {
            if let Ok(number) = name.parse::<Number>() {
                prop_assert_eq!(number.to_string(), name);
            }
        }
    }
}
