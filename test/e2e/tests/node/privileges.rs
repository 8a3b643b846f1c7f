//! Users and capabilities of the node's programs, read from the kernel.

use e2e::{Case, Failure};
use programs::{Capability, User};

pub async fn are_least(case: &Case) -> Result<(), Failure> {
    // Some programs start after kube-controller-manager.
    case.all_services_are_ready().await?;
    let observer = case.observer();
    for user in User::ALL {
        let (program, id) = (user.program(), user.id().to_string());
        let capabilities = format!("{:016x}", Capability::set(user.capabilities()));
        let processes = case.signal(program, 0).await?;
        assert!(!processes.is_empty(), "{program} does not run");
        for process in processes {
            let status = observer.read(format!("/proc/{process}/status")).await?;
            let field = |name: &str| {
                let found = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
                found.unwrap_or_else(|| panic!("{program} has no {name}: {status}")).trim().to_owned()
            };
            let ids = field("Uid");
            assert!(ids.split('\t').all(|found| found == id), "{program}: {ids}");
            assert_eq!(field("Gid"), ids, "{program}");
            assert_eq!(field("Groups"), "", "{program}");
            for set in ["CapEff", "CapPrm", "CapBnd"] {
                assert_eq!(field(set), capabilities, "{program}: {set}");
            }
            assert_eq!(field("NoNewPrivs"), "1", "{program}");
            // SECCOMP_MODE_FILTER, proc_pid_status(5).
            assert_eq!(field("Seccomp"), "2", "{program}");
        }
    }
    Ok(())
}
