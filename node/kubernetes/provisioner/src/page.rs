//! Tables of the pages for operators, which tests compare with the program.

/// The rows of the first table under a heading, as the text of their cells.
pub(crate) fn rows<'p>(page: &'p str, heading: &str) -> Vec<Vec<&'p str>> {
    let Some((_, section)) = page.split_once(&format!("\n## {heading}\n")) else { panic!("no heading {heading:?}") };
    let table = section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    // What is left out is the head and the line below it.
    table.skip(2).map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// What stands between backticks.
pub(crate) fn code(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}
