//! Selection of the tests: arguments of the program with the tests, and the names of a suite.

use clap::ValueEnum;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Suite {
    /// Tests that each conformant cluster passes.
    Conformance,
    /// Tests of a CSI driver, for the capabilities that driver.yaml claims.
    ExternalStorage,
    /// Tests of Services and host ports that are not in the suite `conformance`.
    Services,
}

/// Start of the test names of a driver, from test/e2e/storage/external.
const EXTERNAL_STORAGE: &[&str] = &["External Storage [Driver: "];

/// Starts of the test names of test/e2e/network/{hostport,networking,service}.go.
const SERVICES: &[&str] = &[
    "[sig-network] HostPort ",
    "[sig-network] Networking Granular Checks: Pods ",
    "[sig-network] Networking Granular Checks: Services ",
    "[sig-network] Services ",
];

/// Tests of I/O limits on filesystem volumes. These volumes have no block device of their own to which a
/// VolumeAttributesClass could apply limits.
const LIMITED_FILES: &str = r"\[Testpattern: Dynamic PV \(default fs\)\] volume-modify";

pub(crate) fn filters(suite: Suite) -> Vec<String> {
    let labels = match suite {
        Suite::Conformance => "Conformance",
        // Disruptive tests restart the kubelet with SSH, which the node does not have.
        Suite::ExternalStorage => "!Disruptive && !Flaky",
        // docs/conformance.md has the reason for each label. `Feature` is the key of labels such as
        // `Feature:SCTPConnectivity`.
        Suite::Services => "Feature: isEmpty && !Conformance && !Disruptive && !Flaky && !Serial",
    };
    let skip = (suite == Suite::ExternalStorage).then(|| format!("--ginkgo.skip={LIMITED_FILES}"));
    [format!("--ginkgo.label-filter={labels}")].into_iter().chain(skip).collect()
}

/// Whether a test that the filters select is in the suite. An argument cannot select these names beside the user's
/// focus: ginkgo runs the tests that match one of several focuses.
pub(crate) fn has(suite: Suite, name: &str) -> bool {
    let starts = match suite {
        Suite::Conformance => return true,
        Suite::ExternalStorage => EXTERNAL_STORAGE,
        Suite::Services => SERVICES,
    };
    starts.iter().any(|&start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conformance_tests_are_selected_by_their_label() {
        assert_eq!(filters(Suite::Conformance), ["--ginkgo.label-filter=Conformance"]);
        assert!(has(Suite::Conformance, "[sig-node] Pods should be updated [NodeConformance] [Conformance]"));
    }

    #[test]
    fn tests_of_a_driver_are_selected_by_their_names() {
        let filters = filters(Suite::ExternalStorage);
        assert_eq!(filters[0], "--ginkgo.label-filter=!Disruptive && !Flaky");
        assert_eq!(filters[1..], [format!("--ginkgo.skip={LIMITED_FILES}")]);
        let test = "[Testpattern: Dynamic PV (default fs)] capacity provides storage capacity information";
        assert!(has(Suite::ExternalStorage, &format!("External Storage [Driver: local.granary.dev] {test}")));
        assert!(!has(Suite::ExternalStorage, &format!("[sig-storage] CSI Volumes [Driver: csi-hostpath] {test}")));
    }

    #[test]
    fn tests_of_services_are_selected_by_their_names() {
        for name in [
            "HostPort validates that there is no conflict between pods with same hostPort but different hostIP and \
             protocol [LinuxOnly] [Conformance]",
            "Networking Granular Checks: Pods should function for intra-pod communication: http",
            "Networking Granular Checks: Services should support basic nodePort: udp functionality",
            "Services should fallback to local terminating endpoints when there are no ready endpoints with \
             externalTrafficPolicy=Local",
            "Services should support externalTrafficPolicy=Local for type=NodePort",
            "Networking Granular Checks: Services should update nodePort: udp [Slow]",
        ] {
            assert!(has(Suite::Services, &format!("[sig-network] {name}")), "{name}");
        }
        for name in [
            // A load balancer of a cloud, IPv6 and the Internet.
            "LoadBalancers [Feature:LoadBalancer] should not have connectivity disruption during rolling update with \
             externalTrafficPolicy=Local [Slow]",
            "[Feature:IPv6DualStack] Granular Checks: Services Secondary IP Family [LinuxOnly] should update endpoints",
            "Networking should provide Internet connection for containers [Feature:Networking-IPv4]",
            // Other groups.
            "Service CIDRs should create Services and serve on different Service CIDRs",
            "Service endpoints latency should not be very high [Conformance]",
            "DNS should provide DNS for services [Conformance]",
        ] {
            assert!(!has(Suite::Services, &format!("[sig-network] {name}")), "{name}");
        }
    }

    /// `Feature: isEmpty` is a condition of a label filter only with the space; otherwise it is a label. Slow
    /// tests are in the suite.
    #[test]
    fn tests_of_services_need_no_feature_and_are_not_in_the_other_suite() {
        let labels = "Feature: isEmpty && !Conformance && !Disruptive && !Flaky && !Serial";
        assert_eq!(filters(Suite::Services), [format!("--ginkgo.label-filter={labels}")]);
    }
}
