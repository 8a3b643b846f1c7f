//! Tests that a page names: a Bazel label, followed by cases of this test.

use std::collections::BTreeSet;

/// A case and the labels of possible tests: those of its row or paragraph, and of the paragraphs of its section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// Name as written on the page; `*` matches any characters.
    pub name: String,
    /// `//package:target`.
    pub labels: BTreeSet<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    pub labels: BTreeSet<String>,
    pub cases: Vec<Case>,
    /// Rows in tables of threats that name no test.
    pub untested: Vec<String>,
}

impl Claims {
    /// Reads a Markdown page. A name of a case follows a label or has at least four words.
    pub fn parse(text: &str) -> Self {
        let mut claims = Self::default();
        let mut fenced = false;
        let mut section = Vec::new();
        for line in text.lines() {
            if line.starts_with("```") {
                fenced = !fenced;
            } else if line.starts_with('#') && !fenced {
                claims.section(&section);
                section.clear();
            } else if !fenced {
                section.push(line);
            }
        }
        claims.section(&section);
        claims
    }

    fn section(&mut self, lines: &[&str]) {
        let is_row = |line: &&str| line.trim_start().starts_with('|');
        let paragraphs = lines.split(|line| line.trim().is_empty() || is_row(line)).map(|lines| lines.join("\n"));
        let paragraphs: Vec<_> = paragraphs.filter(|paragraph| !paragraph.is_empty()).collect();
        let of_section: BTreeSet<_> = paragraphs.iter().flat_map(|paragraph| labels(paragraph)).collect();
        let rows: Vec<_> = lines.iter().filter(|line| is_row(line)).map(|row| (*row).to_owned()).collect();
        for block in paragraphs.iter().chain(&rows) {
            let mut candidates: BTreeSet<_> = labels(block).collect();
            self.labels.extend(candidates.clone());
            candidates.extend(of_section.clone());
            self.cases.extend(cases(block).map(|name| Case { name, labels: candidates.clone() }));
        }
        let threats = rows.iter().skip_while(|row| !row.starts_with("| threat")).skip(2);
        let tested = |row: &&String| labels(row).next().is_some() || row.contains("the same case");
        self.untested.extend(threats.filter(|row| !tested(row)).cloned());
    }
}

fn spans(block: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut parts = block.split('`');
    std::iter::from_fn(move || Some((parts.next()?, parts.next()?)))
}

fn is_label(span: &str) -> bool {
    span.starts_with("//") && span.contains(':') && !span.contains(char::is_whitespace)
}

fn labels(block: &str) -> impl Iterator<Item = String> {
    spans(block).map(|(_, span)| span.to_owned()).filter(|span| is_label(span))
}

fn cases(block: &str) -> impl Iterator<Item = String> {
    // Whether the preceding spans are a label and its cases.
    let mut follows = false;
    spans(block).filter_map(move |(before, span)| {
        if is_label(span) {
            follows = true;
            return None;
        }
        let words = span.split('_').count();
        let is_name = words > 1 && span.chars().all(|c| matches!(c, 'a'..='z' | '0'..='9' | '_' | '*'));
        follows &= is_name && is_separator(before);
        // Names of metrics can also have several words.
        let is_case = is_name && (follows || words >= 4) && !span.starts_with("granary_");
        is_case.then(|| span.to_owned())
    })
}

/// Whether the text may separate a label from its cases, like `, ` or `(control), `.
fn is_separator(text: &str) -> bool {
    let remark = |text: &str| text.starts_with('(') && text.find(')').is_some();
    let text = text.trim();
    let text = if remark(text) { text.split_once(')').map_or("", |(_, rest)| rest).trim() } else { text };
    matches!(text, "" | "," | "and")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        Claims::parse(text).cases.into_iter().map(|case| case.name).collect()
    }

    #[test]
    fn cases_follow_their_label() {
        let text = "`//a:b_test` `one_two`, `three_four` (control), `five_*` and `six_seven`; `max_loop` stays";
        assert_eq!(names(text), ["one_two", "three_four", "five_*", "six_seven"]);
        assert_eq!(names("`file_ioctl` and `no`, `//a:b_test`"), [""; 0]);
        assert_eq!(
            names("Set `kernel_max` (`granary_denied_total_of_all`), see `a_case_of_the_section`."),
            ["a_case_of_the_section"]
        );
        assert_eq!(names("```\n`//a:b_test` `one_two`\n```\n"), [""; 0]);
    }

    #[test]
    fn labels_of_a_section_are_for_all_its_rows() {
        let text = "# A\n\nTests: `//a:a_test`.\n\n| x |\n|---|\n| `//b:b_test` `one_two` |\n\n# B\n\n`//c:c_test` `three_four`\n";
        let claims = Claims::parse(text);
        let labels = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(claims.labels, labels(&["//a:a_test", "//b:b_test", "//c:c_test"]));
        assert_eq!(claims.cases[0].labels, labels(&["//a:a_test", "//b:b_test"]));
        assert_eq!(claims.cases[1].labels, labels(&["//c:c_test"]));
    }

    #[test]
    fn a_threat_without_a_test_is_found() {
        let text = "| threat | test |\n|---|---|\n| a | `//a:a_test` `one_two` |\n| b | the same case |\n| c | – |\n";
        assert_eq!(Claims::parse(text).untested, ["| c | – |"]);
        assert_eq!(Claims::parse("| goal | test |\n|---|---|\n| a | |\n").untested, [""; 0]);
    }
}
