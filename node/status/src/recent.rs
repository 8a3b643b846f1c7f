//! The last warnings and errors of the log.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

const MOST: usize = 100;

/// Maximum length of a message in bytes.
const LENGTH: usize = 1000;

/// A line of the log with the number of its occurrences.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Warning {
    pub severity: Severity,
    /// Program, or module of the node's program.
    pub source: String,
    /// Message followed by its fields as `name=value`.
    pub text: String,
    pub count: u64,
    /// Time since the last occurrence.
    #[serde(rename = "seconds_ago", serialize_with = "crate::seconds::seconds")]
    pub ago: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The node recovers without intervention.
    Warning,
    /// An administrator must act.
    Error,
}

impl Severity {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// The last hundred different warnings and errors. A repeated message is counted and becomes the newest, so that
/// repetitions do not replace messages of others. The log has redacted the messages. Clones share the entries.
#[derive(Clone, Debug, Default)]
pub struct Recent(Arc<Mutex<VecDeque<Entry>>>);

#[derive(Debug)]
struct Entry {
    severity: Severity,
    source: String,
    text: String,
    count: u64,
    last: Instant,
}

impl Recent {
    pub fn warnings(&self) -> Vec<Warning> {
        let warning = |entry: &Entry| Warning {
            severity: entry.severity,
            source: entry.source.clone(),
            text: entry.text.clone(),
            count: entry.count,
            ago: entry.last.elapsed(),
        };
        self.entries().iter().rev().map(warning).collect()
    }

    /// Adds a message as the newest, truncated if it is long.
    pub fn keep(&self, severity: Severity, source: &str, text: &str) {
        let (source, text) = (clipped(source), clipped(text));
        let mut entries = self.entries();
        let same = |entry: &Entry| entry.severity == severity && entry.source == source && entry.text == text;
        let before = entries.iter().position(same).and_then(|at| entries.remove(at));
        if entries.len() == MOST {
            entries.pop_front();
        }
        let count = before.map_or(0, |entry| entry.count).saturating_add(1);
        entries.push_back(Entry { severity, source, text, count, last: Instant::now() });
    }

    fn entries(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Truncates to [`LENGTH`] bytes followed by three dots.
fn clipped(text: &str) -> String {
    match &text[..text.floor_char_boundary(LENGTH)] {
        whole if whole.len() == text.len() => whole.to_owned(),
        begin => format!("{begin}…"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SOURCE: &str = "etcd";

    fn texts(warnings: &[Warning]) -> Vec<&str> {
        warnings.iter().map(|warning| &*warning.text).collect()
    }

    #[test]
    fn the_newest_comes_first() {
        let recent = Recent::default();
        recent.keep(Severity::Warning, SOURCE, "not yet");
        recent.keep(Severity::Error, SOURCE, "volume has data and no PV");
        let found = recent.warnings();
        assert_eq!(texts(&found), ["volume has data and no PV", "not yet"]);
        assert_eq!([found[0].severity, found[1].severity], [Severity::Error, Severity::Warning]);
        assert_eq!(found[0].source, SOURCE);
    }

    #[test]
    fn repeated_messages_do_not_replace_others() {
        let recent = Recent::default();
        recent.keep(Severity::Warning, SOURCE, "once");
        for _ in 0..10 * MOST {
            recent.keep(Severity::Warning, SOURCE, "again");
        }
        let found = recent.warnings();
        assert_eq!(texts(&found), ["again", "once"]);
        assert_eq!(found[0].count, 10 * MOST as u64);
    }

    #[test]
    fn sources_have_separate_warnings() {
        let recent = Recent::default();
        for source in ["etcd", "kubelet", "etcd"] {
            recent.keep(Severity::Warning, source, "no disk");
        }
        let found = recent.warnings();
        assert_eq!(
            found.iter().map(|found| (&*found.source, found.count)).collect::<Vec<_>>(),
            [("etcd", 2), ("kubelet", 1)]
        );
    }

    #[test]
    fn the_number_of_entries_is_limited() {
        let recent = Recent::default();
        for number in 0..3 * MOST {
            recent.keep(Severity::Warning, SOURCE, &number.to_string());
        }
        let found = recent.warnings();
        assert_eq!(found.len(), MOST);
        assert_eq!(found[0].text, (3 * MOST - 1).to_string());
        assert_eq!(found[MOST - 1].text, (2 * MOST).to_string());
    }

    proptest! {
        #[test]
        fn the_length_of_messages_is_limited(text in ".{0,2000}") {
            let recent = Recent::default();
            recent.keep(Severity::Warning, &text, &text);
            let found = recent.warnings();
            prop_assert!(found[0].text.len() <= LENGTH + '…'.len_utf8());
            if text.len() <= LENGTH {
                prop_assert_eq!(&found[0].text, &text);
            }
        }
    }
}
