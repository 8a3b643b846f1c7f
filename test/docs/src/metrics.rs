//! Tables of docs/metrics.md.

use std::collections::BTreeMap;

use crate::expression::{Metric, metrics_of};

const OF_PROMETHEUS: [&str; 2] = ["instance", "job"];

/// The documented metrics. The tests of the metrics' crates verify the names and labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Described(BTreeMap<String, Row>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    is_histogram: bool,
    labels: Vec<String>,
}

impl Described {
    pub fn parse(page: &str) -> Self {
        let rows = page.lines().filter(|line| line.starts_with("| `granary_")).filter_map(|row| {
            let mut cells = row.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', ""));
            let (name, kind, labels) = (cells.next()?, cells.next()?, cells.next()?);
            let labels = labels.split(", ").filter(|label| !label.is_empty()).map(str::to_owned).collect();
            Some((name, Row { is_histogram: kind == "histogram", labels }))
        });
        Self(rows.collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn problems(&self, expression: &str) -> Vec<String> {
        let Ok(metrics) = metrics_of(expression) else {
            return vec![format!("{expression}: a bracket or a quotation mark has no partner")];
        };
        metrics.iter().flat_map(|metric| self.problems_of(metric)).collect()
    }

    fn problems_of(&self, Metric { name, labels }: &Metric) -> Vec<String> {
        let Some(row) = self.row(name) else { return vec![format!("{name} is not in docs/metrics.md")] };
        let known = |label: &&String| {
            row.labels.contains(label)
                || OF_PROMETHEUS.contains(&label.as_str())
                || row.is_histogram && label.as_str() == "le"
        };
        labels.iter().filter(|label| !known(label)).map(|label| format!("{name} has no label {label}")).collect()
    }

    fn row(&self, name: &str) -> Option<&Row> {
        let series = ["_bucket", "_sum", "_count"].iter().find_map(|ending| name.strip_suffix(ending));
        let histogram = series.and_then(|name| self.0.get(name)).filter(|row| row.is_histogram);
        histogram.or_else(|| self.0.get(name).filter(|row| !row.is_histogram))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "| metric | type | labels | what |\n|---|---|---|---|\n\
        | `granary_free_bytes` | gauge | | Space. |\n| `granary_took_seconds` | histogram | `method`, `code` | Time. |\n";

    #[test]
    fn what_is_described_may_be_used() {
        let described = Described::parse(PAGE);
        for expression in [
            "granary_free_bytes{instance=\"a\"} < 5",
            "histogram_quantile(0.9, sum by (le) (rate(granary_took_seconds_bucket{method=\"x\", le!=\"1\"}[5m])))",
        ] {
            assert_eq!(described.problems(expression), <[&str; 0]>::default(), "{expression}");
        }
    }

    #[test]
    fn what_is_not_there_is_named() {
        let described = Described::parse(PAGE);
        for (expression, problem) in [
            ("granary_gone > 0", "granary_gone is not in docs/metrics.md"),
            ("granary_free_bytes_sum", "granary_free_bytes_sum is not in docs/metrics.md"),
            ("granary_took_seconds > 1", "granary_took_seconds is not in docs/metrics.md"),
            ("granary_free_bytes{mode=\"block\"}", "granary_free_bytes has no label mode"),
        ] {
            assert_eq!(described.problems(expression), [problem]);
        }
    }

    #[test]
    fn a_page_without_tables_describes_nothing() {
        assert!(Described::parse("# Metrics\n").is_empty());
    }
}
