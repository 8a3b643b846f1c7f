//! The nodes of a cluster before anything of them runs.

use crate::options::{Capture, ClusterOptions, Data, Options, Origin};
use std::path::{Path, PathBuf};

/// The control plane's name in the cluster. Workers have it with their number.
pub(crate) const NAME: &str = "granary";

/// A node that can be booted.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    /// Its name in the cluster.
    pub(crate) name: String,
    /// 0 is the control plane's.
    pub(crate) index: u8,
    /// A worker has no port; its configuration is the control plane's, from which it takes the networks.
    pub(crate) options: Options,
    /// Where its frames are written.
    pub(crate) capture: Option<PathBuf>,
}

impl Site {
    pub(crate) fn control_plane(options: &Options) -> Self {
        Self { name: NAME.to_owned(), index: 0, options: options.clone(), capture: None }
    }

    /// The nodes of a cluster, the control plane first.
    pub(crate) fn all(cluster: &ClusterOptions) -> Vec<Self> {
        let workers = (1..cluster.nodes.get()).map(|index| Self::worker(cluster, index));
        std::iter::once(Self::control_plane(&cluster.control_plane)).chain(workers).collect()
    }

    fn worker(cluster: &ClusterOptions, index: u8) -> Self {
        let mut options = cluster.control_plane.clone();
        options.memory = cluster.worker_memory;
        options.port = None;
        options.origin = Origin::Boot;
        if let Data::File(path) = &mut options.data {
            path.as_mut_os_string().push(format!(".{index}"));
        }
        let mut site = Self { name: format!("{NAME}-{index}"), index, options, capture: None };
        if cluster.capture == Capture::On {
            site.capture = Some(site.file(&site.options.logs, "wire.pcap"));
        }
        site
    }

    /// The kernel's messages, and all that the guest writes to its serial line.
    pub(crate) fn console(&self) -> PathBuf {
        self.file(&self.options.logs, "console.log")
    }

    /// A file of this node, in a directory that all nodes have.
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
    use crate::options::Image;
    use std::collections::BTreeSet;
    use units::Bytes;

    fn cluster(data: Data) -> ClusterOptions {
        let [kernel, initramfs, system, command_line] = [const { PathBuf::new() }; 4];
        let image = Image { kernel, initramfs, system, command_line };
        let options = Options { data, ..Options::new(image, Path::new("/tmp/run")) };
        ClusterOptions { capture: Capture::On, ..ClusterOptions::new(options, "8".parse().unwrap()) }
    }

    #[test]
    fn no_two_nodes_have_a_name_or_a_file_in_common() {
        let sites = Site::all(&cluster(Data::File("/disks/data.img".into())));
        let distinct = |of: &dyn Fn(&Site) -> String| sites.iter().map(of).collect::<BTreeSet<_>>().len();
        assert_eq!(distinct(&|site| site.name.clone()), 8);
        assert_eq!(distinct(&|site| site.console().display().to_string()), 8);
        assert_eq!(distinct(&|site| format!("{:?}", site.options.data)), 8);
        assert_eq!(distinct(&|site| format!("{:?}", site.capture)), 8);
    }

    #[test]
    fn the_control_plane_is_as_without_workers_and_a_worker_has_its_own_disk_and_memory() {
        let cluster = cluster(Data::File("/disks/data.img".into()));
        let sites = Site::all(&cluster);
        assert_eq!((sites[0].name.as_str(), &sites[0].options), ("granary", &cluster.control_plane));
        assert_eq!(sites[0].console(), Path::new("/tmp/run/console.log"));
        assert_eq!(sites[2].name, "granary-2");
        assert_eq!(sites[2].options.data, Data::File("/disks/data.img.2".into()));
        assert_eq!(sites[2].options.memory, Bytes::GIB);
        assert_eq!(sites[2].console(), Path::new("/tmp/run/granary-2.console.log"));
        assert_eq!(sites[2].capture.as_deref(), Some(Path::new("/tmp/run/granary-2.wire.pcap")));
    }
}
