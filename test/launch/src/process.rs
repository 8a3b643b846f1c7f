//! Processes, as /proc shows them.

use std::fs;

/// One process, and not another that got its number later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub id: i32,
    /// In clock ticks since the start of the machine.
    begun: u64,
    /// Its program and arguments.
    pub words: Vec<String>,
}

/// Fields of `/proc/PID/stat`, proc_pid_stat(5).
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    state: char,
    parent: i32,
    begun: u64,
}

impl Process {
    /// The processes that this one has started, and those that they have started.
    pub fn below(id: i32) -> Vec<Self> {
        let mut all = Vec::new();
        for (child, stat) in every() {
            if stat.parent == id {
                all.extend(Self::of(child, &stat));
                all.extend(Self::below(child));
            }
        }
        all
    }

    fn of(id: i32, stat: &Stat) -> Option<Self> {
        let line = fs::read(format!("/proc/{id}/cmdline")).ok()?;
        let words = line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        Some(Self { id, begun: stat.begun, words })
    }

    /// Whether it still runs. One that has ended and was not yet waited for does not.
    pub fn runs(&self) -> bool {
        let stat = stat(self.id);
        stat.is_some_and(|stat| stat.begun == self.begun && !matches!(stat.state, 'Z' | 'X'))
    }
}

fn every() -> Vec<(i32, Stat)> {
    let entries = fs::read_dir("/proc").expect("/proc is mounted");
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter_map(|id| Some((id, stat(id)?))).collect()
}

fn stat(id: i32) -> Option<Stat> {
    parse(&fs::read_to_string(format!("/proc/{id}/stat")).ok()?)
}

/// The name in brackets may hold brackets and spaces.
fn parse(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        begun: fields.get(19)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_confuse() {
        let text = "42 (a) Z (b) S 7 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 123456 4096 1";
        assert_eq!(parse(text), Some(Stat { state: 'S', parent: 7, begun: 123_456 }));
        assert_eq!(parse("42 no brackets"), None);
    }

    #[test]
    fn a_child_is_seen_until_it_has_ended() {
        use std::process::{Command, Stdio, id};
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let children = Process::below(id().cast_signed());
        let seen = children.iter().find(|process| process.id == child.id().cast_signed()).unwrap();
        assert!(seen.runs());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!seen.runs());
    }
}
