//! Compares the metrics of a program with the tables of docs/metrics.md: nothing is left out, and nothing is described
//! that is gone. And with docs/operations/alerts.yaml: what an alert counts is there before it happens.
//!
//! ```no_run
//! # fn collectors() -> Vec<Box<dyn prometheus::core::Collector>> { Vec::new() }
//! metricsdocs::assert_described("CSI plugin", collectors());
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

use std::collections::BTreeMap;

use prometheus::core::Collector;
use prometheus::{Registry, TextEncoder};

const DOCS: &str = include_str!("../../../docs/metrics.md");
const ALERTS: &str = include_str!("../../../docs/operations/alerts.yaml");

/// The metrics of a collector, each with a value so that its type can be seen, are those of the section's table: with
/// their types, labels and descriptions. Their names follow Prometheus' conventions.
///
/// # Panics
/// If they are not; with all differences. If two collectors have a metric of the same name.
pub fn assert_described(section: &str, collectors: impl IntoIterator<Item = Box<dyn Collector>>) {
    let found = differences(DOCS, section, collectors);
    assert!(found.is_empty(), "{section:?} of docs/metrics.md:\n{}", found.join("\n"));
}

fn differences(docs: &str, section: &str, collectors: impl IntoIterator<Item = Box<dyn Collector>>) -> Vec<String> {
    let mut described = rows(docs, section);
    let registry = Registry::new();
    let mut metrics = Vec::new();
    for collector in collectors {
        metrics.extend(collector.desc().into_iter().cloned());
        registry.register(collector).expect("metrics of different names");
    }
    let text = TextEncoder::new().encode_to_string(&registry.gather()).expect("metrics are text");
    let kinds: BTreeMap<_, _> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    let mut found = Vec::new();
    for metric in metrics {
        let name = metric.fq_name;
        let kind = kinds.get(&*name).copied().unwrap_or("without a value");
        let exists = [kind.to_owned(), metric.variable_labels.join(", "), metric.help];
        match described.remove(&*name) {
            None => found.push(format!("{name} is not described")),
            Some(row) if row != exists => found.push(format!("{name} is {exists:?}, described as {row:?}")),
            Some(_) => {}
        }
        if !is_conventional(&name, kind) {
            found.push(format!("{name} is no name for a {kind}"));
        }
    }
    found.extend(described.into_keys().map(|name| format!("{name} is described, but gone")));
    found
}

/// Of these metrics, which nothing has changed yet, the series that an `increase` of an alert selects are there: one
/// that begins with its first event has not grown, and the alert misses it.
///
/// # Panics
/// If they are not; with all that are missing. If no alert counts any of these metrics.
pub fn assert_counted_from_the_start(collectors: impl IntoIterator<Item = Box<dyn Collector>>) {
    let missing = missing_at_the_start(ALERTS, collectors);
    assert!(missing.is_empty(), "alerts.yaml asks for the increase of\n{}", missing.join("\n"));
}

fn missing_at_the_start(alerts: &str, collectors: impl IntoIterator<Item = Box<dyn Collector>>) -> Vec<String> {
    let mut names = Vec::new();
    let registry = Registry::new();
    for collector in collectors {
        names.extend(collector.desc().into_iter().map(|metric| metric.fq_name.clone()));
        registry.register(collector).expect("metrics of different names");
    }
    let text = TextEncoder::new().encode_to_string(&registry.gather()).expect("metrics are text");
    let selectors: Vec<_> = increases(alerts).into_iter().filter(|(name, _)| names.iter().any(|n| n == name)).collect();
    assert!(!selectors.is_empty(), "no alert counts one of {names:?}");
    let is_there = |name: &str, label: &str| {
        let rest = |line: &'_ str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
        text.lines().any(|line| rest(line) && line.contains(label))
    };
    let wanted = selectors.into_iter().flat_map(|(name, labels)| labels.into_iter().map(move |label| (name, label)));
    wanted.filter(|(name, label)| !is_there(name, label)).map(|(name, label)| format!("{name}{{{label}}}")).collect()
}

/// The metrics in `increase(…)`, each with the labels that are selected, one by one: `label="value"`; a text that every
/// series has if there are none.
fn increases(alerts: &str) -> Vec<(&str, Vec<String>)> {
    let selectors = alerts.split("increase(").skip(1).filter_map(|rest| rest.split('[').next());
    let each = |matcher: &str| -> Vec<String> {
        let Some((label, values)) = matcher.split_once("=~").or_else(|| matcher.split_once('=')) else { return vec![] };
        // What is not wanted (`!=`) need not be there.
        if label.ends_with('!') {
            return vec![];
        }
        values.trim_matches('"').split('|').map(|value| format!("{label}=\"{value}\"")).collect()
    };
    selectors
        .map(|selector| match selector.split_once('{') {
            None => (selector, vec![String::new()]),
            Some((name, labels)) => match labels.trim_end_matches('}').split(',').flat_map(each).collect::<Vec<_>>() {
                none if none.is_empty() => (name, vec![String::new()]),
                some => (name, some),
            },
        })
        .collect()
}

/// Counters, and nothing else, end in `_total`; units are base units.
fn is_conventional(name: &str, kind: &str) -> bool {
    (kind == "counter") == name.ends_with("_total")
        && !["_kb", "_mb", "_ms", "_count"].iter().any(|unit| name.ends_with(unit))
        && (kind != "histogram" || name.ends_with("_seconds"))
}

/// The rows of the section's table by metric: type, labels, description.
fn rows<'d>(docs: &'d str, section: &str) -> BTreeMap<&'d str, [String; 3]> {
    let titled = |part: &&str| part.lines().next() == Some(section);
    let Some(section) = docs.split("\n## ").find(titled) else { panic!("no section {section:?}") };
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let &[name, kind, labels, what] = &*cells else { panic!("not four cells: {row}") };
        (name.trim_matches('`'), [kind, labels, what].map(|cell| cell.replace('`', "")))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use prometheus::{IntCounter, IntCounterVec, IntGaugeVec, Opts};

    use super::*;

    const TABLE: &str = "# Metrics\n\n## Disk\n\n| metric | type | labels | what |\n|---|---|---|---|\n\
        | `disk_bytes` | gauge | `mode`, `state` | What is on it. |\n| `writes_total` | counter | | Writes. |\n\n## Other\n";

    fn bytes(help: &str, labels: &[&str]) -> Box<dyn Collector> {
        let gauge = IntGaugeVec::new(Opts::new("disk_bytes", help), labels).unwrap();
        gauge.with_label_values(labels).set(1);
        Box::new(gauge)
    }

    fn counter(name: &str) -> Box<dyn Collector> {
        Box::new(IntCounter::new(name, "Writes.").unwrap())
    }

    #[test]
    fn metrics_that_are_described_are_no_difference() {
        let metrics = [bytes("What is on it.", &["mode", "state"]), counter("writes_total")];
        assert_eq!(differences(TABLE, "Disk", metrics), <[&str; 0]>::default());
    }

    #[test]
    fn another_description_and_other_labels_are_told() {
        for metric in [bytes("What is below it.", &["mode", "state"]), bytes("What is on it.", &["mode"])] {
            let found = differences(TABLE, "Disk", [metric, counter("writes_total")]);
            assert!(matches!(&*found, [one] if one.starts_with("disk_bytes is [\"gauge\"")), "{found:?}");
        }
    }

    #[test]
    fn what_is_missing_on_either_side_is_told() {
        let found = differences(TABLE, "Disk", [counter("reads_total")]);
        let gone = ["disk_bytes is described, but gone", "writes_total is described, but gone"];
        assert_eq!(found, [&["reads_total is not described"][..], &gone].concat());
    }

    #[test]
    fn a_name_that_does_not_fit_is_told() {
        assert_eq!(
            differences("## Disk\n\n## Disk\n", "Disk", [counter("writes")])[1],
            "writes is no name for a counter"
        );
    }

    #[test]
    #[should_panic(expected = "no section \"Network\"")]
    fn a_section_that_is_not_there_is_no_empty_one() {
        differences(TABLE, "Network", []);
    }

    const RULES: &str =
        "expr: increase(writes_total[1h]) > 0 or sum(increase(ends_total{how=~\"look|act\",who!=\"me\"}[5m])) > 2";

    fn ends(how: &[&str]) -> Box<dyn Collector> {
        let counter = IntCounterVec::new(Opts::new("ends_total", "Ends."), &["how"]).unwrap();
        for how in how {
            counter.with_label_values(&[how]);
        }
        Box::new(counter)
    }

    #[test]
    fn what_an_alert_counts_has_to_be_there() {
        let missing = |how: &[&str]| missing_at_the_start(RULES, [ends(how), counter("writes_total")]);
        assert_eq!(missing(&["look", "act", "good"]), <[&str; 0]>::default());
        assert_eq!(missing(&["look"]), ["ends_total{how=\"act\"}"]);
        assert_eq!(missing(&[]), ["ends_total{how=\"look\"}", "ends_total{how=\"act\"}"]);
    }

    #[test]
    #[should_panic(expected = "no alert counts one of [\"reads_total\"]")]
    fn metrics_that_no_alert_counts_are_no_good_ones() {
        missing_at_the_start(RULES, [counter("reads_total")]);
    }
}
