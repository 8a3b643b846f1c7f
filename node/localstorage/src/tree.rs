//! The node's directory tree, from top to bottom.

use std::path::{Path, PathBuf};

use dir::Mode;

use crate::budget::Part;

/// Mode of directories for root only. Pods access their files through their own mounts.
const PRIVATE: Mode = Mode::S_IRWXU;
/// Mode of directories in which other users can look up names, but not list them.
const SEARCHABLE: Mode = PRIVATE.union(Mode::S_IXGRP).union(Mode::S_IXOTH);

/// Declares a directory by its entries: a field for each entry with its type, its name on the disk, and its part of the
/// disk if it has a limit. A directory is private unless it states a `mode`.
macro_rules! directory {
    ($(#[$doc:meta])* $directory:ident $(mode $mode:ident)? {
        $($(#[$entry_doc:meta])* $field:ident: $kind:ty = $name:literal $(limit $part:ident)?,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $directory {
            path: PathBuf,
            $($(#[$entry_doc])* pub $field: $kind,)*
        }

        impl Tree for $directory {
            $(const MODE: Mode = $mode;)?

            fn at(path: PathBuf) -> Self {
                Self { $($field: <$kind as Tree>::at(path.join($name)),)* path }
            }

            fn path(&self) -> &Path {
                &self.path
            }

            fn visit<'tree>(&'tree self, see: &mut dyn FnMut(Entry<'tree>)) {
                $(
                    see(Entry {
                        name: $name,
                        path: self.$field.path(),
                        directory: <$kind>::DIRECTORY,
                        mode: <$kind>::MODE,
                        part: directory!(@part $($part)?),
                    });
                    self.$field.visit(see);
                )*
            }
        }
    };
    (@part) => { None };
    (@part $part:ident) => { Some(Part::$part) };
}

directory! {
    /// The root of the node's file system, read-only except for the mounts on it.
    Root {
        data: Data = "data",
        ephemeral: Ephemeral = "ephemeral",
    }
}

directory! {
    /// The data disk, an XFS with project quotas. Only the node writes to a directory without `limit`; volumes have
    /// their own limits.
    Data mode SEARCHABLE {
        /// Certificates and keys of the cluster and this node. Keys have mode 0600, and belong to the user that reads
        /// them.
        pki: Passage = "pki",
        etcd: Directory = "etcd" limit Etcd,
        /// Pods, and the sockets of plugins.
        kubelet: Kubelet = "kubelet",
        /// The kubelet's own certificates, which the kubelet renews itself.
        kubelet_pki: Directory = "kubelet-pki",
        containerd: Containerd = "containerd",
        /// Programs and configurations of CNI plugins. They count towards the limit of images.
        cni: Cni = "cni" limit Containerd,
        /// Settings of registries that the administrator adds while the node runs. They count towards the limit of
        /// images.
        registries: Directory = "registries" limit Containerd,
        /// Persistent volumes and their metadata, including the counter of their project IDs.
        volumes: Directory = "volumes",
        project_ids: File = "project-ids.json",
        log: Log = "log",
    }
}

directory! {
    /// The kubelet's root directory. The kubelet creates further entries outside of the limit: without space for its
    /// state of a pod, it could not end the pod.
    Kubelet {
        pods: Directory = "pods" limit Pods,
        plugins: Directory = "plugins",
        /// Sockets through which plugins register.
        plugins_registry: Directory = "plugins_registry",
    }
}

directory! {
    /// containerd's root directory. The metadata is outside of the limit: in a full part, containerd could not record
    /// that a container has ended, or which images and layers it removes. containerd creates the directories that are
    /// not listed.
    Containerd {
        /// Packed images.
        content: Directory = "io.containerd.content.v1.content" limit Containerd,
        overlayfs: Overlayfs = "io.containerd.snapshotter.v1.overlayfs",
    }
}

directory! {
    /// containerd's directory for overlays, with a database.
    Overlayfs {
        /// Unpacked images, and writable layers of containers.
        snapshots: Directory = "snapshots" limit Containerd,
    }
}

directory! {
    /// CNI plugins that the administrator installs in the cluster: their DaemonSets write to these directories.
    Cni {
        programs: Directory = "bin",
        configurations: Directory = "net.d",
    }
}

directory! {
    /// Logs that survive a reboot.
    Log mode SEARCHABLE {
        /// Output of containers, with a directory per pod.
        pods: Directory = "pods" limit Log,
        node: Directory = "node" limit NodeLog,
        audit: Directory = "audit" limit Audit,
    }
}

directory! {
    /// A tmpfs, empty after each boot. containerd's bundles are below it: see [`ContainerdState`].
    Ephemeral mode SEARCHABLE {
        containerd: ContainerdState = "containerd",
        /// Addresses that CNI plugins have assigned to pods.
        cni: Directory = "cni",
        /// Directory for FlexVolume plugins. The node has none.
        flexvolume: Directory = "flexvolume",
        /// Directories of programs that have their own users.
        programs: Passage = "programs",
        /// Temporary files (`TMPDIR`).
        tmp: Directory = "tmp",
    }
}

directory! {
    /// containerd's state directory. In a pod with a user namespace (`hostUsers: false`), runc resolves the container's
    /// root below this directory with a user that is not the node's root. containerd itself sets a private mode on the
    /// directories of other containers.
    ContainerdState mode SEARCHABLE {
        socket: File = "containerd.sock",
    }
}

/// A place in the tree: a directory with its entries, or a file. The path need not exist, unless the tree is
/// [`Mounted`](crate::Mounted).
pub trait Tree: Sized {
    /// Whether the place is a directory, which exists as soon as its tree is mounted.
    const DIRECTORY: bool = true;

    const MODE: Mode = PRIVATE;

    /// Creates the place with this path. [`Root::at`] creates the whole tree.
    fn at(path: PathBuf) -> Self;

    fn path(&self) -> &Path;

    /// Calls `_see` for each entry below this place, directories before their entries.
    fn visit<'tree>(&'tree self, _see: &mut dyn FnMut(Entry<'tree>)) {}
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'tree> {
    pub name: &'static str,
    pub path: &'tree Path,
    pub directory: bool,
    pub mode: Mode,
    /// Part of the data disk whose limit applies to the entry and its content.
    pub part: Option<Part>,
}

/// A directory whose content is defined elsewhere. Mode 0700.
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

/// A directory whose content is defined elsewhere, with files of other users than root. Mode 0711.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passage(PathBuf);

impl Tree for Passage {
    const MODE: Mode = SEARCHABLE;

    fn at(path: PathBuf) -> Self {
        Self(path)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

/// A file or socket that a program creates.
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
    /// The tree below a path: `/` on a node, another directory in tests.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        <Self as Tree>::at(path.into())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use dir::Name;

    use super::*;

    fn entries(tree: &impl Tree) -> Vec<Entry<'_>> {
        let mut entries = Vec::new();
        tree.visit(&mut |entry| entries.push(entry));
        entries
    }

    #[test]
    fn each_entry_has_a_valid_name_in_a_directory() {
        let root = Root::at("/");
        let (mut places, mut directories) = (BTreeSet::new(), BTreeSet::from([root.path()]));
        for Entry { name, path, directory, .. } in entries(&root) {
            assert!(Name::try_from(name).is_ok() && path.file_name() == Some(name.as_ref()), "{name}: {path:?}");
            assert!(path.parent().is_some_and(|parent| directories.contains(parent)), "{path:?}");
            assert!(places.insert(path), "two entries at {path:?}");
            if directory {
                directories.insert(path);
            }
        }
        assert!(places.len() > 10, "{places:?}");
    }

    #[test]
    fn each_part_of_the_disk_has_a_directory_outside_of_others() {
        let root = Root::at("/");
        let parts: Vec<_> = entries(&root).into_iter().filter(|entry| entry.part.is_some()).collect();
        let named: BTreeSet<_> = parts.iter().filter_map(|entry| entry.part).collect();
        assert_eq!(named, BTreeSet::from(Part::ALL));
        for entry in &parts {
            assert!(entry.directory && entry.path.starts_with(root.data.path()), "{entry:?}");
            let inside = parts.iter().filter(|other| other.path.starts_with(entry.path)).count();
            assert_eq!(inside, 1, "{entry:?}");
        }
    }

    #[test]
    fn only_directories_above_files_of_other_users_are_searchable() {
        let root = Root::at("/");
        let searchable = entries(&root).into_iter().filter(|entry| entry.mode != PRIVATE);
        let searchable: BTreeSet<_> = searchable.map(|entry| entry.path).collect();
        let (data, ephemeral) = (&root.data, &root.ephemeral);
        let of_programs = [data.path(), data.pki.path(), data.log.path(), ephemeral.programs.path()];
        let of_containers = [ephemeral.path(), ephemeral.containerd.path()];
        assert_eq!(searchable, of_programs.into_iter().chain(of_containers).collect());
        assert_eq!(ContainerdState::MODE.bits(), 0o711);
    }

    #[test]
    fn the_paths_are_those_of_the_image() {
        let root = Root::at("/");
        assert_eq!(root.data.kubelet.plugins_registry.path(), Path::new("/data/kubelet/plugins_registry"));
        assert_eq!(root.data.kubelet_pki.path(), Path::new("/data/kubelet-pki"));
        assert_eq!(root.data.cni.programs.path(), Path::new("/data/cni/bin"));
        assert_eq!(root.data.registries.path(), Path::new("/data/registries"));
        assert_eq!(root.data.log.pods.path(), Path::new("/data/log/pods"));
        assert_eq!(root.data.log.node.path(), Path::new("/data/log/node"));
        assert_eq!(root.ephemeral.containerd.socket.path(), Path::new("/ephemeral/containerd/containerd.sock"));
    }
}
