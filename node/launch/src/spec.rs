//! Specifications of a cluster's nodes before their start.

use crate::options::{Capture, ClusterOptions, Data, Options, Origin};
use std::path::{Path, PathBuf};

/// Name of the control plane, and prefix of the names of workers.
pub(crate) const NAME: &str = "granary";

#[derive(Clone, Debug)]
pub(crate) struct NodeSpec {
    pub(crate) name: String,
    /// 0 for the control plane.
    pub(crate) index: u8,
    /// Options of the node. A worker has no forwarded ports. Its `configuration` is that of the control plane, as a
    /// source of shared fields.
    pub(crate) options: Options,
    pub(crate) capture: Option<PathBuf>,
}

impl NodeSpec {
    pub(crate) fn control_plane(options: &Options) -> Self {
        Self { name: NAME.to_owned(), index: 0, options: options.clone(), capture: None }
    }

    /// Specifications of all nodes of a cluster, the control plane first.
    pub(crate) fn all(cluster: &ClusterOptions) -> Vec<Self> {
        std::iter::once(Self::control_plane(&cluster.control_plane)).chain(Self::workers(cluster)).collect()
    }

    pub(crate) fn workers(cluster: &ClusterOptions) -> impl Iterator<Item = Self> {
        (1..cluster.nodes.get()).map(|index| Self::worker(cluster, index))
    }

    fn worker(cluster: &ClusterOptions, index: u8) -> Self {
        let mut options = cluster.control_plane.clone();
        options.memory = cluster.worker_memory;
        options.port = None;
        options.forwards.clear();
        options.origin = Origin::Boot;
        if let Data::File(path) = &mut options.data {
            path.as_mut_os_string().push(format!(".{index}"));
        }
        let mut spec = Self { name: format!("{NAME}-{index}"), index, options, capture: None };
        if cluster.capture == Capture::On {
            spec.capture = Some(spec.file(&spec.options.logs, "wire.pcap"));
        }
        spec
    }

    pub(crate) fn console(&self) -> PathBuf {
        self.file(&self.options.logs, "console.log")
    }

    pub(crate) fn file(&self, directory: &Path, name: &str) -> PathBuf {
        match self.index {
            0 => directory.join(name),
            _ => directory.join(format!("{}.{name}", self.name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use units::Bytes;

    fn cluster(data: Data) -> ClusterOptions {
        let options = Options { data, ..Options::fake(Path::new("/tmp/run")) };
        ClusterOptions { capture: Capture::On, ..ClusterOptions::new(options, "8".parse().unwrap()) }
    }

    #[test]
    fn nodes_have_different_names_and_files() {
        let specs = NodeSpec::all(&cluster(Data::File("/disks/data.img".into())));
        let distinct = |of: &dyn Fn(&NodeSpec) -> String| specs.iter().map(of).collect::<BTreeSet<_>>().len();
        assert_eq!(distinct(&|spec| spec.name.clone()), 8);
        assert_eq!(distinct(&|spec| spec.console().display().to_string()), 8);
        assert_eq!(distinct(&|spec| format!("{:?}", spec.options.data)), 8);
        assert_eq!(distinct(&|spec| format!("{:?}", spec.capture)), 8);
    }

    #[test]
    fn workers_have_their_own_disks_and_memory() {
        let cluster = cluster(Data::File("/disks/data.img".into()));
        let specs = NodeSpec::all(&cluster);
        assert_eq!((specs[0].name.as_str(), &specs[0].options), ("granary", &cluster.control_plane));
        assert_eq!(specs[0].console(), Path::new("/tmp/run/console.log"));
        assert_eq!(specs[2].name, "granary-2");
        assert_eq!(specs[2].options.data, Data::File("/disks/data.img.2".into()));
        assert_eq!(specs[2].options.memory, Bytes::GIB);
        assert_eq!(specs[2].console(), Path::new("/tmp/run/granary-2.console.log"));
        assert_eq!(specs[2].capture.as_deref(), Some(Path::new("/tmp/run/granary-2.wire.pcap")));
    }
}
