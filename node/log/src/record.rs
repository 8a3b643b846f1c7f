//! [`Record`].

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use nix::time::{ClockId, clock_gettime};
use serde::{Serialize, Serializer};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tracing::Level;

use crate::clip::clip;
use crate::redact::{REDACTED, is_secret, redact};

/// Maximum length of a message in bytes.
pub(crate) const MESSAGE: usize = 16 << 10;
/// Maximum length of a field value in bytes.
const VALUE: usize = 4 << 10;
const FIELDS: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A module of the node's own program, such as `provisioner::sweep`.
    Module(Cow<'static, str>),
    Program(String),
    Kernel,
    /// A program that wrote to `/dev/kmsg`. The kernel does not let programs use its own facility.
    Kmsg,
}

impl Origin {
    pub fn name(&self) -> &str {
        match self {
            Self::Module(module) => module,
            Self::Program(service) => service,
            Self::Kernel => "kernel",
            Self::Kmsg => "kmsg",
        }
    }

    /// Key of the rate limit; the crate of a module.
    pub(crate) fn group(&self) -> &str {
        match self {
            Self::Module(module) => module.split("::").next().unwrap_or_default(),
            other => other.name(),
        }
    }
}

pub type Field = (Cow<'static, str>, String);

/// A log record. Any combination of values is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Wall-clock time, which may be wrong before the clock is synchronized.
    pub at: SystemTime,
    pub uptime: Duration,
    pub level: Level,
    pub origin: Origin,
    /// Names of the spans, outermost first.
    pub spans: Vec<&'static str>,
    pub message: String,
    pub fields: Vec<Field>,
}

impl Record {
    pub fn now(level: Level, origin: Origin, message: impl Into<String>) -> Self {
        Self {
            at: SystemTime::now(),
            uptime: uptime(),
            level,
            origin,
            spans: Vec::new(),
            message: message.into(),
            fields: Vec::new(),
        }
    }

    /// Name of the level in the log files.
    pub(crate) fn word(&self) -> &'static str {
        word(self.level)
    }

    pub(crate) fn clean(self) -> Self {
        let text = |text: String, most| match redact(&text) {
            Cow::Borrowed(_) => clip(text, most),
            Cow::Owned(redacted) => clip(redacted, most),
        };
        let field = |(name, value): Field| {
            let value = if is_secret(&name) { REDACTED.to_owned() } else { text(value, VALUE) };
            (name, value)
        };
        Self {
            message: text(self.message, MESSAGE),
            fields: self.fields.into_iter().take(FIELDS).map(field).collect(),
            ..self
        }
    }

    /// Serializes to a JSON object with a line feed.
    pub(crate) fn line(&self) -> Vec<u8> {
        let micros = |time: Duration| time.as_micros() as f64 / 1e6;
        let line = Line {
            time: utc(self.at),
            uptime: micros(self.uptime),
            level: self.word(),
            source: self.origin.name(),
            span: (!self.spans.is_empty()).then(|| self.spans.join(":")),
            message: &self.message,
            fields: &self.fields,
        };
        // Serialization of strings and numbers cannot fail.
        let mut text = serde_json::to_vec(&line).unwrap_or_default();
        text.push(b'\n');
        text
    }

    /// Formats a text line without line feed. Control characters are escaped.
    pub(crate) fn display(&self) -> String {
        let ms = self.uptime.as_millis();
        let mut text = format!("{:4}.{:03} {:>5} ", ms / 1000, ms % 1000, self.level.as_str());
        if let Origin::Program(service) = &self.origin {
            text.push_str(service);
            text.push_str(": ");
        }
        for span in &self.spans {
            text.push_str(span);
            text.push_str(": ");
        }
        self.add_text(&mut text);
        text
    }

    /// The message followed by its fields as `name=value`.
    pub fn text(&self) -> String {
        let mut text = String::new();
        self.add_text(&mut text);
        text
    }

    fn add_text(&self, text: &mut String) {
        escape(text, &self.message);
        for (name, value) in &self.fields {
            let _ = write!(text, " {name}=");
            if value.is_empty() || value.contains(|character: char| character.is_whitespace() || character == '"') {
                let _ = write!(text, "{value:?}");
            } else {
                escape(text, value);
            }
        }
    }
}

pub(crate) fn escape(text: &mut String, said: &str) {
    for character in said.chars() {
        if character.is_control() && character != '\t' {
            text.extend(character.escape_default());
        } else {
            text.push(character);
        }
    }
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    uptime: f64,
    level: &'static str,
    source: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    span: Option<String>,
    message: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty", serialize_with = "object")]
    fields: &'a [Field],
}

fn object<S: Serializer>(fields: &[Field], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(fields.iter().map(|(name, value)| (name, value)))
}

fn word(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

fn utc(at: SystemTime) -> String {
    let at = OffsetDateTime::from(at);
    // Microseconds. Years above 9999 cannot be formatted.
    let at = at.replace_nanosecond(at.nanosecond() / 1000 * 1000).unwrap_or(at);
    at.format(&Rfc3339).unwrap_or_default()
}

pub(crate) fn uptime() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn record() -> Record {
        Record {
            at: SystemTime::UNIX_EPOCH + Duration::from_micros(1_783_209_600_123_456),
            uptime: Duration::from_micros(12_345_678),
            level: Level::WARN,
            origin: Origin::Module("provisioner::claims".into()),
            spans: vec!["provision"],
            message: "not yet".to_owned(),
            fields: vec![("volume".into(), "pvc-1".to_owned()), ("error".into(), "no space".to_owned())],
        }
    }

    #[test]
    fn a_record_is_serialized_as_json() {
        assert_eq!(
            String::from_utf8(record().line()).unwrap(),
            "{\"time\":\"2026-07-05T00:00:00.123456Z\",\"uptime\":12.345678,\"level\":\"warning\",\
             \"source\":\"provisioner::claims\",\"span\":\"provision\",\"message\":\"not yet\",\
             \"fields\":{\"volume\":\"pvc-1\",\"error\":\"no space\"}}\n"
        );
    }

    #[test]
    fn a_record_is_displayed_as_a_line() {
        assert_eq!(record().display(), "  12.345  WARN provision: not yet volume=pvc-1 error=\"no space\"");
        let program = Record { origin: Origin::Program("etcd".to_owned()), spans: vec![], fields: vec![], ..record() };
        assert_eq!(program.display(), "  12.345  WARN etcd: not yet");
    }

    #[test]
    fn a_field_with_the_name_of_a_secret_is_redacted() {
        let said = Record { fields: vec![("token".into(), "x".to_owned())], ..record() };
        assert_eq!(said.clean().fields[0].1, REDACTED);
    }

    proptest! {
        #[test]
        fn text_never_breaks_the_line(message in any::<String>(), value in any::<String>()) {
            let said = Record { message: message.clone(), fields: vec![("x".into(), value.clone())], ..record() };
            let line = String::from_utf8(said.line()).unwrap();
            prop_assert_eq!(line.find('\n'), Some(line.len() - 1));
            let read: Value = serde_json::from_str(&line).unwrap();
            prop_assert_eq!(&read["message"], &Value::from(message));
            prop_assert_eq!(&read["fields"]["x"], &Value::from(value));
            let shown = said.display();
            prop_assert!(!shown.contains(|c: char| c.is_control() && c != '\t'), "{shown:?}");
        }
    }

    #[test]
    fn the_length_of_a_record_is_limited() {
        // JSON escapes a control character with six characters.
        for (length, count) in [(100_000, 1), (VALUE + 1, 100), (0, 1000)] {
            let long = "\u{1}".repeat(length);
            let fields = (0..count).map(|_| ("x".into(), long.clone())).collect();
            let clean = Record { message: long.clone(), fields, ..record() }.clean();
            assert!(clean.line().len() < 6 * (MESSAGE + FIELDS * (VALUE + 20)) + 500);
        }
    }
}
