//! Selection of the tests: arguments of the program with the tests.

use clap::ValueEnum;

/// Prefix of the test names of a driver, from test/e2e/storage/external.
const EXTERNAL_STORAGE: &str = r"External Storage \[Driver: ";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Suite {
    /// Tests that each conformant cluster passes.
    Conformance,
    /// Tests of a CSI driver, for the capabilities that driver.yaml claims.
    ExternalStorage,
}

/// Tests of I/O limits on filesystem volumes. These volumes have no block device of their own to which a
/// VolumeAttributesClass could apply limits.
const LIMITED_FILES: &str = r"\[Testpattern: Dynamic PV \(default fs\)\] volume-modify";

/// Filters of the suite, for every process.
pub(crate) fn filters(suite: Suite) -> Vec<String> {
    match suite {
        Suite::Conformance => vec!["--ginkgo.label-filter=Conformance".to_owned()],
        // Disruptive tests restart the kubelet with SSH, which the node does not have.
        Suite::ExternalStorage => {
            vec!["--ginkgo.label-filter=!Disruptive && !Flaky".to_owned(), format!("--ginkgo.skip={LIMITED_FILES}")]
        }
    }
}

/// Selects the tests of the suite whose names match `focus`, for the dry run.
pub(crate) fn focus(suite: Suite, focus: Option<&str>) -> Option<String> {
    match suite {
        Suite::Conformance => focus.map(|focus| format!("--ginkgo.focus={focus}")),
        Suite::ExternalStorage => {
            let focus = focus.map(|focus| format!(".*(?:{focus})"));
            Some(format!("--ginkgo.focus={EXTERNAL_STORAGE}{}", focus.unwrap_or_default()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conformance_tests_are_selected_by_their_label() {
        assert_eq!(filters(Suite::Conformance), ["--ginkgo.label-filter=Conformance"]);
        assert_eq!(focus(Suite::Conformance, None), None);
        let focused = focus(Suite::Conformance, Some("ConfigMap|Secrets"));
        assert_eq!(focused.as_deref(), Some("--ginkgo.focus=ConfigMap|Secrets"));
    }

    #[test]
    fn a_focus_does_not_add_tests_of_other_suites() {
        let of = |text| focus(Suite::ExternalStorage, text).unwrap();
        assert_eq!(of(None), r"--ginkgo.focus=External Storage \[Driver: ");
        assert_eq!(of(Some("a|b")), r"--ginkgo.focus=External Storage \[Driver: .*(?:a|b)");
    }
}
