//! The demonstration's result, for a person.

use crate::demo::Shown;
use crate::objects::NAMESPACE;
use std::fmt::Write;
use units::Bytes;

const TITLES: [&str; 7] = ["CLAIM", "MODE", "VOLUME", "LIMIT", "WRITTEN", "WRITING ON", "IN USE"];

/// A table of the claims, and of what was found in them.
pub(crate) fn of(shown: &[Shown]) -> String {
    let rows: Vec<[String; 7]> = shown.iter().map(row).collect();
    let mut text = line(&rows, &TITLES.map(str::to_owned));
    for row in &rows {
        text.push_str(&line(&rows, row));
    }
    text.push('\n');
    for Shown { member, finding, .. } in shown {
        let claim = member.claim;
        let before = match &finding.found {
            Some(note) => format!("had the note of an earlier run, {note:?}."),
            None => "was new and empty.".to_owned(),
        };
        // Writing to a String does not fail.
        _ = writeln!(text, "{NAMESPACE}/{claim} {before} It keeps the note {:?}.", finding.kept);
    }
    text
}

fn row(shown: &Shown) -> [String; 7] {
    let Shown { member, volume, finding } = shown;
    [
        format!("{NAMESPACE}/{}", member.claim),
        member.mode.to_string(),
        volume.clone(),
        member.capacity.to_string(),
        Bytes::new(finding.written).to_string(),
        format!("refused: {}", finding.errno),
        Bytes::new(finding.used).to_string(),
    ]
}

/// A row in columns that are as wide as their widest cell.
fn line(rows: &[[String; 7]], cells: &[String; 7]) -> String {
    let mut text = String::new();
    for (column, cell) in cells.iter().enumerate() {
        let widths = rows.iter().map(|row| row[column].chars().count());
        let width = widths.fold(TITLES[column].len(), usize::max);
        _ = write!(text, "{cell:width$}  ");
    }
    format!("{}\n", text.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::MEMBERS;

    fn shown(index: usize, written: u64, used: u64, found: Option<&str>) -> Shown {
        let member = MEMBERS[index];
        let finding = workload::Demo {
            found: found.map(str::to_owned),
            kept: "written today".into(),
            size: member.capacity.get(),
            written,
            errno: "ENOSPC".into(),
            used,
        };
        Shown { member, volume: format!("pvc-{index}"), finding }
    }

    #[test]
    fn the_table_has_this_shape() {
        let shown =
            [shown(0, (64 << 20) - 4096, 4096, Some("written \x1b[2Jyesterday")), shown(1, 32 << 20, 32 << 20, None)];
        assert_eq!(
            of(&shown),
            r#"CLAIM       MODE        VOLUME  LIMIT   WRITTEN                 WRITING ON       IN USE
demo/notes  Filesystem  pvc-0   64 MiB  63.99 MiB (67104768 B)  refused: ENOSPC  4 KiB
demo/disk   Block       pvc-1   32 MiB  32 MiB                  refused: ENOSPC  32 MiB

demo/notes had the note of an earlier run, "written \u{1b}[2Jyesterday". It keeps the note "written today".
demo/disk was new and empty. It keeps the note "written today".
"#
        );
    }
}
