//! Parses the programs' log lines: klog (Kubernetes), JSON (etcd), logfmt (containerd), `[LEVEL]` (CoreDNS).

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Debug,
    Info,
    Warning,
    Error,
}

/// A log line without time and process, which the node's own log adds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    pub(crate) level: Level,
    pub(crate) caller: Option<Cow<'a, str>>,
    pub(crate) text: Cow<'a, str>,
}

impl<'a> Line<'a> {
    /// Parses any line. A line in an unknown format is text of level [`Level::Info`].
    pub(crate) fn parse(line: &'a str) -> Self {
        klog(line).or_else(|| json(line)).or_else(|| logfmt(line)).or_else(|| bracketed(line)).unwrap_or_else(|| Self {
            level: if is_panic(line) { Level::Error } else { Level::Info },
            caller: None,
            text: line.into(),
        })
    }
}

/// First line of the message with which Go's runtime ends a program.
fn is_panic(line: &str) -> bool {
    ["panic: ", "fatal error: ", "runtime: out of memory"].iter().any(|begin| line.starts_with(begin))
}

/// `Lmmdd hh:mm:ss.uuuuuu threadid file:line] msg`, the header of klog.
fn klog(line: &str) -> Option<Line<'_>> {
    let level = match line.as_bytes().first()? {
        b'I' => Level::Info,
        b'W' => Level::Warning,
        b'E' | b'F' => Level::Error,
        _ => return None,
    };
    let (header, text) = line.get(1..)?.split_once("] ")?;
    let mut words = header.split_ascii_whitespace();
    let (date, time, thread, caller) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let known = words.next().is_none()
        && date.len() == 4
        && digits(date)
        && time.len() == "15:04:05.123456".len()
        && time.split([':', '.']).all(digits)
        && digits(thread);
    known.then(|| Line { level, caller: Some(caller.into()), text: text.into() })
}

/// JSON format of zap (etcd), and of logrus with that setting.
#[derive(Deserialize)]
struct Object {
    level: String,
    msg: String,
    caller: Option<String>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

fn json(line: &str) -> Option<Line<'_>> {
    if !line.starts_with('{') {
        return None;
    }
    let Object { level, msg, caller, mut rest } = serde_json::from_str(line).ok()?;
    for of_its_own in ["ts", "time", "logger"] {
        rest.remove(of_its_own);
    }
    let text = if rest.is_empty() { msg } else { format!("{msg} {}", Value::Object(rest)) };
    Some(Line { level: word(&level)?, caller: caller.map(Into::into), text: text.into() })
}

/// `time="…" level=info msg="…" key=value`, the format of logrus in containerd.
fn logfmt(line: &str) -> Option<Line<'_>> {
    let (level, text) = line.strip_prefix("time=\"")?.split_once("\" level=")?.1.split_once(' ')?;
    // Log the message alone. A message with quotes or backslashes keeps its form.
    let message = text.strip_prefix("msg=\"").and_then(|text| text.strip_suffix('"'));
    let text = message.filter(|text| !text.contains(['"', '\\'])).unwrap_or(text);
    Some(Line { level: word(level)?, caller: None, text: text.into() })
}

/// `[LEVEL] plugin/NAME: …`, the format of CoreDNS.
fn bracketed(line: &str) -> Option<Line<'_>> {
    let (level, text) = line.strip_prefix('[')?.split_once("] ")?;
    let (caller, text) = match text.strip_prefix("plugin/").and_then(|rest| rest.split_once(": ")) {
        Some((plugin, text)) => (Some(plugin.into()), text),
        None => (None, text),
    };
    Some(Line { level: word(&level.to_ascii_lowercase())?, caller, text: text.into() })
}

fn word(level: &str) -> Option<Level> {
    Some(match level {
        "trace" | "debug" => Level::Debug,
        "info" => Level::Info,
        "warn" | "warning" => Level::Warning,
        "error" | "dpanic" | "panic" | "fatal" => Level::Error,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line<'a>(level: Level, caller: Option<&'a str>, text: &'a str) -> Line<'a> {
        Line { level, caller: caller.map(Into::into), text: text.into() }
    }

    #[test]
    fn klog_headers_become_level_and_caller() {
        assert_eq!(
            Line::parse("I0102 15:04:05.123456    1234 server.go:123] \"Started\" port=6443"),
            line(Level::Info, Some("server.go:123"), "\"Started\" port=6443")
        );
        assert_eq!(
            Line::parse("E1231 23:59:59.000001       1 a.go:1] x] y"),
            line(Level::Error, Some("a.go:1"), "x] y")
        );
        assert_eq!(Line::parse("W0102 15:04:05.123456 7 b.go:9] z").level, Level::Warning);
        assert_eq!(Line::parse("F0102 15:04:05.123456 7 b.go:9] z").level, Level::Error);
    }

    #[test]
    fn etcds_json_becomes_level_and_text() {
        assert_eq!(
            Line::parse(
                r#"{"level":"warn","ts":"2026-01-02T15:04:05Z","caller":"etcdmain/etcd.go:1","msg":"slow","took":"1s"}"#
            ),
            line(Level::Warning, Some("etcdmain/etcd.go:1"), r#"slow {"took":"1s"}"#)
        );
        assert_eq!(Line::parse(r#"{"level":"fatal","msg":"gone"}"#), line(Level::Error, None, "gone"));
    }

    #[test]
    fn containerds_logfmt_becomes_level_and_text() {
        assert_eq!(
            Line::parse(r#"time="2026-01-02T15:04:05.1Z" level=info msg="starting containerd" version=2.3.7"#),
            line(Level::Info, None, r#"msg="starting containerd" version=2.3.7"#)
        );
    }

    #[test]
    fn a_message_alone_has_no_quotes() {
        let said = |text| Line::parse(text).text.into_owned();
        assert_eq!(said(r#"time="t" level=warning msg="no disk""#), "no disk");
        assert_eq!(said(r#"time="t" level=warning msg="no \"x\" disk""#), r#"msg="no \"x\" disk""#);
    }

    #[test]
    fn containerds_json_becomes_level_and_text() {
        let text = r#"{"level":"warning","msg":"slow","time":"2026-01-02T15:04:05.1Z","id":"a"}"#;
        assert_eq!(Line::parse(text), line(Level::Warning, None, r#"slow {"id":"a"}"#));
    }

    #[test]
    fn the_words_of_coredns_become_level_and_caller() {
        assert_eq!(
            Line::parse("[ERROR] plugin/errors: 2 example.org. A: read udp 10.0.2.15:1->192.0.2.1:53: i/o timeout"),
            line(Level::Error, Some("errors"), "2 example.org. A: read udp 10.0.2.15:1->192.0.2.1:53: i/o timeout")
        );
        assert_eq!(Line::parse("[WARNING] No files"), line(Level::Warning, None, "No files"));
        for text in ["[a] b", "[INFO]", "[::1] c"] {
            assert_eq!(Line::parse(text), line(Level::Info, None, text));
        }
    }

    #[test]
    fn the_end_of_a_program_in_go_is_an_error() {
        for text in ["panic: runtime error: index out of range", "fatal error: all goroutines are asleep - deadlock!"] {
            assert_eq!(Line::parse(text), line(Level::Error, None, text));
        }
        assert_eq!(Line::parse("goroutine 1 [running]:").level, Level::Info);
    }

    #[test]
    fn anything_else_is_text() {
        for text in [
            "",
            "I",
            "Flag --x is deprecated",
            "Info: [a] b",
            "{not json",
            r#"{"level":"odd","msg":"x"}"#,
            "I0102 no] x",
        ] {
            assert_eq!(Line::parse(text), line(Level::Info, None, text));
        }
    }

    proptest! {
        #[test]
        fn no_line_is_too_odd(text: String) {
            Line::parse(&text);
        }

        #[test]
        fn the_text_of_a_klog_line_is_kept_whole(text in "[^\n]*") {
            let whole = format!("I0102 15:04:05.123456 1 a.go:1] {text}");
            prop_assert_eq!(Line::parse(&whole).text, text);
        }
    }
}
