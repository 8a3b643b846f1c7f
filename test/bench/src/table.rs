//! The report as a text table.

use std::fmt;

use crate::operation::{Expected, Subject};
use crate::report::{Count, Figure, Report};
use crate::sample::is_housekeeping;
use crate::statistics::Spread;
use crate::timed;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = if self.runs == 1 { "one run".into() } else { format!("medians of {} interleaved runs", self.runs) };
        writeln!(
            f,
            "System calls and disk flushes of one call; {runs} (min–max where they differ), Linux {}",
            self.kernel
        )?;
        for subject in Subject::ALL {
            let of_subject = |figure: &&Figure| figure.subject == subject;
            writeln!(f, "\n{}", counts(subject, self.figures.iter().filter(of_subject)))?;
        }
        writeln!(f, "\n{}", disk_work(&self.figures))?;
        if !self.times.is_empty() {
            writeln!(f, "\n{}", timed::table(&self.times))?;
        }
        writeln!(f, "\n{}", names(&self.figures))?;
        writeln!(f, "\n{}", ratios(self))?;
        verdict(f, "slopes and limits", self.violations.len())
    }
}

/// Text that every benchmark prints if all of its limits hold.
pub const VERDICT: &str = "all as promised";

/// Last line of a report: whether all limits of this kind hold.
pub(crate) fn verdict(f: &mut fmt::Formatter<'_>, kind: &str, missed: usize) -> fmt::Result {
    match missed {
        0 => writeln!(f, "\nAll {kind} hold: {VERDICT}."),
        _ => writeln!(f, "\n{missed} of the {kind} do NOT hold."),
    }
}

fn counts<'a>(subject: Subject, figures: impl Iterator<Item = &'a Figure>) -> Table {
    let [few, many] = subject.populations();
    let things = subject.things();
    let heads = [
        subject.to_string(),
        format!("{few} {things}"),
        format!("{many} {things}"),
        "slope".into(),
        "limit".into(),
        format!("flushes at {few}"),
        format!("at {many}"),
    ];
    let rows = figures.map(|figure| {
        let [few, many] = &figure.counts;
        vec![
            figure.operation.title().into(),
            spread(&few.syscalls),
            spread(&many.syscalls),
            number(figure.slope),
            limits(figure),
            spread(&few.flushes),
            spread(&many.flushes),
        ]
    });
    Table::new(heads.into(), rows.collect())
}

fn limits(figure: &Figure) -> String {
    let Expected { slope, at_most, flushes, .. } = figure.expected;
    let limits = [
        slope.map(|slope| format!("slope {slope}")),
        at_most.map(|limit| format!("≤ {limit}")),
        flushes.map(|limit| format!("≤ {limit} flushes")),
    ];
    let limits: Vec<_> = limits.into_iter().flatten().collect();
    if limits.is_empty() { "–".into() } else { limits.join(", ") }
}

/// Work of the disk for snapshots. The JSON form has the figures of all operations.
fn disk_work(figures: &[Figure]) -> Table {
    let [few, many] = Subject::Snapshot.populations();
    let heads = [
        "work of the disk".to_owned(),
        format!("writes at {few}"),
        format!("at {many}"),
        format!("KiB at {few}"),
        format!("at {many}"),
        format!("ms at {few}"),
        format!("at {many}"),
        "of which flushes".to_owned(),
        "limit".to_owned(),
    ];
    let rows = figures.iter().filter(|figure| figure.subject == Subject::Snapshot).map(|figure| {
        let [few, many] = &figure.counts;
        let counts = [&few.writes, &many.writes, &few.written_kib, &many.written_kib];
        let times = [&few.disk_ms, &many.disk_ms, &many.flush_ms];
        let limit = figure.expected.disk_ms.map_or_else(|| "–".to_owned(), |limit| format!("≤ {limit} ms"));
        let cells = counts.into_iter().chain(times).map(spread);
        std::iter::once(figure.operation.title().to_owned()).chain(cells).chain([limit]).collect()
    });
    Table::new(heads.into(), rows.collect())
}

fn names(figures: &[Figure]) -> Table {
    let rows = figures.iter().map(|figure| {
        let [few, many] = &figure.counts;
        let title = format!("{}: {}", figure.subject, figure.operation.title());
        // If the number of calls grows, the shorter list names the calls.
        let calls = figure.operation.calls();
        let names = list(if figure.slope > 0.0 { few } else { many }, calls);
        vec![title, if calls == 1 { names } else { format!("in {calls} calls: {names}") }]
    });
    Table::new(vec!["which calls".into(), String::new()], rows.collect())
}

fn list(count: &Count, calls: u32) -> String {
    let names = count.by_name.iter().filter(|(name, _)| !is_housekeeping(name));
    let names = names.map(|(name, each)| match number(each * f64::from(calls)).as_str() {
        "1" => name.clone(),
        times => format!("{times} {name}"),
    });
    names.collect::<Vec<_>>().join(", ")
}

fn ratios(report: &Report) -> Table {
    let heads = ["compared with a walk over all quotas", "projects", "walk", "ours", "ratio"].map(String::from);
    let rows = report.ratios.iter().map(|ratio| {
        vec![
            ratio.task.into(),
            ratio.present.to_string(),
            number(ratio.baseline),
            number(ratio.ours),
            format!("{:.1}", ratio.ratio),
        ]
    });
    Table::new(heads.into(), rows.collect())
}

pub(crate) fn spread(spread: &Spread) -> String {
    if spread.is_constant() {
        number(spread.median)
    } else {
        format!("{} ({}–{})", number(spread.median), number(spread.min), number(spread.max))
    }
}

/// Formats a number with as few decimals as needed, at most three.
pub(crate) fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".into() } else { text.into() }
}

/// Columns as wide as their widest cell. The first column is text; the others are numbers, except for the second of two
/// columns.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(heads: Vec<String>, mut rows: Vec<Vec<String>>) -> Self {
        rows.insert(0, heads);
        Self { rows }
    }

    fn width(&self, column: usize) -> usize {
        self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or_default()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = self.width(column);
                match (column, row.len()) {
                    (0, _) => line.push_str(&format!("{cell:width$}")),
                    (1, 2) => line.push_str(&format!("  {cell}")),
                    _ => line.push_str(&format!("  {cell:>width$}")),
                }
            }
            let end = if index + 1 == self.rows.len() { "" } else { "\n" };
            write!(f, "{}{end}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_as_short_as_they_can_be() {
        for (value, text) in
            [(0.0, "0"), (-0.0, "0"), (15.0, "15"), (0.218_75, "0.219"), (0.5, "0.5"), (1000.0, "1000")]
        {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn runs_that_differ_are_shown() {
        assert_eq!(spread(&Spread { median: 15.0, min: 15.0, max: 15.0 }), "15");
        assert_eq!(spread(&Spread { median: 15.0, min: 14.0, max: 17.0 }), "15 (14–17)");
    }

    #[test]
    fn columns_are_aligned() {
        let cells = |row: [&str; 3]| row.map(String::from).to_vec();
        let table = Table::new(cells(["loopdev", "at 0", "slope"]), vec![cells(["attach", "12", "0"])]);
        assert_eq!(table.to_string(), "loopdev  at 0  slope\nattach     12      0");
    }

    proptest! {
        #[test]
        fn all_lines_of_numbers_are_equally_long(cells in prop::collection::vec("[0-9–]{1,9}", 12)) {
            let rows: Vec<Vec<String>> = cells.chunks(3).map(<[String]>::to_vec).collect();
            let text = Table::new(vec!["a".into(), "b".into(), "c".into()], rows).to_string();
            let lengths: Vec<usize> = text.lines().map(|line| line.chars().count()).collect();
            prop_assert!(lengths.windows(2).all(|pair| pair[0] == pair[1]));
        }
    }
}
