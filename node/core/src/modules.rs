//! Kernel modules from the configuration.

use std::sync::Arc;

use kernel::modules::{Catalog, LoadError, ModuleName};
use supervisor::{BoxError, Context};
use tracing::info;

/// Directory of the modules that not every node loads.
pub(crate) const DIRECTORY: &str = "/usr/lib/modules/optional";

#[derive(Debug, thiserror::Error)]
pub enum ModulesError {
    #[error("cannot read the list of kernel modules in the image")]
    Catalog(#[source] LoadError),
    #[error(
        "kernelModules[{index}]: the image has no kernel module {module}; remove it, or choose from {}",
        .known.iter().map(ModuleName::as_str).collect::<Vec<_>>().join(", ")
    )]
    Unknown { index: usize, module: ModuleName, known: Vec<ModuleName> },
    #[error(
        "cannot load the kernel modules of the configuration; remove the rejected one from kernelModules, or see the log"
    )]
    Load(#[source] LoadError),
}

#[derive(Debug)]
pub(crate) struct Modules {
    catalog: Catalog,
    names: Vec<ModuleName>,
}

impl Modules {
    /// Searches the modules in a directory of the image. `None` without modules to load.
    pub(crate) fn find(directory: &str, names: &[ModuleName]) -> Result<Option<Arc<Self>>, ModulesError> {
        if names.is_empty() {
            return Ok(None);
        }
        let catalog = Catalog::open(directory).map_err(ModulesError::Catalog)?;
        match names.iter().enumerate().find(|(_, name)| !catalog.has(name)) {
            Some((index, module)) => {
                Err(ModulesError::Unknown { index, module: module.clone(), known: catalog.names().cloned().collect() })
            }
            None => Ok(Some(Arc::new(Self { catalog, names: names.to_vec() }))),
        }
    }

    /// Loads the modules. After an error, the node runs without them, and the supervisor restarts the service.
    pub(crate) async fn run(self: Arc<Self>, cx: Context) -> Result<(), BoxError> {
        let load = move || self.catalog.load(&self.names).map_err(ModulesError::Load);
        let report = tokio::task::spawn_blocking(load).await??;
        info!(
            loaded = report.loaded.len(),
            present = report.present.len(),
            "kernel modules of the configuration loaded"
        );
        cx.done();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use envtest::{Seen, eventually};
    use supervisor::{Settings, Supervisor};

    use super::*;

    fn image() -> tempfile::TempDir {
        let image = tempfile::tempdir().unwrap();
        fs::write(image.path().join(kernel::modules::ORDER), "udp_tunnel.ko\nvxlan.ko\n").unwrap();
        fs::write(image.path().join(kernel::modules::CATALOG), "geneve\nvxlan udp_tunnel.ko vxlan.ko\n").unwrap();
        image
    }

    fn find(image: &tempfile::TempDir, names: &[&str]) -> Result<Option<Arc<Modules>>, ModulesError> {
        let names: Vec<_> = names.iter().map(|name| name.parse().unwrap()).collect();
        Modules::find(image.path().to_str().unwrap(), &names)
    }

    #[test]
    fn an_unknown_module_is_reported_with_the_known_ones() {
        let error = find(&image(), &["vxlan", "ip_tables"]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "kernelModules[1]: the image has no kernel module ip_tables; remove it, or choose from geneve, vxlan"
        );
        assert!(find(&image(), &["vxlan"]).unwrap().is_some());
    }

    #[test]
    fn a_node_without_further_modules_has_no_service_for_them() {
        assert!(matches!(Modules::find("/nowhere", &[]), Ok(None)));
        assert!(matches!(Modules::find("/nowhere", &["vxlan".parse().unwrap()]), Err(ModulesError::Catalog(_))));
    }

    /// The status page shows the failure of the service.
    #[tokio::test]
    async fn a_module_that_the_kernel_rejects_is_named_with_the_remedy() {
        let image = tempfile::tempdir().unwrap();
        fs::write(image.path().join(kernel::modules::ORDER), "granary_test.ko\n").unwrap();
        fs::write(image.path().join(kernel::modules::CATALOG), "granary_test granary_test.ko\n").unwrap();
        fs::write(image.path().join("granary_test.ko"), "not a module").unwrap();
        let modules = find(&image, &["granary_test"]).unwrap().unwrap();
        let tree = Supervisor::start("kernel-modules", Settings::default(), move |cx| Arc::clone(&modules).run(cx));
        let failure = eventually(Duration::from_secs(60), "a failure", async || {
            let failure = tree.status().last_error;
            Ok::<_, ModulesError>(failure.map_or_else(|| Seen::NotYet("none".to_owned()), Seen::Done))
        });
        let failure = failure.await.unwrap();
        for part in ["remove the rejected one from kernelModules", "the kernel rejected module granary_test.ko"] {
            assert!(failure.contains(part), "{part:?} is not in {failure}");
        }
        tree.stop(Duration::from_secs(10)).await.unwrap();
    }
}
