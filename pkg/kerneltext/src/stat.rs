//! `/proc/PID/stat`.

/// Fields of `/proc/PID/stat`, proc_pid_stat(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat<'text> {
    /// The name, at most 15 bytes. The process chooses it: it may have brackets and line feeds.
    pub name: &'text str,
    /// `R`, `S`, `Z` (zombie) and others.
    pub state: char,
    /// The parent's process ID.
    pub parent: i32,
    /// When the process started, in clock ticks since the boot: it differs if a process ID is used again.
    pub start: u64,
}

impl<'text> Stat<'text> {
    /// Parses the content of the file. `None` if a field is missing.
    ///
    /// ```
    /// use kerneltext::Stat;
    ///
    /// let stat = Stat::parse("42 (a) (b)) Z 1 42 42 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 987 0 0\n").unwrap();
    /// assert_eq!(stat, Stat { name: "a) (b)", state: 'Z', parent: 1, start: 987 });
    /// ```
    pub fn parse(text: &'text str) -> Option<Self> {
        // No field after the name has a bracket.
        let (head, rest) = text.rsplit_once(')')?;
        let (_, name) = head.split_once('(')?;
        let mut fields = rest.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        let start = fields.nth(17)?.parse().ok()?;
        Some(Self { name, state, parent, start })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_no_zombie() {
        let text = std::fs::read_to_string("/proc/self/stat").unwrap();
        let stat = Stat::parse(&text).unwrap();
        assert_ne!(stat.state, 'Z');
        assert!(stat.start > 0 && stat.parent > 0, "{stat:?}");
    }

    #[test]
    fn a_missing_field_is_noticed() {
        for text in ["", "42 no brackets", "42 a) Z 1", "42 (a) S 1 42 42 0 -1", "42 (a)"] {
            assert_eq!(Stat::parse(text), None, "{text}");
        }
    }
}
