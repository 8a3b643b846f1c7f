//! Modules that are loaded by name into the kernel.

use std::path::Path;

use kernel::modules::{Catalog, FileName, ModuleName};
use nix::kmod::{DeleteModuleFlags, delete_module};

/// Directory with the guest's modules, which are those of the target.
const DIRECTORY: &str = "/modules";

fn is_loaded(module: &str) -> bool {
    Path::new("/sys/module").join(module).join("initstate").exists()
}

#[test]
fn a_module_is_loaded_with_what_it_depends_on_and_only_once() {
    let catalog = Catalog::open(DIRECTORY).unwrap();
    let names: Vec<ModuleName> = vec!["vxlan".parse().unwrap()];
    // The guest has loaded these modules already.
    let present = catalog.load(&names).unwrap();
    assert_eq!(present.loaded, []);
    assert!(present.present.iter().any(|file| file.as_str() == "udp_tunnel.ko"), "{present:?}");
    for module in [c"vxlan", c"ip6_udp_tunnel", c"udp_tunnel"] {
        delete_module(module, DeleteModuleFlags::O_NONBLOCK).unwrap();
    }
    assert!(!is_loaded("vxlan") && !is_loaded("udp_tunnel"));

    let report = catalog.load(&names).unwrap();
    assert_eq!(report.loaded.last().map(FileName::as_str), Some("vxlan.ko"));
    assert!(report.loaded.iter().any(|file| file.as_str() == "udp_tunnel.ko"), "{report:?}");
    assert!(is_loaded("vxlan") && is_loaded("udp_tunnel"));
    assert_eq!(catalog.load(&names).unwrap(), present);
}
