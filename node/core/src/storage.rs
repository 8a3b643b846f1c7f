//! The node's disk, and the paths and limits that services need.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use config::NodeName;
use dir::Dir;
use fsquota::ProjectId;
use localstorage::{Budget, Data, Ephemeral, Mounted, Part, Root, Tree as _, mount_ephemeral};
use units::Bytes;
use volume::Store;

use crate::disk::{self, DiskError};
use crate::error::StepError;

#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The machine has no data disk, or only disks with other data. The node has written nothing.
    #[error(transparent)]
    Find(#[from] DiskError),
    #[error("cannot mount")]
    Mount(#[from] localstorage::MountError),
    #[error("cannot open a directory of the data disk")]
    Open(#[from] localstorage::OpenError),
    #[error("cannot read the project of a directory of the data disk")]
    Project(#[from] fsquota::FsError),
    #[error("cannot use the volumes directory")]
    Volumes(#[from] volume::StartError),
}

/// The mounted data disk with the volumes, and `/ephemeral`.
#[derive(Debug)]
pub struct Storage {
    data: Mounted<Data>,
    budget: Budget,
    ephemeral: Mounted<Ephemeral>,
    volumes: Arc<Store>,
}

impl Storage {
    /// Finds and checks the data disk, formats it if it is empty, and mounts it. Also mounts `/ephemeral`.
    pub fn open(config: &config::Storage) -> Result<Self, StorageError> {
        let root = Root::at(PathBuf::from("/"));
        let ephemeral = mount_ephemeral(root.ephemeral)?;
        let data = disk::find(&config.disk)?.mount(root.data)?;
        let budget = data.budget()?;
        // A reserve larger than the disk leaves no space for volumes.
        let reserve = budget.reserve().checked_add(config.keep_free).unwrap_or(Bytes::new(u64::MAX));
        let other_projects = projects(&data)?;
        let settings =
            volume::Settings { reserve, overcommit: config.overcommit, other_projects, ..volume::Settings::default() };
        let volumes = Store::open(&data.open(|data| &data.volumes)?, settings)?;
        Ok(Self { data, budget, ephemeral, volumes: Arc::new(volumes) })
    }

    pub fn data(&self) -> &Path {
        self.data.path()
    }

    /// The file system whose content a reboot deletes.
    pub fn ephemeral(&self) -> &Path {
        self.ephemeral.path()
    }

    pub fn paths(&self) -> programs::Paths {
        programs::Paths {
            pki: self.data.pki.path().to_owned(),
            etcd: self.data.etcd.path().to_owned(),
            kubelet: self.kubelet(),
            kubelet_pki: self.data.kubelet_pki.path().to_owned(),
            containerd: self.data.containerd.path().to_owned(),
            pod_logs: self.data.log.pods.path().to_owned(),
            audit: self.data.log.audit.path().to_owned(),
            ephemeral: self.ephemeral().to_owned(),
            ..programs::Paths::default()
        }
    }

    pub fn disk(&self) -> programs::Disk {
        let Self { budget, .. } = self;
        programs::Disk {
            size: budget.size(),
            etcd: budget.bytes(Part::Etcd),
            pods: budget.bytes(Part::Pods),
            audit: budget.bytes(Part::Audit),
        }
    }

    /// Directory and size limits of the node's log.
    pub fn log(&self) -> (PathBuf, nodelog::Bounds) {
        let limit = self.budget.bytes(Part::NodeLog);
        (self.data.log.node.path().to_owned(), nodelog::Bounds::within(limit))
    }

    /// Directory of the project that limits images and the writable layers of containers.
    pub fn images(&self) -> PathBuf {
        self.data.containerd.overlayfs.snapshots.path().to_owned()
    }

    pub fn kubelet(&self) -> PathBuf {
        self.data.kubelet.path().to_owned()
    }

    pub fn cni_programs(&self) -> Result<Dir, StepError> {
        self.data.open(|data| &data.cni.programs).map_err(StepError::of("cannot open a directory of the data disk"))
    }

    pub fn cni_configurations(&self) -> Result<Dir, StepError> {
        let opened = self.data.open(|data| &data.cni.configurations);
        opened.map_err(StepError::of("cannot open a directory of the data disk"))
    }

    pub fn volumes(&self) -> Arc<Store> {
        Arc::clone(&self.volumes)
    }

    pub fn csi(&self, node: &NodeName) -> csi::Settings {
        csi::Settings::new(self.kubelet(), node.as_str(), env!("CARGO_PKG_VERSION"))
    }
}

/// Project IDs of the limited directories that are not volumes.
fn projects(data: &Mounted<Data>) -> Result<BTreeSet<ProjectId>, StorageError> {
    let parts = data.open_parts()?;
    let projects = parts.iter().filter_map(|part| fsquota::project(part).transpose());
    Ok(projects.collect::<Result<_, _>>()?)
}
