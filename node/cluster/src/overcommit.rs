use std::fmt;
use std::str::FromStr;

use units::Bytes;

/// Factor by which the reserved bytes of all volumes may exceed the size of the disk, 1.0 to 100.0, to three decimals.
///
/// With more than 1.0, a full disk is possible: writers get ENOSPC before their volume has reached its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Overcommit {
    thousandths: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an overcommit factor: write a number from 1.0 to 100.0 with at most three decimals")]
pub struct OvercommitError {
    text: String,
}

impl Overcommit {
    /// Reserves no more than the size of the disk.
    pub const NONE: Self = Self { thousandths: 1000 };

    const MOST: u32 = 100_000;

    pub fn of(self, size: Bytes) -> Bytes {
        let reservable = u128::from(size.get()) * u128::from(self.thousandths) / 1000;
        Bytes::new(u64::try_from(reservable).unwrap_or(u64::MAX))
    }
}

impl Default for Overcommit {
    fn default() -> Self {
        Self::NONE
    }
}

impl FromStr for Overcommit {
    type Err = OvercommitError;

    fn from_str(text: &str) -> Result<Self, OvercommitError> {
        let error = || OvercommitError { text: text.chars().take(32).collect() };
        let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
        let digits =
            |part: &str, most| (1..=most).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole, 3) || !digits(decimals, 3) {
            return Err(error());
        }
        let whole: u32 = whole.parse().map_err(|_| error())?;
        let decimals: u32 = format!("{decimals:0<3}").parse().map_err(|_| error())?;
        let thousandths = whole * 1000 + decimals;
        if (Self::NONE.thousandths..=Self::MOST).contains(&thousandths) {
            Ok(Self { thousandths })
        } else {
            Err(error())
        }
    }
}

impl fmt::Display for Overcommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = format!("{:03}", self.thousandths % 1000);
        let decimals = decimals.trim_end_matches('0');
        write!(f, "{}.{}", self.thousandths / 1000, if decimals.is_empty() { "0" } else { decimals })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn factors_have_up_to_three_decimals() {
        let of = |text: &str| text.parse::<Overcommit>().map(|factor| factor.of(Bytes::new(1000)).get());
        assert_eq!(of("1"), Ok(1000));
        assert_eq!(of("1.5"), Ok(1500));
        assert_eq!(of("1.025"), Ok(1025));
        assert_eq!(of("100.0"), Ok(100_000));
    }

    #[test]
    fn a_factor_below_one_or_an_invalid_number_is_rejected() {
        for text in ["", "0.9", "100.001", "1.", ".5", "1.0005", "-1", "+1", "1e2", "1,5", "NaN", "inf", "1.5 "] {
            assert!(text.parse::<Overcommit>().is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn a_factor_is_parsed_from_its_text(thousandths in 1000u32..=100_000) {
            let factor = Overcommit { thousandths };
            prop_assert_eq!(factor.to_string().parse(), Ok(factor));
        }

        #[test]
        fn a_disk_may_reserve_at_least_its_size(size: u64, thousandths in 1000u32..=100_000) {
            let reservable = Overcommit { thousandths }.of(Bytes::new(size));
            prop_assert!(reservable >= Bytes::new(size));
        }
    }
}
