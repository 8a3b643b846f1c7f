//! Output of `blkid`, which contains labels from the disk.

use std::fmt::Write;

use localstorage::{Mark, Signature, Usage};

/// A label must not be able to control a terminal. Parsed values, formatted like `blkid` does, must be parsed as the
/// same values.
pub fn check(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let Ok(marks) = Mark::parse(&text) else {
        assert!(text.lines().any(|line| !line.is_empty()), "nothing was said, and it is malformed");
        return;
    };
    for mark in &marks {
        assert!(mark.label.as_ref().is_none_or(|label| !label.chars().any(char::is_control)), "{mark:?}");
        let mut again = String::new();
        let place = if mark.usage == Usage::Partitions { "ID_PART_TABLE_TYPE" } else { "ID_FS_TYPE" };
        writeln!(again, "{place}={}", mark.format).expect("memory");
        if let Some(usage) = usage(mark.usage) {
            writeln!(again, "ID_FS_USAGE={usage}").expect("memory");
        }
        if let Some(label) = &mark.label {
            writeln!(again, "ID_FS_LABEL={label}").expect("memory");
        }
        // A line ends with a line feed; a carriage return before it belongs to the line end.
        if !mark.format.is_empty() && !mark.format.ends_with('\r') {
            assert_eq!(Mark::parse(&again).as_deref(), Ok(std::slice::from_ref(mark)), "{again}");
        }
    }
    assert!(marks.is_empty() || !Signature::Known(marks).to_string().is_empty());
}

fn usage(usage: Usage) -> Option<&'static str> {
    match usage {
        Usage::Filesystem => Some("filesystem"),
        Usage::Member => Some("raid"),
        Usage::Encrypted => Some("crypto"),
        Usage::Partitions => None,
        Usage::Other => Some("other"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_marks() {
        for (name, seed) in crate::seeds("signatures") {
            check(&seed);
            let text = String::from_utf8(seed).expect("text");
            assert!(Mark::parse(&text).is_ok_and(|marks| !marks.is_empty()), "{name}");
        }
    }
}
