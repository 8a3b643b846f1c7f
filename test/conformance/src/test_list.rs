//! The selected tests, from a dry run of ginkgo.

use crate::selection::{self, Suite};
use serde::Deserialize;

/// The report of `--ginkgo.json-report`, ginkgo's types/types.go.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Report {
    suite_description: String,
    spec_reports: Vec<SpecReport>,
}

/// Report of a test, or of a node of the whole suite, which has no texts of containers. Invalid states are null.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SpecReport {
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: Option<String>,
    leaf_node_text: String,
    state: Option<String>,
}

impl SpecReport {
    /// A dry run reports tests that the filters leave out as `skipped`, and the others as `passed`.
    fn is_selected(&self) -> bool {
        self.leaf_node_type.as_deref() == Some("It") && self.state.as_deref() == Some("passed")
    }

    /// The text that ginkgo compares with a focus, without the suite's description (`Spec.Text`, internal/spec.go).
    fn name(self) -> String {
        let mut texts = self.container_hierarchy_texts.unwrap_or_default();
        texts.push(self.leaf_node_text);
        texts.retain(|text| !text.is_empty());
        texts.join(" ")
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum TestListError {
    #[error("the report of ginkgo has an unknown format: compare test/conformance/src/test_list.rs with it")]
    Report(#[from] serde_json::Error),
    #[error("no name of a test matches --focus; list the names with --dry-run and without --focus")]
    Empty,
    #[error("the test {0:?} has a control character or \\E in its name, which results.tsv and --ginkgo.focus exclude")]
    Name(String),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TestList {
    description: String,
    names: Vec<String>,
}

impl TestList {
    /// Reads the report of a dry run, and leaves out the tests of other suites.
    pub(crate) fn parse(report: &[u8], suite: Suite) -> Result<Self, TestListError> {
        let [report]: [Report; 1] = serde_json::from_slice(report)?;
        let selected = report.spec_reports.into_iter().filter(SpecReport::is_selected).map(SpecReport::name);
        let mut names: Vec<_> = selected.filter(|name| selection::has(suite, name)).collect();
        if names.is_empty() {
            return Err(TestListError::Empty);
        }
        if let Some(name) = names.iter().find(|name| name.contains(char::is_control) || name.contains(r"\E")) {
            return Err(TestListError::Name(name.clone()));
        }
        // The order of the report is random.
        names.sort();
        names.sort_by_key(|name| is_serial(name));
        Ok(Self { description: report.suite_description, names })
    }

    /// Full names in the order of a run: those with `[Serial]` are the last.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Argument that selects one test. A name can be the end of another one, and ginkgo matches the description of the
    /// suite, a space and the name.
    pub(crate) fn focus(&self, name: &str) -> String {
        format!(r"--ginkgo.focus=^\Q{} {name}\E$", self.description)
    }
}

/// Whether the test must run alone.
pub(crate) fn is_serial(name: &str) -> bool {
    name.contains("[Serial]")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_suite(specs: &str, suite: Suite) -> Result<TestList, TestListError> {
        let report = format!(r#"[{{"SuiteDescription": "e2e suite", "SpecReports": [{specs}]}}]"#);
        TestList::parse(report.as_bytes(), suite)
    }

    fn parse(specs: &str) -> Result<TestList, TestListError> {
        parse_suite(specs, Suite::Conformance)
    }

    fn spec(containers: &str, text: &str, state: &str) -> String {
        format!(
            r#"{{"ContainerHierarchyTexts": {containers}, "LeafNodeType": "It", "LeafNodeText": "{text}",
                "LeafNodeLabels": [], "State": {state}}}"#
        )
    }

    #[test]
    fn serial_tests_are_the_last() {
        let specs = [
            spec(r#"["[sig-b] B [Serial]"]"#, "b", r#""passed""#),
            spec(r#"["[sig-c] C", ""]"#, "c", r#""passed""#),
            spec(r#"["[sig-a] A"]"#, "a [Serial]", r#""passed""#),
            spec(r#"["[sig-a] A"]"#, "b", r#""passed""#),
        ];
        let list = parse(&specs.join(",")).unwrap();
        assert_eq!(list.names(), ["[sig-a] A b", "[sig-c] C c", "[sig-a] A a [Serial]", "[sig-b] B [Serial] b"]);
    }

    #[test]
    fn only_selected_tests_are_listed() {
        let of_the_suite = r#"{"ContainerHierarchyTexts": null, "LeafNodeType": "ReportAfterSuite",
            "LeafNodeText": "Invariant Metrics", "State": "passed"}"#;
        let others = [
            spec(r#"["A"]"#, "left out", r#""skipped""#),
            spec(r#"["A"]"#, "pending", r#""pending""#),
            spec(r#"["A"]"#, "invalid", "null"),
            of_the_suite.to_owned(),
        ];
        assert!(matches!(parse(&others.join(",")), Err(TestListError::Empty)));
        let list = parse(&[&others[..], &[spec(r#"["A"]"#, "a", r#""passed""#)]].concat().join(",")).unwrap();
        assert_eq!(list.names(), ["A a"]);
    }

    #[test]
    fn a_focus_does_not_add_tests_of_other_suites() {
        let other = spec(r#"["[sig-network] DNS"]"#, "should provide DNS for services", r#""passed""#);
        assert!(matches!(parse_suite(&other, Suite::Services), Err(TestListError::Empty)));
        let specs = [other, spec(r#"["[sig-network] Services"]"#, "should check", r#""passed""#)];
        let list = parse_suite(&specs.join(","), Suite::Services).unwrap();
        assert_eq!(list.names(), ["[sig-network] Services should check"]);
    }

    #[test]
    fn a_focus_matches_one_whole_name() {
        let list = parse(&spec(r#"["[sig-a] A (b|c)"]"#, "a.", r#""passed""#)).unwrap();
        assert_eq!(list.focus(&list.names()[0]), r"--ginkgo.focus=^\Qe2e suite [sig-a] A (b|c) a.\E$");
    }

    #[test]
    fn names_that_a_line_or_a_focus_cannot_contain_are_rejected() {
        for text in [r"a\tb", r"a\nb", r"a\\E"] {
            let error = parse(&spec(r#"["A"]"#, text, r#""passed""#)).unwrap_err();
            assert!(matches!(error, TestListError::Name(_)), "{text}: {error}");
        }
        assert!(matches!(parse("{}"), Err(TestListError::Report(_))));
    }
}
