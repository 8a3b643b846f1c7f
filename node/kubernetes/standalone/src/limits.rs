//! Whether pods of this node are held to the limits of their volumes: by the programs of crate [`lsm`], if the kernel supports
//! them and the administrator wants them.
//!
//! The programs are pinned in the host's bpffs: they stay in force while this pod is replaced, and after it is deleted.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lsm::{Btf, Cgroup, CgroupError, CgroupId, DeviceNumber, Guard, Pins};
use podguard::{Enforcement, Restrictions};
use provisioner::{Notice, Notices};
use supervisor::Context;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::arguments::{CgroupPath, Limits};

/// The programs' directory in the bpffs.
const PINS: &str = "granary";
/// The cgroup2 of a container that has its own cgroup namespace.
const OWN_HIERARCHY: &str = "/sys/fs/cgroup";
/// Which cgroup this process is in.
const OWN: &str = "/proc/self/cgroup";

/// How often denied calls are reported.
const INTERVAL: Duration = Duration::from_secs(5);
/// Between two attempts to load the programs.
const RETRY: Duration = Duration::from_secs(60);

/// Why limits are advisory.
#[derive(Debug, thiserror::Error)]
pub enum LimitsError {
    /// The administrator chose so.
    #[error("they are not enforced by choice (--limits=advisory)")]
    Disabled,
    /// A cgroup cannot be opened.
    #[error("cannot open {}; mount the host's /sys, and use cgroup2", path.display())]
    Open {
        /// The cgroup or its list.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A cgroup cannot be used.
    #[error("cannot use the cgroup {}", path.display())]
    Cgroup {
        /// Its directory.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: CgroupError,
    },
    /// The process is not below a cgroup with a usual name.
    #[error(
        "cannot find the cgroup of all pods: this process is in {own:?}, and no cgroup above it is named kubepods or \
         kubepods.slice; set --pods-cgroup"
    )]
    NoPods {
        /// Its own cgroup, below the root of the hierarchy.
        own: PathBuf,
    },
    /// The file system of the volumes cannot be identified.
    #[error("cannot look at {}", path.display())]
    Disk {
        /// The directory of the volumes.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The kernel's types cannot be read.
    #[error("cannot read the kernel's BTF")]
    Btf(#[from] lsm::BtfError),
    /// The programs cannot be loaded or removed.
    #[error(transparent)]
    Programs(#[from] lsm::Error),
}

/// What is restricted, and how.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whether pods are restricted.
    pub limits: Limits,
    /// The cgroup of all pods; `None` if it is above that of this process.
    pub pods: Option<CgroupPath>,
    /// Where the host's `/sys` is mounted.
    pub sys: PathBuf,
    /// The directory of the volumes.
    pub directory: PathBuf,
    /// kubelet's directory with links to the logs of containers.
    pub links: PathBuf,
}

/// Keeps the pods of this node restricted, or unrestricted.
#[derive(Debug)]
pub struct Keeper {
    settings: Settings,
    restrictions: Arc<Restrictions>,
}

impl Keeper {
    /// Changes nothing yet.
    pub fn new(settings: Settings, notices: Notices) -> Self {
        let restrictions = Arc::new(Restrictions::new(&settings.links, notices));
        Self { settings, restrictions }
    }

    /// What is in force.
    pub fn restrictions(&self) -> Arc<Restrictions> {
        Arc::clone(&self.restrictions)
    }

    /// Loads the programs, or removes those of a former process, as chosen. If that fails, limits are advisory: the reason is
    /// logged and reported once.
    ///
    /// Before this, programs of a former process deny this one to set up volumes: another cgroup is exempt.
    pub fn apply(&self) {
        let applied = match self.settings.limits {
            Limits::Enforced => self.load(),
            Limits::Advisory => self.pins().remove().map_err(Into::into).and(Err(LimitsError::Disabled)),
        };
        let Err(error) = applied else {
            self.restrictions.set(Enforcement::Enforced);
            return;
        };
        let reason = causes::lines(&error).to_string().replace("\ncaused by: ", ": ");
        if self.restrictions.set(Enforcement::Failed(reason.as_str().into())) {
            warn!(reason, "limits of volumes are advisory");
            if !matches!(error, LimitsError::Disabled) {
                self.restrictions.notify(Notice::LimitsAdvisory { reason });
            }
        }
    }

    /// The service: reports denied calls, and tries again to load programs that could not be loaded.
    ///
    /// # Errors
    /// A task panicked.
    pub async fn run(self: Arc<Self>, cx: Context) -> Result<(), JoinError> {
        cx.healthy();
        loop {
            let is_enforced = *self.restrictions.enforcement().borrow() == Enforcement::Enforced;
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                () = sleep(if is_enforced { INTERVAL } else { RETRY }) => {}
            }
            let this = Arc::clone(&self);
            spawn_blocking(move || this.verify()).await?;
        }
    }

    /// A cgroup that was removed and created again has another ID, and the programs would apply to no task.
    fn verify(&self) {
        let pods = self.look().ok().map(|(_, pods)| pods);
        if self.settings.limits == Limits::Enforced && pods.is_some() && self.restrictions.cgroup() == pods {
            self.restrictions.report(&self.hierarchy());
        } else {
            self.apply();
        }
    }

    fn load(&self) -> Result<(), LimitsError> {
        let (own, pods) = self.look()?;
        let path = &self.settings.directory;
        let disk = fs::metadata(path).map_err(|source| LimitsError::Disk { path: path.clone(), source })?;
        let disk = DeviceNumber::from_stat(disk.dev());
        let guard = Guard::load_pinned(&Btf::of_kernel()?, pods, disk, &self.pins())?;
        guard.exempt(own)?;
        self.restrictions.replace(guard)?;
        info!(cgroup = %pods.id(), %disk, "pods are restricted to the limits of volumes");
        Ok(())
    }

    /// The cgroups of this process and of all pods.
    fn look(&self) -> Result<(CgroupId, Cgroup), LimitsError> {
        let hierarchy = self.hierarchy();
        let own = self.own(&hierarchy)?;
        let pods = match &self.settings.pods {
            Some(pods) => hierarchy.join(pods.as_path()),
            None => {
                let root = open(&hierarchy)?;
                let path = own.path(root).map_err(|source| LimitsError::Cgroup { path: hierarchy.clone(), source })?;
                let path = path.unwrap_or_default();
                let path = path.strip_prefix(&hierarchy).unwrap_or(&path);
                hierarchy.join(pods_of(path).ok_or_else(|| LimitsError::NoPods { own: path.to_owned() })?)
            }
        };
        let cgroup = Cgroup::of(open(&pods)?).map_err(|source| LimitsError::Cgroup { path: pods, source })?;
        Ok((own, cgroup))
    }

    /// In a cgroup namespace of its own, a process sees its cgroup as the root, and that is what the container has mounted.
    fn own(&self, hierarchy: &Path) -> Result<CgroupId, LimitsError> {
        let list = fs::read_to_string(OWN).map_err(|source| LimitsError::Open { path: OWN.into(), source })?;
        let path = list.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
        let path = if path.is_empty() { PathBuf::from(OWN_HIERARCHY) } else { hierarchy.join(path) };
        CgroupId::of(open(&path)?).map_err(|source| LimitsError::Cgroup { path, source })
    }

    fn hierarchy(&self) -> PathBuf {
        self.settings.sys.join("fs/cgroup")
    }

    fn pins(&self) -> Pins<'_> {
        Pins { sys: &self.settings.sys, directory: PINS }
    }
}

fn open(path: &Path) -> Result<File, LimitsError> {
    File::open(path).map_err(|source| LimitsError::Open { path: path.to_owned(), source })
}

/// The cgroup of all pods above that of one: `kubepods` (cgroup driver `cgroupfs`), `kubepods.slice` (`systemd`), or
/// `kubelet-kubepods.slice` (`systemd` with `--cgroup-root=/kubelet`).
fn pods_of(own: &Path) -> Option<&Path> {
    let is_pods = |path: &&Path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        matches!(name, "kubepods" | "kubepods.slice") || name.ends_with("-kubepods.slice")
    };
    own.ancestors().find(is_pods)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cgroup_of_all_pods_is_found_above_that_of_a_pod() {
        for (own, pods) in [
            ("kubepods/pod0a/0b", Some("kubepods")),
            ("kubepods/besteffort/pod0a/0b", Some("kubepods")),
            ("kubepods.slice/kubepods-pod0a.slice/cri-containerd-0b.scope", Some("kubepods.slice")),
            (
                "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod0a.slice/cri-containerd-0b.scope",
                Some("kubelet.slice/kubelet-kubepods.slice"),
            ),
            // A cluster whose nodes are pods of another one.
            ("kubepods/pod0a/0b/kubelet/kubepods/pod0c/0d", Some("kubepods/pod0a/0b/kubelet/kubepods")),
            ("system.slice/containerd.service", None),
            ("", None),
        ] {
            assert_eq!(pods_of(Path::new(own)), pods.map(Path::new), "{own}");
        }
    }

    fn keeper(limits: Limits, sys: &Path) -> (Keeper, provisioner::NoticeQueue) {
        let (notices, queue) = provisioner::notices();
        let settings = Settings {
            limits,
            pods: Some("kubepods".parse().unwrap()),
            sys: sys.into(),
            directory: sys.into(),
            links: "/nonexistent".into(),
        };
        (Keeper::new(settings, notices), queue)
    }

    #[tokio::test]
    async fn a_host_without_the_cgroup_is_reported_once() {
        let sys = tempfile::tempdir().unwrap();
        let (keeper, queue) = keeper(Limits::Enforced, sys.path());
        keeper.apply();
        keeper.apply();
        drop(keeper);
        let Some(Notice::LimitsAdvisory { reason }) = queue.next().await else { panic!("no notice") };
        assert!(reason.contains("cgroup"), "{reason}");
        assert_eq!(queue.next().await, None);
    }

    #[tokio::test]
    async fn limits_that_are_advisory_by_choice_are_not_reported_and_pins_are_removed() {
        let sys = tempfile::tempdir().unwrap();
        let pins = sys.path().join("fs/bpf/granary");
        fs::create_dir_all(&pins).unwrap();
        fs::write(pins.join("file_ioctl"), "").unwrap();
        let (keeper, queue) = keeper(Limits::Advisory, sys.path());
        keeper.apply();
        assert!(!pins.exists());
        let enforcement = keeper.restrictions().enforcement().borrow().clone();
        assert!(matches!(&enforcement, Enforcement::Failed(reason) if reason.contains("by choice")), "{enforcement:?}");
        drop(keeper);
        assert_eq!(queue.next().await, None);
    }
}
