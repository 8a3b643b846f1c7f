//! System calls that a tenant may make.

use e2e::{Case, Failure, Server};

/// A pod without a seccomp setting has the default filter, as docs/operations/security.md describes. Another filter
/// might allow new namespaces.
pub async fn filter(case: &Case, pod: &Server) -> Result<(), Failure> {
    let status = pod.read("/proc/self/status").await?;
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
    // SECCOMP_MODE_FILTER, proc_pid_status(5).
    assert_eq!(mode.map(str::trim), Some("2"), "{status}");
    assert_eq!(pod.unshare().await?.as_deref(), Some("EPERM"));
    // The call of a pod without a filter reaches the kernel, which rejects its arguments.
    assert_eq!(case.observer().unshare().await?.as_deref(), Some("EINVAL"));
    Ok(())
}
