//! Parses sizes.

use std::str::FromStr;

use crate::Bytes;
use crate::bytes::UNITS;

/// An invalid size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The text does not begin with a digit.
    #[error("{text:?} does not begin with a number; give a size like 512M, 8G or 4096")]
    NoNumber {
        /// The input.
        text: String,
    },
    /// The text after the number is not a unit.
    #[error("{unit:?} is not a unit; use K, M, G, T, P or E (powers of 1024), or none for a plain number")]
    Unit {
        /// The part after the number.
        unit: String,
    },
    /// The value exceeds 64 bits.
    #[error("{text:?} is too large; the largest is {}", u64::MAX)]
    TooLarge {
        /// The input.
        text: String,
    },
}

/// Parses `4096`, `512M`, `8G`, `1Gi`, `1 GiB`: a whole number, followed by nothing, `B`, or one of `KMGTPE` with an
/// optional `i` or `iB`. All units are powers of 1024: `8G` is 8 GiB.
impl FromStr for Bytes {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let (number, unit) = number(text)?;
        let factor = factor(unit).ok_or_else(|| ParseError::Unit { unit: unit.to_owned() })?;
        number.checked_mul(factor).map(Self::new).ok_or_else(|| ParseError::TooLarge { text: text.to_owned() })
    }
}

fn number(text: &str) -> Result<(u64, &str), ParseError> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(ParseError::NoNumber { text: text.to_owned() });
    }
    // `number` consists of digits only, so that overflow is the only possible error.
    let number = number.parse().map_err(|_| ParseError::TooLarge { text: text.to_owned() })?;
    Ok((number, unit.trim_start_matches(' ')))
}

fn factor(unit: &str) -> Option<u64> {
    if matches!(unit, "" | "B") {
        return Some(1);
    }
    let letter = unit.strip_suffix("iB").or_else(|| unit.strip_suffix('i')).unwrap_or(unit);
    UNITS.iter().find(|(name, _)| letter.len() == 1 && name.starts_with(letter)).map(|(_, factor)| *factor)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_are_parsed_with_and_without_units() {
        for (text, size) in [
            ("0", 0),
            ("4096", 4096),
            ("7B", 7),
            ("512M", 512 << 20),
            ("8G", 8 << 30),
            ("1Gi", 1 << 30),
            ("1GiB", 1 << 30),
            ("3 TiB", 3 << 40),
            ("15E", 15 << 60),
        ] {
            assert_eq!(text.parse::<Bytes>(), Ok(Bytes::new(size)), "{text}");
        }
    }

    #[test]
    fn an_invalid_size_is_rejected_with_the_reason() {
        let refused = |text: &str| text.parse::<Bytes>().unwrap_err();
        for text in ["", "G", "-1", "+1", " 1", "one"] {
            assert_eq!(refused(text), ParseError::NoNumber { text: text.to_owned() });
        }
        for (text, unit) in [("1g", "g"), ("1GB", "GB"), ("1.5G", ".5G"), ("1iB", "iB"), ("1X", "X"), ("1GiBB", "GiBB")]
        {
            assert_eq!(refused(text), ParseError::Unit { unit: unit.to_owned() });
        }
        for text in ["16E", "18446744073709551616"] {
            assert_eq!(refused(text), ParseError::TooLarge { text: text.to_owned() });
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text: String) {
            let _ = text.parse::<Bytes>();
        }

        #[test]
        fn a_number_without_a_unit_is_in_bytes(size: u64) {
            prop_assert_eq!(size.to_string().parse(), Ok(Bytes::new(size)));
        }
    }
}
