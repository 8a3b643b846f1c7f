//! The last warnings and errors of the log, for the page.

use std::collections::VecDeque;
use std::error::Error;
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// How many are kept.
const MOST: usize = 100;

/// Bytes of one that are kept.
const LENGTH: usize = 1000;

/// A line of the log, and how often it came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// How bad it is.
    pub severity: Severity,
    /// The program that said it, or the module of ours.
    pub source: String,
    /// The message, then its fields, `name=value`.
    pub text: String,
    /// How often it was said.
    pub count: u64,
    /// When it was said last.
    #[serde(rename = "seconds_ago", serialize_with = "crate::model::seconds")]
    pub ago: Duration,
}

/// How bad a line of the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The node goes on by itself.
    Warning,
    /// A person has to do something.
    Error,
}

impl Severity {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// The last hundred warnings and errors. One that is said again counts, and is the newest again: a program that repeats
/// itself does not push out what others said. All clones are the same.
///
/// It is a [`Layer`] of the log, and gets what the log's filter lets through.
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
    /// What was said, the newest first.
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

    /// Keeps it, as the newest.
    fn keep(&self, severity: Severity, Said { text, service, .. }: Said, target: &str) {
        let source = service.unwrap_or_else(|| target.to_owned());
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

impl<S: Subscriber> Layer<S> for Recent {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let severity = match *event.metadata().level() {
            Level::ERROR => Severity::Error,
            Level::WARN => Severity::Warning,
            _ => return,
        };
        let mut said = Said::default();
        event.record(&mut said);
        self.keep(severity, said, event.metadata().target());
    }
}

/// An event as text.
#[derive(Default)]
struct Said {
    text: String,
    /// Of another program: which.
    service: Option<String>,
}

impl Said {
    fn add(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        let mut line = Clipped(&mut self.text);
        // The message is recorded first.
        let _ = if field.name() == "message" {
            line.write_fmt(value)
        } else {
            let space = if line.0.is_empty() { "" } else { " " };
            write!(line, "{space}{}={value}", field.name())
        };
    }
}

impl Visit for Said {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "service" {
            let mut service = String::new();
            let _ = Clipped(&mut service).write_str(value);
            self.service = Some(service);
        } else {
            self.add(field, format_args!("{value}"));
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.add(field, format_args!("{value}"));
        let mut cause = value.source();
        while let Some(error) = cause {
            let _ = write!(Clipped(&mut self.text), ": {error}");
            cause = error.source();
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format_args!("{value:?}"));
    }
}

/// Takes no more than [`LENGTH`] bytes, and then three dots.
struct Clipped<'a>(&'a mut String);

impl fmt::Write for Clipped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = LENGTH.saturating_sub(self.0.len());
        if text.len() <= room {
            self.0.push_str(text);
            return Ok(());
        }
        self.0.push_str(&text[..text.floor_char_boundary(room)]);
        if !self.0.ends_with('…') {
            self.0.push('…');
        }
        // Ends the formatting of a long value early.
        Err(fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tracing::{error, info, warn};
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    fn said(speak: impl FnOnce()) -> Vec<Warning> {
        let recent = Recent::default();
        let log = tracing_subscriber::registry().with(recent.clone());
        tracing::subscriber::with_default(log, speak);
        recent.warnings()
    }

    fn texts(warnings: &[Warning]) -> Vec<&str> {
        warnings.iter().map(|warning| &*warning.text).collect()
    }

    #[test]
    fn warnings_and_errors_are_kept_the_newest_first_and_nothing_else() {
        let found = said(|| {
            warn!(volume = "pvc-1", attempt = 2, "not yet");
            info!("volume provisioned");
            error!("volume has data and no PV");
        });
        assert_eq!(texts(&found), ["volume has data and no PV", "not yet volume=pvc-1 attempt=2"]);
        assert_eq!(
            found.iter().map(|warning| warning.severity).collect::<Vec<_>>(),
            [Severity::Error, Severity::Warning]
        );
        assert_eq!(found[0].source, module_path!());
    }

    #[test]
    fn an_error_is_told_with_its_causes() {
        #[derive(Debug)]
        struct Outer(fmt::Error);
        impl fmt::Display for Outer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("cannot write")
            }
        }
        impl Error for Outer {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(&self.0)
            }
        }
        let found = said(|| {
            let error: &(dyn Error + 'static) = &Outer(fmt::Error);
            warn!(error, "it goes on");
        });
        assert_eq!(texts(&found), [format!("it goes on error=cannot write: {}", fmt::Error)]);
    }

    #[test]
    fn another_programs_line_has_its_name() {
        let found = said(|| error!(target: "program", service = "etcd", "no disk"));
        assert_eq!((&*found[0].source, &*found[0].text), ("etcd", "no disk"));
    }

    #[test]
    fn who_repeats_himself_pushes_nobody_out() {
        let found = said(|| {
            warn!("once");
            for _ in 0..10 * MOST {
                warn!("again");
            }
        });
        assert_eq!(texts(&found), ["again", "once"]);
        assert_eq!(found[0].count, 10 * MOST as u64);
    }

    #[test]
    fn only_so_many_are_kept() {
        let found = said(|| (0..3 * MOST).for_each(|number| warn!(number, "line")));
        assert_eq!(found.len(), MOST);
        assert_eq!(found[0].text, format!("line number={}", 3 * MOST - 1));
        assert_eq!(found[MOST - 1].text, format!("line number={}", 2 * MOST));
    }

    proptest! {
        #[test]
        fn no_line_is_long_whatever_is_said(text in ".{0,2000}", other in ".{0,2000}") {
            let found = said(|| warn!(%other, service = "etcd", "{text}"));
            prop_assert!(found[0].text.len() <= LENGTH + '…'.len_utf8());
            if text.len() + other.len() + " other=".len() <= LENGTH {
                prop_assert_eq!(&found[0].text, &format!("{text} other={other}"));
            }
        }
    }
}
