//! The demonstration's result, for a person.

use crate::demo::Demo;
use std::fmt::Write;
use units::Bytes;

/// A table of one claim, and what was found in it.
pub(crate) fn of(demo: &Demo) -> String {
    let finding = &demo.finding;
    let fill = &finding.fill;
    let bytes = |count: u64| Bytes::new(count).to_string();
    let used = bytes(finding.after.size.saturating_sub(finding.after.free));
    let refusal = format!("{} after {}", fill.errno, bytes(fill.written));
    let rows = [
        ("CLAIM", demo.claim.as_str()),
        ("VOLUME", demo.volume.as_str()),
        ("LIMIT", &bytes(demo.capacity)),
        ("USED", &used),
        ("WRITING ON WAS REFUSED", &refusal),
    ];
    let mut text = table(&rows);
    let note = match &finding.found {
        Some(found) => format!("The volume still had the note of an earlier run: {found:?}."),
        None => "The volume was new and empty.".to_owned(),
    };
    // Writing to a String does not fail.
    _ = write!(text, "\n{note}\nIt keeps this one: {:?}.\n", finding.kept);
    text
}

/// One line of titles, one of values, in columns.
fn table(rows: &[(&str, &str)]) -> String {
    let line = |cells: Vec<&str>| {
        let padded = rows.iter().zip(cells).map(|((title, value), cell)| {
            let width = title.chars().count().max(value.chars().count());
            format!("{cell:width$}")
        });
        padded.collect::<Vec<String>>().join("  ").trim_end().to_owned()
    };
    let titles = line(rows.iter().map(|(title, _)| *title).collect());
    let values = line(rows.iter().map(|(_, value)| *value).collect());
    format!("{titles}\n{values}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use workload::{Fill, Space};

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        assert_eq!(table(&[("A", "long"), ("TITLE", "x"), ("B", "y")]), "A     TITLE  B\nlong  x      y\n");
    }

    #[test]
    fn the_refusal_and_the_earlier_note_are_shown() {
        let space = |free| Space { size: 64 << 20, free, inodes: 32_768, inodes_free: 32_766 };
        let text = of(&Demo {
            claim: "demo/notes".into(),
            volume: "pvc-1".into(),
            capacity: 64 << 20,
            finding: workload::Demo {
                found: Some("written yesterday".into()),
                kept: "written today".into(),
                fill: Fill { before: space(64 << 20), written: 60 << 20, errno: "ENOSPC".into(), full: space(0) },
                after: space(63 << 20),
            },
        });
        assert!(text.contains("demo/notes  pvc-1   64 MiB  1 MiB  ENOSPC after 60 MiB"), "{text}");
        assert!(text.contains("an earlier run: \"written yesterday\""), "{text}");
    }
}
