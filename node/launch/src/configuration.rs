//! What the node is told, as docs/configuration.md describes it.

use qemu::FirmwareFile;
use serde_json::{Value, json};
use std::io::{self, Write as _};
use tempfile::NamedTempFile;
use volume::Overcommit;

use crate::node::NAME;
use crate::options::Options;

/// Where the node looks for it.
const FW_CFG: &str = "opt/dev.granary/config";

/// The file that QEMU reads it from when it starts; removed on drop, readable by its owner only.
pub(crate) struct Configuration(NamedTempFile);

impl Configuration {
    pub(crate) fn write(options: &Options) -> io::Result<Self> {
        let mut file = NamedTempFile::with_prefix_in("config.", &options.state)?;
        match &options.configuration {
            Some(text) => file.write_all(text.as_bytes())?,
            None => write!(file, "{}", told(options.overcommit))?,
        }
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
    use std::path::{Path, PathBuf};

    use config::{Addresses, Config};

    use super::*;
    use crate::options::Image;

    fn options(directory: &Path) -> Options {
        let [kernel, initramfs, system, command_line] = [const { PathBuf::new() }; 4];
        Options::new(Image { kernel, initramfs, system, command_line }, directory)
    }

    #[test]
    fn the_node_understands_what_it_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let options = Options { overcommit: "1.50".parse().unwrap(), ..options(directory.path()) };
        let configuration = Configuration::write(&options).unwrap();
        let file = configuration.file();
        assert_eq!(file.name, "opt/dev.granary/config");
        let config = Config::parse(&fs::read_to_string(&file.content).unwrap()).unwrap();
        assert_eq!(config.node.as_str(), NAME);
        assert_eq!(config.network.addresses, Addresses::Dhcp);
        assert_eq!(config.storage.overcommit, "1.5".parse().unwrap());
    }

    #[test]
    fn a_configuration_of_the_callers_own_is_given_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let options = Options { configuration: Some("{".to_owned()), ..options(directory.path()) };
        let configuration = Configuration::write(&options).unwrap();
        assert_eq!(fs::read(configuration.file().content).unwrap(), b"{");
    }

    #[test]
    fn nothing_is_left_of_it() {
        let directory = tempfile::tempdir().unwrap();
        drop(Configuration::write(&options(directory.path())).unwrap());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
