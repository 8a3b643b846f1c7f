//! Attributes of devices below `/sys/block`, and the names there.

use std::os::unix::ffi::OsStrExt;

use localstorage::sysfs;
use loopdev::{BackingPath, Number};

/// A number, a device's name and a path are parsed only from their own text; no byte of a path is lost.
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
    let path = BackingPath::parse(input);
    let mut text = path.path.as_os_str().as_bytes().to_vec();
    if path.deleted {
        text.extend(b" (deleted)");
    }
    assert_eq!(text, input.strip_suffix(b"\n").unwrap_or(input));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_number_a_name_and_paths() {
        let seeds = crate::seeds("sysfs");
        seeds.iter().for_each(|(_, seed)| check(seed));
        let text = |wanted: &str| {
            let (_, seed) = seeds.iter().find(|(name, _)| name == wanted).expect("a seed");
            String::from_utf8(seed.clone()).expect("text")
        };
        assert_eq!(sysfs::number(&text("size")), Some(2_097_152));
        assert_eq!(text("name").parse::<Number>().map(Number::get), Ok(12));
        assert!(BackingPath::parse(text("deleted").as_bytes()).deleted);
    }
}
