//! [`Bytes`].

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::quantity::quantity;

/// A number of bytes, such as a size, a limit or free space.
///
/// `Display` prints a binary unit with at most two decimals, and the exact number after it if the decimals are not
/// exact: `1 GiB`, `1.5 GiB`, `7.56 GiB (8123456512 B)`. Serde writes a plain number. [`FromStr`](std::str::FromStr)
/// parses sizes with units, for command lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(u64);

/// Binary units, largest first.
pub(crate) const UNITS: [(&str, u64); 6] =
    [("EiB", 1 << 60), ("PiB", 1 << 50), ("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

quantity!(Bytes, "bytes");

impl Bytes {
    /// 2^10 bytes.
    pub const KIB: Self = Self(1 << 10);
    /// 2^20 bytes.
    pub const MIB: Self = Self(1 << 20);
    /// 2^30 bytes.
    pub const GIB: Self = Self(1 << 30);
    /// 2^40 bytes.
    pub const TIB: Self = Self(1 << 40);

    /// The product; `None` on overflow.
    pub const fn checked_mul(self, times: u64) -> Option<Self> {
        match self.0.checked_mul(times) {
            Some(product) => Some(Self(product)),
            None => None,
        }
    }

    /// The number of granules of `GRANULE` bytes that hold `self` bytes, rounded up.
    pub const fn div_ceil<const GRANULE: u64>(self) -> u64 {
        const { assert!(GRANULE > 0, "a granule is larger than 0") };
        self.0.div_ceil(GRANULE)
    }

    /// The smallest multiple of `GRANULE` that is not less than `self`; `None` on overflow.
    pub const fn round_up<const GRANULE: u64>(self) -> Option<Self> {
        match self.div_ceil::<GRANULE>().checked_mul(GRANULE) {
            Some(rounded) => Some(Self(rounded)),
            None => None,
        }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((name, unit)) = UNITS.iter().find(|(_, unit)| self.0 >= *unit) else {
            return write!(f, "{} B", self.0);
        };
        // u128, because a remainder below 2^60 times 100 exceeds 64 bits.
        let scaled = u128::from(self.0 % unit) * 100;
        let (whole, hundredths) = (self.0 / unit, scaled / u128::from(*unit));
        match (hundredths / 10, hundredths % 10) {
            (0, 0) => write!(f, "{whole}")?,
            (tenths, 0) => write!(f, "{whole}.{tenths}")?,
            _ => write!(f, "{whole}.{hundredths:02}")?,
        }
        write!(f, " {name}")?;
        if scaled.is_multiple_of(u128::from(*unit)) { Ok(()) } else { write!(f, " ({} B)", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn round_sizes_are_printed_in_their_largest_unit() {
        assert_eq!(Bytes::ZERO.to_string(), "0 B");
        assert_eq!(Bytes::new(1023).to_string(), "1023 B");
        assert_eq!(Bytes::KIB.to_string(), "1 KiB");
        assert_eq!(Bytes::GIB.to_string(), "1 GiB");
        assert_eq!(Bytes::new(3 << 29).to_string(), "1.5 GiB");
        assert_eq!(Bytes::new(5 << 28).to_string(), "1.25 GiB");
        assert_eq!(Bytes::new(1 << 63).to_string(), "8 EiB");
    }

    #[test]
    fn inexact_sizes_are_printed_with_their_exact_bytes() {
        assert_eq!(Bytes::new(1025).to_string(), "1 KiB (1025 B)");
        assert_eq!(Bytes::new(8_123_456_512).to_string(), "7.56 GiB (8123456512 B)");
        assert_eq!(Bytes::new(u64::MAX).to_string(), "15.99 EiB (18446744073709551615 B)");
    }

    #[test]
    fn sums_saturate() {
        assert_eq!([Bytes::KIB, Bytes::MIB].into_iter().sum::<Bytes>(), Bytes::new(1024 + 1024 * 1024));
        assert_eq!([Bytes::new(u64::MAX), Bytes::KIB].into_iter().sum::<Bytes>(), Bytes::new(u64::MAX));
    }

    #[test]
    fn serde_uses_a_plain_number() {
        let json: serde_json::Value = serde_json::to_value(Bytes::KIB).unwrap();
        assert_eq!(json, serde_json::json!(1024));
        assert_eq!(serde_json::from_value::<Bytes>(json).unwrap(), Bytes::KIB);
    }

    proptest! {
        #[test]
        fn round_up_returns_the_smallest_sufficient_multiple(size: u64) {
            match Bytes::new(size).round_up::<4096>() {
                Some(rounded) => {
                    prop_assert!(rounded.get() >= size && rounded.get() - size < 4096);
                    prop_assert_eq!(rounded.get() % 4096, 0);
                    prop_assert_eq!(rounded.div_ceil::<4096>(), Bytes::new(size).div_ceil::<4096>());
                }
                None => prop_assert!(size > u64::MAX - 4096),
            }
        }

        #[test]
        fn different_sizes_have_different_texts(a: u64, b: u64, near in 0_u64..4096) {
            prop_assert_eq!(a == b, Bytes::new(a).to_string() == Bytes::new(b).to_string());
            let c = a.wrapping_add(near);
            prop_assert_eq!(a == c, Bytes::new(a).to_string() == Bytes::new(c).to_string());
        }

        #[test]
        fn addition_reverses_subtraction(a: u64, b: u64) {
            let (a, b) = (Bytes::new(a), Bytes::new(b));
            match a.checked_sub(b) {
                Some(rest) => {
                    prop_assert_eq!(rest.checked_add(b), Some(a));
                    prop_assert_eq!(a.saturating_sub(b), rest);
                }
                None => prop_assert_eq!(a.saturating_sub(b), Bytes::ZERO),
            }
        }
    }
}
