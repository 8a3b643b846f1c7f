//! `/proc/PID/mountinfo`. Users who may mount choose its paths.

use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Each line must have an entry, and an entry, formatted like the kernel does, must be parsed as the same entry. Only
/// octal escapes are decoded.
pub fn check(input: &[u8]) {
    let Ok(table) = mount::parse_table(input) else { return };
    let lines: Vec<&[u8]> = lines(input).collect();
    assert_eq!(table.len(), lines.len(), "a line without an entry, or an entry without a line");
    let mut text = String::new();
    for (entry, line) in table.iter().zip(lines) {
        let (major, minor) = entry.device;
        let (root, point) = (escaped(&entry.root), escaped(&entry.point));
        let peers = entry.peers.map(|group| format!("shared:{group} ")).unwrap_or_default();
        writeln!(text, "{} 0 {major}:{minor} {root} {point} rw {peers}- none none rw", entry.mount).expect("memory");
        assert!(entry.point.as_os_str().len() <= line.len());
    }
    assert_eq!(mount::parse_table(text.as_bytes()).expect("what was written here"), table);
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty())
}

/// Escapes more characters than the kernel does, with the same codes, so that the result is text.
fn escaped(path: &Path) -> String {
    path.as_os_str().as_bytes().iter().fold(String::new(), |mut text, byte| {
        match byte {
            b'!'..=b'[' | b']'..=b'~' => text.push(char::from(*byte)),
            other => write!(text, "\\{other:03o}").expect("memory"),
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_tables() {
        for (name, seed) in crate::seeds("mountinfo") {
            let found = mount::parse_table(&seed).map(|table| table.len());
            assert_eq!(found.ok(), Some(lines(&seed).count()), "{name}");
            check(&seed);
        }
    }
}
