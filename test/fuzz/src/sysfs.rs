//! Attributes and names of devices below `/sys/block`.

use localstorage::sysfs;
use loopdev::Number;

/// A number and a device name must be parsed only from their own text.
pub fn check(input: &[u8]) {
    if let Ok(text) = std::str::from_utf8(input) {
        if let Some(number) = sysfs::number(text) {
            let digits = text.strip_suffix('\n').unwrap_or(text);
            assert!(!digits.is_empty());
            assert_eq!(number.to_string().trim_start_matches('0'), digits.trim_start_matches('0'));
        }
        if let Ok(number) = text.parse::<Number>() {
            assert_eq!(number.to_string(), text);
            assert!(number.get() <= i32::MAX.unsigned_abs(), "{number}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_number_and_a_name() {
        let seeds = crate::seeds("sysfs");
        seeds.iter().for_each(|(_, seed)| check(seed));
        let text = |wanted: &str| {
            let (_, seed) = seeds.iter().find(|(name, _)| name == wanted).expect("a seed");
            String::from_utf8(seed.clone()).expect("text")
        };
        assert_eq!(sysfs::number(&text("size")), Some(2_097_152));
        assert_eq!(text("name").parse::<Number>().map(Number::get), Ok(12));
    }
}
