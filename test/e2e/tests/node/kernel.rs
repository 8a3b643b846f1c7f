//! How the kernel protects itself, as `node/core/src/sysctl.conf` and `node/image` set it.

use e2e::{Case, Failure, observer};

const SETTINGS: &str = include_str!("../../../../node/core/src/sysctl.conf");

/// The kernel's own view of each.
pub async fn is_protected(case: &Case) -> Result<(), Failure> {
    let observer = case.observer();
    let mut wrong = Vec::new();
    let lines = SETTINGS.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('='));
    // The pod has a network of its own, which inherits the settings of IPv4.
    for (key, value) in lines.filter(|(key, _)| !key.starts_with("net.ipv6.")) {
        for all in ["all", "default"] {
            let path = format!("/proc/sys/{}", key.trim().replace('*', all).replace('.', "/"));
            let found = observer.read(&path).await?;
            if found.trim() != value.trim() {
                wrong.push(format!("{path} is {:?} instead of {:?}", found.trim(), value.trim()));
            }
            if !key.contains('*') {
                break;
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");

    let lockdown = observer.read(format!("{}/lockdown", observer::SECURITY)).await?;
    assert_eq!(lockdown.trim(), "none [integrity] confidentiality");
    assert_eq!(observer.read("/sys/module/module/parameters/sig_enforce").await?.trim(), "Y");
    let modules = observer.read(format!("{}/lsm", observer::SECURITY)).await?;
    for module in ["lockdown", "yama", "bpf", "landlock"] {
        assert!(modules.trim().split(',').any(|one| one == module), "{module} is missing in {modules}");
    }
    Ok(())
}
