//! The demonstration's result, for a person.

use crate::demo::{Demonstration, Shown};
use crate::objects::NAMESPACE;
use std::fmt::Write;
use units::Bytes;

/// A table of the claims, what was found in them, and which nodes reached each other.
pub(crate) fn of(demonstration: &Demonstration) -> String {
    let Demonstration { claims, mesh } = demonstration;
    let mut columns = columns(claims);
    // A node without others is named nowhere.
    if mesh.is_empty() {
        columns.retain(|column| column[0] != NODE);
    }
    let mut text = String::new();
    for row in 0..=claims.len() {
        text.push_str(&line(&columns, row));
    }
    text.push('\n');
    for Shown { member, finding, .. } in claims {
        let claim = &member.claim;
        let before = match &finding.found {
            Some(note) => format!("had the note of an earlier run, {note:?}."),
            None => "was new and empty.".to_owned(),
        };
        // Writing to a String does not fail.
        _ = writeln!(text, "{NAMESPACE}/{claim} {before} It keeps the note {:?}.", finding.kept);
    }
    if !mesh.is_empty() {
        text.push_str(
            "\nPods reach each other through the mesh. The times are those of questions through the API server.\n",
        );
    }
    for reached in mesh {
        _ = writeln!(text, "{reached}");
    }
    text
}

const NODE: &str = "NODE";

/// Cells below their title.
fn columns(claims: &[Shown]) -> Vec<Vec<String>> {
    let column = |title: &str, cell: &dyn Fn(&Shown) -> String| {
        std::iter::once(title.to_owned()).chain(claims.iter().map(cell)).collect()
    };
    vec![
        column("CLAIM", &|shown| format!("{NAMESPACE}/{}", shown.member.claim)),
        column(NODE, &|shown| shown.member.node.clone()),
        column("MODE", &|shown| shown.member.mode.to_string()),
        column("VOLUME", &|shown| shown.volume.clone()),
        column("LIMIT", &|shown| shown.member.capacity.to_string()),
        column("WRITTEN", &|shown| Bytes::new(shown.finding.written).to_string()),
        column("WRITING ON", &|shown| format!("refused: {}", shown.finding.errno)),
        column("IN USE", &|shown| Bytes::new(shown.finding.used).to_string()),
    ]
}

/// A row in columns that are as wide as their widest cell.
fn line(columns: &[Vec<String>], row: usize) -> String {
    let mut text = String::new();
    for column in columns {
        let width = column.iter().map(|cell| cell.chars().count()).max().unwrap_or_default();
        let cell = column.get(row).map_or("", String::as_str);
        _ = write!(text, "{cell:width$}  ");
    }
    format!("{}\n", text.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects;

    fn shown(index: usize, written: u64, used: u64, found: Option<&str>) -> Shown {
        let nodes = ["granary".to_owned(), "granary-1".to_owned()];
        let member = objects::members(&nodes).swap_remove(index);
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
        let claims = vec![
            shown(0, (64 << 20) - 4096, 4096, Some("written \x1b[2Jyesterday")),
            shown(1, 32 << 20, 32 << 20, None),
        ];
        assert_eq!(
            of(&Demonstration { claims, mesh: Vec::new() }),
            r#"CLAIM       MODE        VOLUME  LIMIT   WRITTEN                 WRITING ON       IN USE
demo/notes  Filesystem  pvc-0   64 MiB  63.99 MiB (67104768 B)  refused: ENOSPC  4 KiB
demo/disk   Block       pvc-1   32 MiB  32 MiB                  refused: ENOSPC  32 MiB

demo/notes had the note of an earlier run, "written \u{1b}[2Jyesterday". It keeps the note "written today".
demo/disk was new and empty. It keeps the note "written today".
"#
        );
    }

    #[test]
    fn the_table_of_several_nodes_names_them_and_who_reached_whom() {
        let claims = vec![shown(1, 32 << 20, 32 << 20, None), shown(3, 32 << 20, 32 << 20, None)];
        let mesh = crate::mesh::tests::reached("granary", "granary-1");
        assert_eq!(
            of(&Demonstration { claims, mesh }),
            r#"CLAIM        NODE       MODE   VOLUME  LIMIT   WRITTEN  WRITING ON       IN USE
demo/disk    granary    Block  pvc-1   32 MiB  32 MiB   refused: ENOSPC  32 MiB
demo/disk-1  granary-1  Block  pvc-3   32 MiB  32 MiB   refused: ENOSPC  32 MiB

demo/disk was new and empty. It keeps the note "written today".
demo/disk-1 was new and empty. It keeps the note "written today".

Pods reach each other through the mesh. The times are those of questions through the API server.
granary → granary-1: 10.244.0.5 reached 10.244.1.3 in 12 ms
granary-1 → granary: 10.244.1.3 reached 10.244.0.5 in 12 ms
"#
        );
    }
}
