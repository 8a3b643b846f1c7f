//! The users and the rights of the node's programs, as the kernel shows them.

use e2e::{Case, Failure};
use std::collections::BTreeSet;

/// Programs with a user of their own, and their effective capabilities.
const CONFINED: [(&str, &str); 7] = [
    ("etcd", "0000000000000000"),
    ("kube-apiserver", "0000000000000000"),
    ("kube-controller-manager", "0000000000000000"),
    ("kube-scheduler", "0000000000000000"),
    ("snapshot-controller", "0000000000000000"),
    // CAP_NET_ADMIN.
    ("kube-proxy", "0000000000001000"),
    // CAP_NET_BIND_SERVICE.
    ("coredns", "0000000000000400"),
];

pub async fn are_least(case: &Case) -> Result<(), Failure> {
    // Some start when the node is Ready.
    case.all_services_are_ready().await?;
    let observer = case.observer();
    let mut users = BTreeSet::from(["0".to_owned()]);
    for (program, capabilities) in CONFINED {
        let processes = case.signal(program, 0).await?;
        for process in processes {
            let status = observer.read(format!("/proc/{process}/status")).await?;
            let field = |name: &str| {
                let found = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
                found.unwrap_or_else(|| panic!("{program} has no {name}: {status}")).trim().to_owned()
            };
            let ids = field("Uid");
            let user = ids.split('\t').next().unwrap_or_default().to_owned();
            assert!(ids.split('\t').all(|id| id == user), "{program}: {ids}");
            assert_eq!(field("Gid"), ids, "{program}");
            assert_eq!(field("Groups"), "", "{program}");
            for set in ["CapEff", "CapPrm", "CapBnd"] {
                assert_eq!(field(set), capabilities, "{program}: {set}");
            }
            assert_eq!(field("NoNewPrivs"), "1", "{program}");
            // SECCOMP_MODE_FILTER, proc_pid_status(5).
            assert_eq!(field("Seccomp"), "2", "{program}");
            assert!(users.insert(user), "{program} has the user of another program: {ids}");
        }
    }
    Ok(())
}
