//! Memory of another process.

use std::fs;
use std::io;

/// Proportional share of memory (PSS) of a process, in bytes.
pub fn memory(process: u32) -> io::Result<u64> {
    let path = format!("/proc/{process}/smaps_rollup");
    pss(&fs::read_to_string(&path)?).ok_or_else(|| io::Error::other(format!("{path} has no Pss")))
}

fn pss(rollup: &str) -> Option<u64> {
    let kib = rollup.lines().find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix(" kB"))?;
    kib.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proportional_share_is_in_bytes() {
        let rollup = "1-2 ---p 0 00:00 0 [rollup]\nRss:  1724 kB\nPss:   243 kB\nPss_Dirty: 112 kB\n";
        assert_eq!(pss(rollup), Some(243 * 1024));
        assert_eq!(pss("Rss: 1 kB\n"), None);
    }
}
