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

/// Selects the tests of the suite whose names match `focus`.
pub(crate) fn arguments(suite: Suite, focus: Option<&str>) -> Vec<String> {
    match suite {
        Suite::Conformance => {
            let focus = focus.map(|focus| format!("--ginkgo.focus={focus}"));
            ["--ginkgo.label-filter=Conformance".to_owned()].into_iter().chain(focus).collect()
        }
        Suite::ExternalStorage => {
            // Disruptive tests restart the kubelet with SSH, which the node does not have.
            let labels = "--ginkgo.label-filter=!Disruptive && !Flaky".to_owned();
            let focus = focus.map(|focus| format!(".*(?:{focus})"));
            let focus = format!("--ginkgo.focus={EXTERNAL_STORAGE}{}", focus.unwrap_or_default());
            vec![labels, format!("--ginkgo.skip={LIMITED_FILES}"), focus]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conformance_tests_are_selected_by_their_label() {
        assert_eq!(arguments(Suite::Conformance, None), ["--ginkgo.label-filter=Conformance"]);
        let focused = arguments(Suite::Conformance, Some("ConfigMap|Secrets"));
        assert_eq!(focused, ["--ginkgo.label-filter=Conformance", "--ginkgo.focus=ConfigMap|Secrets"]);
    }

    #[test]
    fn a_focus_does_not_add_tests_of_other_suites() {
        let of = |focus| arguments(Suite::ExternalStorage, focus).pop().unwrap();
        assert_eq!(of(None), r"--ginkgo.focus=External Storage \[Driver: ");
        assert_eq!(of(Some("a|b")), r"--ginkgo.focus=External Storage \[Driver: .*(?:a|b)");
    }
}
