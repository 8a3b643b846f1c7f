//! Text tables of all reports.

use std::fmt;

use crate::statistics::Spread;

/// Text that every benchmark prints if all of its limits hold.
pub const VERDICT: &str = "all as promised";

/// Last line of a report: whether all limits of this kind hold.
pub(crate) fn verdict(f: &mut fmt::Formatter<'_>, kind: &str, missed: usize) -> fmt::Result {
    match missed {
        0 => writeln!(f, "\nAll {kind} hold: {VERDICT}."),
        _ => writeln!(f, "\n{missed} of the {kind} do NOT hold."),
    }
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
