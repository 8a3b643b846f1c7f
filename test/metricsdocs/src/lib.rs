//! Compares the metrics of a program with the tables of docs/metrics.md: nothing is left out, and nothing is described
//! that is gone.
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
    use prometheus::{IntCounter, IntGaugeVec, Opts};

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
}
