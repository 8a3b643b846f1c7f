//! The node's tree, read top to bottom.

use std::path::{Path, PathBuf};

/// Declares directories by what is in them: a field for each entry, its type, its name on the disk.
macro_rules! directory {
    ($(#[$doc:meta])* $directory:ident { $($(#[$entry_doc:meta])* $field:ident: $kind:ty = $name:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $directory {
            path: PathBuf,
            $($(#[$entry_doc])* pub $field: $kind,)*
        }

        impl Tree for $directory {
            fn at(path: PathBuf) -> Self {
                Self { $($field: <$kind as Tree>::at(path.join($name)),)* path }
            }

            fn path(&self) -> &Path {
                &self.path
            }

            fn visit<'tree>(&'tree self, see: &mut dyn FnMut(Entry<'tree>)) {
                $(
                    see(Entry { name: $name, path: self.$field.path(), directory: <$kind>::DIRECTORY });
                    self.$field.visit(see);
                )*
            }
        }
    };
}

directory! {
    /// The root of the node's file system: read-only, but for what is mounted on it.
    Root {
        /// What outlives a boot: the data disk.
        data: Data = "data",
        /// What does not: sockets and state of what runs now.
        ephemeral: Ephemeral = "ephemeral",
    }
}

directory! {
    /// The data disk, an XFS with project quotas.
    Data {
        /// Certificates and keys of the cluster and this node. Keys have mode 0600.
        pki: Directory = "pki",
        /// The cluster's objects.
        etcd: Directory = "etcd",
        /// Pods, and the sockets of plugins.
        kubelet: Kubelet = "kubelet",
        /// The kubelet's own certificates; it renews them itself.
        kubelet_pki: Directory = "kubelet-pki",
        /// Images and snapshots.
        containerd: Directory = "containerd",
        /// Persistent volumes and all that belongs to them, the counter of the disk's project IDs too.
        volumes: Directory = "volumes",
        /// What was logged.
        log: Log = "log",
    }
}

directory! {
    /// The kubelet's root directory. It makes more in it than is named here.
    Kubelet {
        /// Sockets of CSI drivers.
        plugins: Directory = "plugins",
        /// Sockets by which plugins make themselves known.
        plugins_registry: Directory = "plugins_registry",
    }
}

directory! {
    /// Logs that outlive a boot.
    Log {
        /// Output of containers, a directory per pod.
        pods: Directory = "pods",
    }
}

directory! {
    /// A tmpfs, empty after every boot.
    Ephemeral {
        /// What containerd runs now.
        containerd: ContainerdState = "containerd",
        /// Addresses that the network plugins gave to pods.
        cni: Directory = "cni",
        /// Where Kubernetes looks for plugins of an older kind. There are none.
        flexvolume: Directory = "flexvolume",
        /// Temporary files (`TMPDIR`).
        tmp: Directory = "tmp",
    }
}

directory! {
    /// containerd's state directory.
    ContainerdState {
        /// Its API.
        socket: File = "containerd.sock",
    }
}

/// A place in the tree: a directory with what is in it, or a file. A path, no promise that anything
/// is there: [`Mounted`](crate::Mounted) is that.
pub trait Tree: Sized {
    /// Whether it is a directory, which exists as soon as its tree is mounted.
    const DIRECTORY: bool = true;

    /// This place at a path. [`Root::at`] is the beginning.
    fn at(path: PathBuf) -> Self;

    /// Where it is.
    fn path(&self) -> &Path;

    /// Shows everything below it, directories before what is in them.
    fn visit<'tree>(&'tree self, _see: &mut dyn FnMut(Entry<'tree>)) {}
}

/// Something in a tree, as [`Tree::visit`] shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'tree> {
    /// Its name in the directory above.
    pub name: &'static str,
    /// Where it is.
    pub path: &'tree Path,
    /// Whether it is a directory.
    pub directory: bool,
}

/// A directory whose content is named elsewhere. Mode 0700.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory(PathBuf);

impl Tree for Directory {
    fn at(path: PathBuf) -> Self {
        Self(path)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

/// A file or socket that some program makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File(PathBuf);

impl Tree for File {
    const DIRECTORY: bool = false;

    fn at(path: PathBuf) -> Self {
        Self(path)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Root {
    /// The tree below a path: `/` on a node, something else in tests.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        <Self as Tree>::at(path.into())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use dir::Name;

    use super::*;

    fn entries(root: &Root) -> Vec<Entry<'_>> {
        let mut entries = Vec::new();
        root.visit(&mut |entry| entries.push(entry));
        entries
    }

    #[test]
    fn every_name_of_the_whole_tree_is_one_path_component() {
        let root = Root::at("/");
        for entry in entries(&root) {
            assert!(Name::try_from(entry.name).is_ok(), "{entry:?}");
            assert_eq!(entry.path.file_name(), Some(entry.name.as_ref()), "{entry:?}");
        }
    }

    #[test]
    fn no_two_places_of_the_whole_tree_are_the_same() {
        let root = Root::at("/");
        let entries = entries(&root);
        let paths: BTreeSet<&Path> = entries.iter().map(|entry| entry.path).collect();
        assert_eq!(paths.len(), entries.len());
        assert!(entries.len() > 10, "the tree is looked at as a whole");
    }

    #[test]
    fn a_directory_comes_before_what_is_in_it() {
        let root = Root::at("/");
        let mut seen = BTreeSet::from([Path::new("/")]);
        for entry in entries(&root) {
            assert!(entry.path.parent().is_some_and(|parent| seen.contains(parent)), "{entry:?}");
            if entry.directory {
                seen.insert(entry.path);
            }
        }
    }

    #[test]
    fn the_paths_are_those_that_the_rest_of_the_image_knows() {
        let root = Root::at("/");
        assert_eq!(root.data.kubelet.plugins_registry.path(), Path::new("/data/kubelet/plugins_registry"));
        assert_eq!(root.data.kubelet_pki.path(), Path::new("/data/kubelet-pki"));
        assert_eq!(root.data.log.pods.path(), Path::new("/data/log/pods"));
        assert_eq!(root.ephemeral.containerd.socket.path(), Path::new("/ephemeral/containerd/containerd.sock"));
    }
}
