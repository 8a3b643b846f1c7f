//! The result of the demonstration as text.

use crate::demo::{ClaimResult, DemoResult};
use crate::objects::NAMESPACE;
use std::fmt::Write;
use units::Bytes;

pub(crate) fn of(result: &DemoResult) -> String {
    let DemoResult { claims, mesh } = result;
    let mut columns = columns(claims);
    // A single node needs no NODE column.
    if mesh.is_empty() {
        columns.retain(|column| column[0] != NODE);
    }
    let mut text = lines(&columns);
    text.push('\n');
    for ClaimResult { demo_claim, finding, .. } in claims {
        let claim = &demo_claim.claim;
        let before = match &finding.found {
            Some(note) => format!("had the note of an earlier run, {note:?}."),
            None => "was new and empty.".to_owned(),
        };
        // Writing to a `String` does not fail.
        _ = writeln!(text, "{NAMESPACE}/{claim} {before} It keeps the note {:?}.", finding.kept);
    }
    if !mesh.is_empty() {
        text.push_str("\nPods reach each other through the mesh. The times include the path through the API server.\n");
    }
    for request in mesh {
        _ = writeln!(text, "{request}");
    }
    text
}

const NODE: &str = "NODE";

/// Cells of each column, starting with the title.
fn columns(claims: &[ClaimResult]) -> Vec<Vec<String>> {
    let column = |title: &str, cell: &dyn Fn(&ClaimResult) -> String| {
        std::iter::once(title.to_owned()).chain(claims.iter().map(cell)).collect()
    };
    vec![
        column("CLAIM", &|result| format!("{NAMESPACE}/{}", result.demo_claim.claim)),
        column(NODE, &|result| result.demo_claim.node.clone()),
        column("MODE", &|result| result.demo_claim.mode.to_string()),
        column("VOLUME", &|result| result.volume.clone()),
        column("LIMIT", &|result| result.demo_claim.capacity.to_string()),
        column("WRITTEN", &|result| Bytes::new(result.finding.written).to_string()),
        column("WRITING ON", &|result| format!("refused: {}", result.finding.errno)),
        column("IN USE", &|result| Bytes::new(result.finding.used).to_string()),
    ]
}

/// Columns of the same length side by side.
pub(crate) fn lines(columns: &[Vec<String>]) -> String {
    let rows = columns.first().map_or(0, Vec::len);
    (0..rows).map(|row| line(columns, row)).collect()
}

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

    fn result(index: usize, written: u64, used: u64, found: Option<&str>) -> ClaimResult {
        let nodes = ["granary".to_owned(), "granary-1".to_owned()];
        let mut demo_claims = objects::demo_pods(&nodes).into_iter().flat_map(|demo_pod| demo_pod.claims);
        let demo_claim = demo_claims.nth(index).unwrap();
        let finding = workload::Demo {
            found: found.map(str::to_owned),
            kept: "written today".into(),
            size: demo_claim.capacity.get(),
            written,
            errno: "ENOSPC".into(),
            used,
        };
        ClaimResult { demo_claim, volume: format!("pvc-{index}"), finding }
    }

    #[test]
    fn the_table_has_this_format() {
        let claims = vec![
            result(0, (64 << 20) - 4096, 4096, Some("written \x1b[2Jyesterday")),
            result(1, 32 << 20, 32 << 20, None),
        ];
        assert_eq!(
            of(&DemoResult { claims, mesh: Vec::new() }),
            r#"CLAIM       MODE        VOLUME  LIMIT   WRITTEN                 WRITING ON       IN USE
demo/notes  Filesystem  pvc-0   64 MiB  63.99 MiB (67104768 B)  refused: ENOSPC  4 KiB
demo/disk   Block       pvc-1   32 MiB  32 MiB                  refused: ENOSPC  32 MiB

demo/notes had the note of an earlier run, "written \u{1b}[2Jyesterday". It keeps the note "written today".
demo/disk was new and empty. It keeps the note "written today".
"#
        );
    }

    #[test]
    fn the_table_of_a_cluster_has_nodes_and_requests() {
        let claims = vec![result(1, 32 << 20, 32 << 20, None), result(3, 32 << 20, 32 << 20, None)];
        let mesh = crate::mesh::tests::reached("granary", "granary-1");
        assert_eq!(
            of(&DemoResult { claims, mesh }),
            r#"CLAIM        NODE       MODE   VOLUME  LIMIT   WRITTEN  WRITING ON       IN USE
demo/disk    granary    Block  pvc-1   32 MiB  32 MiB   refused: ENOSPC  32 MiB
demo/disk-1  granary-1  Block  pvc-3   32 MiB  32 MiB   refused: ENOSPC  32 MiB

demo/disk was new and empty. It keeps the note "written today".
demo/disk-1 was new and empty. It keeps the note "written today".

Pods reach each other through the mesh. The times include the path through the API server.
granary → granary-1: 10.244.0.5 reached 10.244.1.3 in 12 ms
granary-1 → granary: 10.244.1.3 reached 10.244.0.5 in 12 ms
"#
        );
    }
}
