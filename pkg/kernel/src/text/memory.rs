//! Tables of sizes, such as `/proc/meminfo`.

use units::Bytes;

/// The size in the first line that begins with `name`, for example `MemTotal:   4096 kB`. `None` if no line does, or if
/// the line has no size in kB.
///
/// `/proc/meminfo`, proc_meminfo(5); `/proc/PID/smaps_rollup`, proc_pid_smaps(5).
///
/// ```
/// use units::Bytes;
///
/// let table = "MemTotal:  4096 kB\nMemAvailable:  1024 kB\n";
/// assert_eq!(kernel::text::size(table, "MemAvailable:"), Some(Bytes::MIB));
/// ```
pub fn size(table: &str, name: &str) -> Option<Bytes> {
    let value = table.lines().find_map(|line| line.strip_prefix(name))?;
    let kib = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Bytes::KIB.checked_mul(kib)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_in_kibibytes() {
        let text = "5566d4000-7ffc9a000 ---p 00000000 00:00 0    [rollup]\nRss:    4100 kB\nPss:    2048 kB\nPss_Dirty: 1 kB\n";
        assert_eq!(size(text, "Pss:"), Some(Bytes::new(2 << 20)));
        assert_eq!(size(text, "Swap:"), None);
    }

    #[test]
    fn a_line_without_a_valid_size_gives_none() {
        for text in ["Pss: many kB", "Pss: 1", "Pss: -1 kB", "Pss: kB", "Pss: 18446744073709551615 kB"] {
            assert_eq!(size(text, "Pss:"), None, "{text}");
        }
    }

    #[test]
    fn the_meminfo_of_this_machine_is_parsed() {
        let table = std::fs::read_to_string("/proc/meminfo").unwrap();
        assert!(size(&table, "MemTotal:") >= size(&table, "MemAvailable:"));
        assert!(size(&table, "MemTotal:") > Some(Bytes::MIB));
    }
}
