//! Inputs of a test from its target: the files of the image, and a directory for the test's files.

use launch::{Image, Options, StepError};
use serde_json::json;
use std::env;
use std::path::PathBuf;
use tempfile::TempDir;
use units::Bytes;

/// Networks of pods and of Services in [`Setting::common_options`].
pub const NETWORKS: [&str; 2] = ["172.20.16.0/20", "172.21.4.0/22"];
/// Address of the API server's Service: the first one of the Service network.
pub const API_SERVER: &str = "172.21.4.1";
/// Name server of [`Setting::common_options`], an unused address (RFC 5737).
pub const NAME_SERVER: &str = "192.0.2.53";
/// Cluster domain of [`Setting::common_options`].
pub const DOMAIN: &str = "k8s.test";
/// Space that volumes may not use on the disk of [`Setting::common_options`].
pub const KEEP_FREE: Bytes = Bytes::new(256 << 20);
/// Kernel module in the configuration of [`Setting::common_options`].
pub const MODULE: &str = "vxlan";
/// Registry of [`Setting::common_options`], on the machine that runs the guest. Pods need a Secret to pull from it.
pub const REGISTRY: &str = "10.0.2.2:5000";
/// Address of the same registry for which the node has credentials.
pub const NODES_REGISTRY: &str = "10.0.2.2:5002";
/// Registry that is only reachable through its mirror, [`REGISTRY`].
pub const MIRRORED: &str = "mirrored.invalid";
/// Address of the same registry with a certificate of the CA in `registryCas`. The node has no other setting for it.
pub const SECOND_REGISTRY: &str = "10.0.2.2:5003";
/// Name of the same registry, which the node uses without TLS.
pub const PLAIN_REGISTRY: &str = "plain.invalid";
const PLAIN_SERVER: &str = "http://10.0.2.2:5004";
pub const USER: &str = "tenant";
pub const PASSWORD: &str = "password-of-the-test-registry";
/// Size of the data disk of [`Setting::common_options`].
pub const DATA_SIZE: Bytes = Bytes::new(2 << 30);

#[derive(Debug)]
pub struct Setting {
    image: Image,
    directory: TempDir,
}

impl Setting {
    /// Reads the paths of the image's files: `GRANARY_KERNEL`, `GRANARY_INITRAMFS`, `GRANARY_SYSTEM`,
    /// `GRANARY_CMDLINE`.
    pub fn from_target() -> Result<Self, StepError> {
        let image = Image {
            kernel: path("GRANARY_KERNEL")?,
            initramfs: path("GRANARY_INITRAMFS")?,
            system: path("GRANARY_SYSTEM")?,
            command_line: path("GRANARY_CMDLINE")?,
        };
        // Bazel removes this directory after the test, even if the test was killed.
        let place = env::var_os("TEST_TMPDIR").map_or_else(env::temp_dir, PathBuf::from);
        let directory =
            TempDir::with_prefix_in("e2e-", place).map_err(StepError::of("create a temporary directory"))?;
        Ok(Self { image, directory })
    }

    pub fn disk(&self) -> Result<PathBuf, StepError> {
        path("GRANARY_DISK")
    }

    /// Archive of the image with the tests' CNI plugin.
    pub fn plugin(&self) -> Result<PathBuf, StepError> {
        path("GRANARY_PLUGIN")
    }

    pub fn options(&self) -> Options {
        Options::new(self.image.clone(), self.directory.path())
    }

    /// Options of the node that most suites share. The configuration sets many optional fields.
    pub fn common_options(&self) -> Options {
        let [pods, services] = NETWORKS;
        let configuration = json!({
            "controlPlane": {"podNetwork": pods, "serviceNetwork": services},
            "network": {"nameServers": [NAME_SERVER]},
            "clusterDomain": DOMAIN,
            "storage": {"serial": "data", "keepFree": KEEP_FREE.get().to_string()},
            "kernelModules": [MODULE],
            "registryCas": [include_str!("../registry/second-ca.pem")],
            "registries": [
                {"name": REGISTRY, "ca": include_str!("../registry/ca.pem")},
                {
                    "name": NODES_REGISTRY,
                    "ca": include_str!("../registry/ca.pem"),
                    "credentials": {"username": USER, "password": PASSWORD},
                },
                {
                    "name": MIRRORED,
                    "mirrors": [{
                        "server": format!("https://{REGISTRY}"),
                        "ca": include_str!("../registry/ca.pem"),
                        "credentials": {"username": USER, "password": PASSWORD},
                    }],
                },
                {"name": PLAIN_REGISTRY, "server": PLAIN_SERVER, "verification": "DISABLED"},
            ],
        });
        let mut options = self.options();
        options.data_size = Some(DATA_SIZE);
        options.configuration = Some(configuration.to_string());
        options
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

pub(crate) fn path(variable: &'static str) -> Result<PathBuf, StepError> {
    let path = env::var_os(variable).map(PathBuf::from).ok_or("run the test by its Bazel target");
    path.map_err(StepError::of(format!("find a file: {variable} is not set")))
}
