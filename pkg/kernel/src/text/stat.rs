//! `/proc/PID/stat`.

/// Fields of `/proc/PID/stat`, proc_pid_stat(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat<'text> {
    /// Process name, at most 15 bytes. The process chooses it, so it may contain brackets and line feeds.
    pub name: &'text str,
    /// Process state: `R`, `S`, `Z` (zombie) and others.
    pub state: char,
    /// Process ID of the parent.
    pub parent: i32,
    /// Start time in clock ticks since boot. It distinguishes processes that reuse a process ID.
    pub start: u64,
}

impl<'text> Stat<'text> {
    /// Parses the content of the file. `None` if a field is missing.
    ///
    /// ```
    /// use kernel::text::Stat;
    ///
    /// let stat = Stat::parse("42 (a) (b)) Z 1 42 42 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 987 0 0\n").unwrap();
    /// assert_eq!(stat, Stat { name: "a) (b)", state: 'Z', parent: 1, start: 987 });
    /// ```
    pub fn parse(text: &'text str) -> Option<Self> {
        // Fields after the name contain no bracket.
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
    fn the_stat_of_this_process_is_parsed() {
        let text = std::fs::read_to_string("/proc/self/stat").unwrap();
        let stat = Stat::parse(&text).unwrap();
        assert_ne!(stat.state, 'Z');
        assert!(stat.start > 0 && stat.parent > 0, "{stat:?}");
    }

    #[test]
    fn a_missing_field_gives_none() {
        for text in ["", "42 no brackets", "42 a) Z 1", "42 (a) S 1 42 42 0 -1", "42 (a)"] {
            assert_eq!(Stat::parse(text), None, "{text}");
        }
    }
}
