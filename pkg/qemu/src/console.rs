//! Reading a console's log.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

const WINDOW: u64 = 256 << 10;

/// The last `lines` lines of a console's log, at most 256 KiB, without carriage returns.
pub fn tail(path: &Path, lines: usize) -> io::Result<Vec<String>> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(WINDOW)))?;
    let mut end = Vec::new();
    file.take(WINDOW).read_to_end(&mut end)?;
    Ok(last_lines(&String::from_utf8_lossy(&end), lines))
}

fn last_lines(text: &str, lines: usize) -> Vec<String> {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].iter().map(|line| line.replace('\r', "")).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_last_lines_come_without_carriage_returns() {
        let mut log = tempfile::NamedTempFile::new().unwrap();
        log.write_all(b"one\r\ntwo\r\n\xffthree\r\r\nfour").unwrap();
        assert_eq!(tail(log.path(), 2).unwrap(), ["\u{fffd}three", "four"]);
        assert_eq!(tail(log.path(), 9).unwrap().len(), 4);
    }

    #[test]
    fn an_empty_log_has_no_lines() {
        let log = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(tail(log.path(), 5).unwrap(), Vec::<String>::new());
    }
}
