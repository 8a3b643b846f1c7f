//! The kernel's self-protection, as set by `node/core/src/sysctl.conf` and `node/image`.

use e2e::{Case, Failure, MODULE, observer};
use workload::{Check, Settings};

const TABLES: [&str; 2] =
    [include_str!("../../../../node/core/src/sysctl.conf"), include_str!("../../../../node/core/src/conntrack.conf")];

/// Verifies each setting in the node's own network namespace and for each of its interfaces. Services and pods have
/// started and may have changed a setting.
async fn has_its_settings(case: &Case) -> Result<(), Failure> {
    let lines = TABLES.iter().flat_map(|table| table.lines()).filter(|line| !line.starts_with('#'));
    let table: Vec<_> =
        lines.filter_map(|line| line.split_once('=')).map(|(key, value)| (key.trim(), value.trim())).collect();
    let keys = table.iter().map(|(key, _)| (*key).to_owned()).collect();
    let Settings { settings } = case.observer().ask(&Check::Settings { keys }).await?;
    let mut wrong = Vec::new();
    for (key, value) in table {
        let found: Vec<_> = settings.iter().filter(|setting| setting.key == key).collect();
        // The interfaces are `default`, `all`, the loopback device, and the uplink.
        let least = if key.contains('*') { 4 } else { 1 };
        assert!(found.len() >= least, "{key}: {found:?}");
        wrong.extend(found.into_iter().filter(|setting| setting.value != value));
    }
    assert!(wrong.is_empty(), "{wrong:?}");
    Ok(())
}

pub async fn is_protected(case: &Case) -> Result<(), Failure> {
    has_its_settings(case).await?;
    let observer = case.observer();
    let lockdown = observer.read(format!("{}/lockdown", observer::SECURITY)).await?;
    assert_eq!(lockdown.trim(), "none [integrity] confidentiality");
    assert_eq!(observer.read("/sys/module/module/parameters/sig_enforce").await?.trim(), "Y");
    let modules = observer.read(format!("{}/lsm", observer::SECURITY)).await?;
    for module in ["lockdown", "yama", "bpf", "landlock"] {
        assert!(modules.trim().split(',').any(|one| one == module), "{module} is missing in {modules}");
    }
    Ok(())
}

/// The configuration names the module. No component of the node loads it.
pub async fn has_its_modules(case: &Case) -> Result<(), Failure> {
    case.observer().inspect(format!("/sys/module/{MODULE}/initstate")).await.map(drop)
}
