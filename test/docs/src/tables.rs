//! Comparison of the documents' tables with a program: its metrics with docs/metrics.md and
//! docs/operations/alerts.yaml, and other tables.

use std::collections::BTreeMap;
use std::path::Path;
use std::{env, fs};

use prometheus::core::Collector;
use prometheus::{Registry, TextEncoder};

const DOCS: &str = include_str!("../../../docs/metrics.md");
const ALERTS: &str = include_str!("../../../docs/operations/alerts.yaml");

/// Compares the table of a section of docs/metrics.md with the collectors' metrics, in the same order, with
/// [`assert_table`]. Each metric needs a value, which determines its type.
///
/// # Panics
/// Panics if the tables differ, a name does not follow the conventions of Prometheus, or two collectors have a metric
/// of the same name.
pub fn assert_described(section: &str, collectors: impl IntoIterator<Item = Box<dyn Collector>>) {
    assert_table("docs/metrics.md", DOCS, section, &table(collectors));
}

/// Compares the rows of a section's table with `table`; a row begins with a name in backticks. `page` is the text of
/// the file `path` in the workspace. If `bazel run` started the test, the function writes the table instead.
///
/// # Panics
/// Panics if the tables differ, or the section has no table.
pub fn assert_table(path: &str, page: &str, section: &str, table: &str) {
    if let Some(workspace) = env::var_os("BUILD_WORKSPACE_DIRECTORY") {
        let file = Path::new(&workspace).join(path);
        let page = fs::read_to_string(&file).expect("the page is readable");
        fs::write(file, with_table(&page, section, table)).expect("the page is writable");
        return;
    }
    let written = rows(page, section);
    assert!(written == table, "{section:?} of {path} has:\n{written}\nThe program has:\n{table}\n{}", remedy());
}

fn remedy() -> String {
    let test = env::var("TEST_TARGET").unwrap_or_else(|_| "of this test".to_owned());
    format!("To write the table: ./bazelw run {test}")
}

fn table(collectors: impl IntoIterator<Item = Box<dyn Collector>>) -> String {
    let (metrics, text) = gathered(collectors);
    let kinds: BTreeMap<_, _> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    let row = |(name, labels, help): &(String, Vec<String>, String)| {
        let kind = *kinds.get(&**name).unwrap_or_else(|| panic!("{name} has no value"));
        assert!(is_conventional(name, kind), "{name} is not a name of a {kind}");
        let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        format!("| `{name}` | {kind} | {} | {help} |\n", labels.join(", ")).replace("|  |", "| |")
    };
    metrics.iter().map(row).collect()
}

fn gathered(collectors: impl IntoIterator<Item = Box<dyn Collector>>) -> (Vec<(String, Vec<String>, String)>, String) {
    let registry = Registry::new();
    let mut metrics = Vec::new();
    for collector in collectors {
        let descriptions = collector.desc().into_iter().cloned();
        metrics.extend(descriptions.map(|metric| (metric.fq_name, metric.variable_labels, metric.help)));
        registry.register(collector).expect("metrics have different names");
    }
    (metrics, TextEncoder::new().encode_to_string(&registry.gather()).expect("metrics are text"))
}

/// Whether the name follows the conventions: only counters end in `_total`, and units are base units.
fn is_conventional(name: &str, kind: &str) -> bool {
    (kind == "counter") == name.ends_with("_total")
        && !["_kb", "_mb", "_ms", "_count"].iter().any(|unit| name.ends_with(unit))
        && (kind != "histogram" || name.ends_with("_seconds"))
}

fn parts<'a>(page: &'a str, section: &str) -> (&'a str, &'a str, &'a str) {
    let heading = format!("\n## {section}\n");
    let start = page.find(&heading).unwrap_or_else(|| panic!("no section {section:?}")) + heading.len();
    let end = page[start..].find("\n## ").map_or(page.len(), |length| start + length);
    let is_row = |line: &str| line.starts_with("| `");
    let (mut first, mut last, mut at) = (None, start, start);
    for line in page[start..end].split_inclusive('\n') {
        if is_row(line) || line.starts_with("|---") {
            first = first.or((!is_row(line)).then_some(at + line.len()));
            last = at + line.len();
        }
        at += line.len();
    }
    let first = first.unwrap_or_else(|| panic!("no table in section {section:?}"));
    (&page[..first], &page[first..last], &page[last..])
}

fn rows<'a>(page: &'a str, section: &str) -> &'a str {
    parts(page, section).1
}

fn with_table(page: &str, section: &str, table: &str) -> String {
    let (before, _, after) = parts(page, section);
    [before, table, after].concat()
}

/// Requires that all series that `increase` selects in an alert exist before the first event. Otherwise the first event
/// creates the series instead of increasing it, and the alert misses the event.
pub fn assert_counted_from_the_start(collectors: impl IntoIterator<Item = Box<dyn Collector>>) {
    let missing = missing_at_the_start(ALERTS, collectors);
    assert!(missing.is_empty(), "series of docs/operations/alerts.yaml do not exist at the start: {missing:?}");
}

fn missing_at_the_start(alerts: &str, collectors: impl IntoIterator<Item = Box<dyn Collector>>) -> Vec<String> {
    let (metrics, text) = gathered(collectors);
    let mut selectors = increases(alerts);
    selectors.retain(|(name, _)| metrics.iter().any(|(known, ..)| known == name));
    assert!(!selectors.is_empty(), "no alert counts one of these metrics");
    let exists = |name: &str, label: &str| {
        let has_name = |line: &str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
        text.lines().any(|line| has_name(line) && line.contains(label))
    };
    let wanted = selectors.into_iter().flat_map(|(name, labels)| labels.into_iter().map(move |label| (name, label)));
    wanted.filter(|(name, label)| !exists(name, label)).map(|(name, label)| format!("{name}{{{label}}}")).collect()
}

/// Metrics in `increase(…)`, with each selected `label="value"`. An empty text means that any series is selected.
fn increases(alerts: &str) -> Vec<(&str, Vec<String>)> {
    let selectors = alerts.split("increase(").skip(1).filter_map(|rest| rest.split('[').next());
    let each = |matcher: &str| -> Vec<String> {
        let Some((label, values)) = matcher.split_once("=~").or_else(|| matcher.split_once('=')) else { return vec![] };
        // Excluded values (`!=`) need not exist.
        if label.ends_with('!') {
            return vec![];
        }
        values.trim_matches('"').split('|').map(|value| format!("{label}=\"{value}\"")).collect()
    };
    selectors
        .map(|selector| {
            let (name, labels) = selector.split_once('{').unwrap_or((selector, ""));
            let found: Vec<_> = labels.trim_end_matches('}').split(',').flat_map(each).collect();
            (name, if found.is_empty() { vec![String::new()] } else { found })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use prometheus::{IntCounter, IntCounterVec, IntGaugeVec, Opts};

    use super::*;

    const PAGE: &str = "# Metrics\n\n## Disk\n\nText.\n\n| metric | type | labels | what |\n|---|---|---|---|\n\
        | `disk_bytes` | gauge | `mode`, `state` | Used space. |\n| `writes_total` | counter | | Writes. |\n\n\
        - `mode`: any.\n\n## Other\n";

    fn metrics(help: &str) -> [Box<dyn Collector>; 2] {
        let gauge = IntGaugeVec::new(Opts::new("disk_bytes", help), &["mode", "state"]).unwrap();
        gauge.with_label_values(&["a", "b"]).set(1);
        [Box::new(gauge), Box::new(IntCounter::new("writes_total", "Writes.").unwrap())]
    }

    #[test]
    fn the_table_has_a_row_for_each_metric() {
        assert_eq!(table(metrics("Used space.")), rows(PAGE, "Disk"));
        let other = table(metrics("Free space."));
        assert_ne!(other, rows(PAGE, "Disk"));
        assert_eq!(with_table(PAGE, "Disk", &other), PAGE.replace("Used space.", "Free space."));
    }

    #[test]
    #[should_panic(expected = "writes is not a name of a counter")]
    fn an_unconventional_name_is_rejected() {
        table([Box::new(IntCounter::new("writes", "Writes.").unwrap()) as Box<dyn Collector>]);
    }

    #[test]
    #[should_panic(expected = "no section \"Network\"")]
    fn a_missing_section_is_reported() {
        rows(PAGE, "Network");
    }

    const RULES: &str =
        "expr: increase(writes_total[1h]) > 0 or sum(increase(ends_total{how=~\"look|act\",who!=\"me\"}[5m])) > 2";

    #[test]
    fn series_that_an_alert_counts_must_exist() {
        let missing = |how: &[&str]| {
            let counter = IntCounterVec::new(Opts::new("ends_total", "Ends."), &["how"]).unwrap();
            for how in how {
                counter.with_label_values(&[how]);
            }
            let [_, writes] = metrics("Used space.");
            missing_at_the_start(RULES, [Box::new(counter) as Box<dyn Collector>, writes])
        };
        assert_eq!(missing(&["look", "act", "good"]), <[&str; 0]>::default());
        assert_eq!(missing(&["look"]), ["ends_total{how=\"act\"}"]);
        assert_eq!(missing(&[]), ["ends_total{how=\"look\"}", "ends_total{how=\"act\"}"]);
    }

    #[test]
    #[should_panic(expected = "no alert counts one of these metrics")]
    fn metrics_without_an_alert_are_reported() {
        missing_at_the_start("", metrics("Used space."));
    }
}
