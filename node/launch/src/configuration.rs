//! What the node is told, as docs/configuration.md describes it.

use std::io::{self, Write as _};
use std::path::Path;

use qemu::FirmwareFile;
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use volume::Overcommit;

use crate::node::NAME;

/// Where the node looks for it.
const FW_CFG: &str = "opt/dev.granary/config";

/// The file that QEMU reads it from when it starts; removed on drop, readable by its owner only.
pub(crate) struct Configuration(NamedTempFile);

impl Configuration {
    pub(crate) fn write(directory: &Path, overcommit: Overcommit) -> io::Result<Self> {
        let mut file = NamedTempFile::with_prefix_in("config.", directory)?;
        write!(file, "{}", told(overcommit))?;
        file.flush()?;
        Ok(Self(file))
    }

    pub(crate) fn file(&self) -> FirmwareFile {
        FirmwareFile { name: FW_CFG, content: self.0.path().into() }
    }
}

/// QEMU's user network has a DHCP server.
fn told(overcommit: Overcommit) -> Value {
    json!({
        "nodeName": NAME,
        "network": {"dhcp": {}},
        "storage": {"overcommit": overcommit.to_string()},
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use config::{Addresses, Config};

    use super::*;

    #[test]
    fn the_node_understands_what_it_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let configuration = Configuration::write(directory.path(), "1.50".parse().unwrap()).unwrap();
        let file = configuration.file();
        assert_eq!(file.name, "opt/dev.granary/config");
        let config = Config::parse(&fs::read_to_string(&file.content).unwrap()).unwrap();
        assert_eq!(config.node.as_str(), NAME);
        assert_eq!(config.network.addresses, Addresses::Dhcp);
        assert_eq!(config.storage.overcommit, "1.5".parse().unwrap());
    }

    #[test]
    fn nothing_is_left_of_it() {
        let directory = tempfile::tempdir().unwrap();
        drop(Configuration::write(directory.path(), Overcommit::NONE).unwrap());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
