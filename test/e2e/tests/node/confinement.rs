//! System calls of a tenant.

use e2e::{Case, Failure, Server};

/// Of a pod that says nothing about it, as docs/operations/security.md says. Another filter than the default one could allow
/// new namespaces.
pub async fn filter(case: &Case, pod: &Server) -> Result<(), Failure> {
    let status = pod.read("/proc/self/status").await?;
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
    // SECCOMP_MODE_FILTER, proc_pid_status(5).
    assert_eq!(mode.map(str::trim), Some("2"), "{status}");
    assert_eq!(pod.unshare().await?.as_deref(), Some("EPERM"));
    // The pod without a filter gets as far as the kernel's own answer.
    assert_eq!(case.observer().unshare().await?.as_deref(), Some("EINVAL"));
    Ok(())
}
