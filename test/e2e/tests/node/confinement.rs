//! What a tenant may ask of the kernel.

use e2e::{Case, Failure, Pod, Suite};

/// Adds the cases.
pub fn cases(suite: Suite) -> Suite {
    suite.case("a_pod_that_says_nothing_of_it_has_a_filter_of_system_calls", a_pod_has_a_filter_of_system_calls)
}

/// As docs/operations/security.md says.
async fn a_pod_has_a_filter_of_system_calls(case: Case) -> Result<(), Failure> {
    let pod = case.open(&Pod::server("tenant")).await?;
    let status = pod.read("/proc/self/status").await?;
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
    // SECCOMP_MODE_FILTER, proc_pid_status(5).
    assert_eq!(mode.map(str::trim), Some("2"), "{status}");
    Ok(())
}
