//! Conversion between quantities of Kubernetes and bytes.

use units::Bytes;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("not a quantity")]
    Syntax,
    #[error("a size cannot be negative")]
    Negative,
    #[error("more than 2^63-1 bytes")]
    TooLarge,
}

/// Suffixes with their powers of two and of ten.
const SUFFIXES: [(&str, u32, i32); 16] = [
    ("", 0, 0),
    ("Ki", 10, 0),
    ("Mi", 20, 0),
    ("Gi", 30, 0),
    ("Ti", 40, 0),
    ("Pi", 50, 0),
    ("Ei", 60, 0),
    ("n", 0, -9),
    ("u", 0, -6),
    ("m", 0, -3),
    ("k", 0, 3),
    ("M", 0, 6),
    ("G", 0, 9),
    ("T", 0, 12),
    ("P", 0, 15),
    ("E", 0, 18),
];

/// Parses a quantity. Fractions of a byte are rounded up.
pub fn bytes(text: &str) -> Result<Bytes, QuantityError> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let number_len = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(number_len);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() == 0 || fraction.contains('.') {
        return Err(QuantityError::Syntax);
    }
    let (two, ten) = powers(suffix).ok_or(QuantityError::Syntax)?;
    // Trailing zeros could overflow.
    let fraction = fraction.trim_end_matches('0');
    let digits = [whole.trim_start_matches('0'), fraction].concat();
    if digits.bytes().all(|digit| digit == b'0') {
        return Ok(Bytes::ZERO);
    }
    if text.starts_with('-') {
        return Err(QuantityError::Negative);
    }
    let digits: u128 = digits.parse().map_err(|_| QuantityError::TooLarge)?;
    let fraction_len = i32::try_from(fraction.len()).map_err(|_| QuantityError::Syntax)?;
    let ten = ten.saturating_sub(fraction_len);
    let scaled = digits.checked_mul(1 << two).ok_or(QuantityError::TooLarge)?;
    let power = 10u128.checked_pow(ten.unsigned_abs());
    let exact = match (ten < 0, power) {
        (false, power) => power.and_then(|power| scaled.checked_mul(power)).ok_or(QuantityError::TooLarge)?,
        (true, Some(power)) => scaled.div_ceil(power),
        // Less than one byte: 10^39 exceeds any u128.
        (true, None) => 1,
    };
    i64::try_from(exact).ok().and_then(|exact| u64::try_from(exact).ok()).map(Bytes::new).ok_or(QuantityError::TooLarge)
}

/// Formats a size in the canonical form of Kubernetes, such as `1536Mi`.
pub fn text(size: Bytes) -> String {
    let binary = SUFFIXES.iter().filter(|(_, _, ten)| *ten == 0).rev();
    let (suffix, two) = binary
        .map(|(suffix, two, _)| (*suffix, *two))
        .find(|(_, two)| size != Bytes::ZERO && size.get().is_multiple_of(1 << two))
        .unwrap_or(("", 0));
    format!("{}{suffix}", size.get() >> two)
}

fn powers(suffix: &str) -> Option<(u32, i32)> {
    if let Some((_, two, ten)) = SUFFIXES.iter().find(|(known, ..)| *known == suffix) {
        return Some((*two, *ten));
    }
    // `E` alone is the suffix exa; with a number it is an exponent.
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    Some((0, exponent.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_form_of_the_api_is_parsed() {
        for (text, wanted) in [
            ("1Gi", 1 << 30),
            ("1.5Gi", 3 << 29),
            ("0.5Ki", 512),
            (".5Ki", 512),
            ("1.", 1),
            ("128974848", 128_974_848),
            ("129e6", 129_000_000),
            ("1.29E8", 129_000_000),
            ("129M", 129_000_000),
            ("128974848000m", 128_974_848),
            ("123Mi", 123 << 20),
            ("1E", 1_000_000_000_000_000_000),
            ("7Ei", 7 << 60),
            ("+1k", 1000),
            ("1e-1", 1),
            ("1m", 1),
            ("1e-60", 1),
            ("0", 0),
            ("-0", 0),
            ("0.000Gi", 0),
            ("00012.0000000000000000000000000000000000000000", 12),
            ("9223372036854775807", i64::MAX as u64),
        ] {
            assert_eq!(bytes(text), Ok(Bytes::new(wanted)), "{text}");
        }
    }

    #[test]
    fn other_texts_are_rejected() {
        for text in
            ["", ".", "Gi", "1gi", "1 Gi", "1.2.3", "one", "1e", "1e1.5", "--1", "1Ki ", "0x10", "1e99999999999"]
        {
            assert_eq!(bytes(text), Err(QuantityError::Syntax), "{text:?}");
        }
        for text in ["9223372036854775808", "8Ei", "1e30", "1e400", "99999999999999999999999999999999999999999"] {
            assert_eq!(bytes(text), Err(QuantityError::TooLarge), "{text}");
        }
        assert_eq!(bytes("-1"), Err(QuantityError::Negative));
    }

    #[test]
    fn sizes_are_written_in_canonical_form() {
        for (size, wanted) in [(1 << 30, "1Gi"), (3 << 29, "1536Mi"), (4096, "4Ki"), (4097, "4097"), (0, "0")] {
            assert_eq!(text(Bytes::new(size)), wanted);
        }
    }

    proptest! {
        #[test]
        fn a_written_size_is_read_back(size in 0..=i64::MAX as u64) {
            prop_assert_eq!(bytes(&text(Bytes::new(size))), Ok(Bytes::new(size)));
            let whole = size / (1 << 20) * (1 << 20);
            prop_assert_eq!(bytes(&text(Bytes::new(whole))), Ok(Bytes::new(whole)));
        }

        #[test]
        fn any_text_is_accepted(text in ".{0,40}") {
            let _ = bytes(&text);
        }

        #[test]
        fn any_quantity_is_accepted(
            text in "[+-]?[0-9]{0,45}(\\.[0-9]{0,45})?([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{0,12})?",
        ) {
            let _ = bytes(&text);
        }

        #[test]
        fn thousandths_round_up(number in 0..i64::MAX as u64 / 1000) {
            prop_assert_eq!(bytes(&format!("{number}m")), Ok(Bytes::new(number.div_ceil(1000))));
        }
    }
}
