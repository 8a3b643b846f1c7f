//! Enforces the limits of volumes on this node's pods with the BPF programs of crate [`lsm`], if the kernel supports
//! them and the administrator enables them.
//!
//! The programs are pinned in the host's bpffs: they stay in force while this pod is replaced, and after it is deleted.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lsm::{Btf, Cgroup, CgroupId, DeviceNumber, Guard, Pins};
use podguard::{Enforcement, Restrictions};
use provisioner::{Notice, Notices};
use supervisor::{BoxError, Context};
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::arguments::Limits;

const PINS: &str = "granary";
/// The cgroup2 mount of a container that has its own cgroup namespace.
const OWN_HIERARCHY: &str = "/sys/fs/cgroup";
const OWN_CGROUP: &str = "/proc/self/cgroup";

/// Interval of reports about denied calls.
const INTERVAL: Duration = Duration::from_secs(5);
/// Interval of attempts to load the programs.
const RETRY: Duration = Duration::from_secs(60);

/// Reason why limits are advisory. Callers distinguish only the administrator's choice.
#[derive(Debug, thiserror::Error)]
enum LimitsError {
    #[error("disabled by --limits=advisory")]
    Disabled,
    #[error(
        "cannot find the cgroup of all pods: this process is in {own:?}, and no cgroup above it is named kubepods or \
         kubepods.slice; set --pods-cgroup"
    )]
    NoPods { own: PathBuf },
    #[error("cannot {what} {}", path.display())]
    Path { what: &'static str, path: PathBuf, source: BoxError },
    #[error("cannot read the kernel's BTF")]
    Btf(#[from] lsm::BtfError),
    #[error(transparent)]
    Programs(#[from] lsm::Error),
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub limits: Limits,
    /// The cgroup of all pods. Default: the cgroup of pods above the cgroup of this process.
    pub pods: Option<PathBuf>,
    /// Mount point of the host's `/sys`.
    pub sys: PathBuf,
    pub directory: PathBuf,
    /// The kubelet's directory with links to the logs of containers.
    pub links: PathBuf,
}

#[derive(Debug)]
pub struct Enforcer {
    settings: Settings,
    restrictions: Arc<Restrictions>,
}

impl Enforcer {
    /// Creates an enforcer without changing anything.
    pub fn new(settings: Settings, notices: Notices) -> Self {
        let restrictions = Arc::new(Restrictions::new(&settings.links, notices));
        Self { settings, restrictions }
    }

    pub fn restrictions(&self) -> Arc<Restrictions> {
        Arc::clone(&self.restrictions)
    }

    /// Loads the BPF programs, or removes those of a former process, according to the settings. If this fails, limits
    /// are advisory, and the reason is logged and reported once.
    ///
    /// Before this call, programs of a former process prevent this process from setting up volumes, because they exempt
    /// another cgroup.
    pub fn apply(&self) {
        let applied = match self.settings.limits {
            Limits::Enforced => self.load(),
            Limits::Advisory => self.pins().remove().map_err(Into::into).and(Err(LimitsError::Disabled)),
        };
        let Err(error) = applied else {
            self.restrictions.set(Enforcement::Enforced);
            return;
        };
        let reason = causes::line(&error);
        if self.restrictions.set(Enforcement::Failed(reason.as_str().into())) {
            warn!(reason, "limits of volumes are advisory");
            if !matches!(error, LimitsError::Disabled) {
                self.restrictions.notify(Notice::LimitsAdvisory { reason });
            }
        }
    }

    /// Runs the service, which reports denied calls, and retries loading the programs.
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
            let enforcer = Arc::clone(&self);
            spawn_blocking(move || enforcer.verify()).await?;
        }
    }

    /// Applies the settings again if the cgroup has changed. A cgroup that was removed and created again has another
    /// ID, and the programs would apply to no task.
    fn verify(&self) {
        let pods = self.cgroups().ok().map(|(_, pods)| pods);
        if self.settings.limits == Limits::Enforced && pods.is_some() && self.restrictions.cgroup() == pods {
            self.restrictions.report(&self.hierarchy());
        } else {
            self.apply();
        }
    }

    fn load(&self) -> Result<(), LimitsError> {
        let (own, pods) = self.cgroups()?;
        let path = &self.settings.directory;
        let disk =
            DeviceNumber::from_stat(fs::metadata(path).map_err(failed("read the device number of", path))?.dev());
        let guard = Guard::load_pinned(&Btf::of_kernel()?, pods, disk, &self.pins())?;
        guard.exempt(own)?;
        self.restrictions.replace(guard)?;
        info!(cgroup = %pods.id(), %disk, "limits of volumes enforced");
        Ok(())
    }

    fn cgroups(&self) -> Result<(CgroupId, Cgroup), LimitsError> {
        let hierarchy = self.hierarchy();
        let own = own(&hierarchy)?;
        let pods = match &self.settings.pods {
            Some(pods) => hierarchy.join(pods),
            None => {
                let path = own.path(open(&hierarchy)?).map_err(failed("search the cgroups below", &hierarchy))?;
                let path = path.unwrap_or_default();
                let path = path.strip_prefix(&hierarchy).unwrap_or(&path);
                hierarchy.join(pods_of(path).ok_or_else(|| LimitsError::NoPods { own: path.to_owned() })?)
            }
        };
        let cgroup = Cgroup::of(open(&pods)?).map_err(failed("use the cgroup", &pods))?;
        Ok((own, cgroup))
    }

    fn hierarchy(&self) -> PathBuf {
        self.settings.sys.join("fs/cgroup")
    }

    fn pins(&self) -> Pins<'_> {
        Pins { sys: &self.settings.sys, directory: PINS }
    }
}

/// The cgroup of this process. A process in its own cgroup namespace reads its cgroup as the root, which the container
/// has mounted.
fn own(hierarchy: &Path) -> Result<CgroupId, LimitsError> {
    let list = fs::read_to_string(OWN_CGROUP).map_err(failed("read", Path::new(OWN_CGROUP)))?;
    let path = list.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let path = if path.is_empty() { PathBuf::from(OWN_HIERARCHY) } else { hierarchy.join(path) };
    CgroupId::of(open(&path)?).map_err(failed("use the cgroup", &path))
}

fn open(path: &Path) -> Result<File, LimitsError> {
    File::open(path).map_err(failed("find the cgroups (mount the host's /sys, and use cgroup2): cannot open", path))
}

fn failed<E: Into<BoxError>>(what: &'static str, path: &Path) -> impl FnOnce(E) -> LimitsError {
    let path = path.to_owned();
    move |source| LimitsError::Path { what, path, source: source.into() }
}

/// The cgroup of all pods above the cgroup of one pod: `kubepods` (cgroup driver `cgroupfs`), `kubepods.slice`
/// (`systemd`), or `kubelet-kubepods.slice` (`systemd` with `--cgroup-root=/kubelet`).
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
    fn the_cgroup_of_all_pods_is_above_the_cgroup_of_a_pod() {
        for (own, pods) in [
            ("kubepods/pod0a/0b", Some("kubepods")),
            ("kubepods/besteffort/pod0a/0b", Some("kubepods")),
            ("kubepods.slice/kubepods-pod0a.slice/cri-containerd-0b.scope", Some("kubepods.slice")),
            (
                "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod0a.slice/cri-containerd-0b.scope",
                Some("kubelet.slice/kubelet-kubepods.slice"),
            ),
            // The nodes of this cluster are pods of another cluster.
            ("kubepods/pod0a/0b/kubelet/kubepods/pod0c/0d", Some("kubepods/pod0a/0b/kubelet/kubepods")),
            ("system.slice/containerd.service", None),
            ("", None),
        ] {
            assert_eq!(pods_of(Path::new(own)), pods.map(Path::new), "{own}");
        }
    }

    fn enforcer(limits: Limits, sys: &Path) -> (Enforcer, provisioner::NoticeQueue) {
        let (notices, queue) = provisioner::notices();
        let settings = Settings {
            limits,
            pods: Some("kubepods".into()),
            sys: sys.into(),
            directory: sys.into(),
            links: "/nonexistent".into(),
        };
        (Enforcer::new(settings, notices), queue)
    }

    #[tokio::test]
    async fn a_host_without_the_cgroup_is_reported_once() {
        let sys = tempfile::tempdir().unwrap();
        let (enforcer, queue) = enforcer(Limits::Enforced, sys.path());
        enforcer.apply();
        enforcer.apply();
        drop(enforcer);
        let Some(Notice::LimitsAdvisory { reason }) = queue.next().await else { panic!("no notice") };
        assert!(reason.contains("cgroup"), "{reason}");
        assert_eq!(queue.next().await, None);
    }

    #[tokio::test]
    async fn advisory_by_choice_removes_pins_and_is_not_reported() {
        let sys = tempfile::tempdir().unwrap();
        let pins = sys.path().join("fs/bpf/granary");
        fs::create_dir_all(&pins).unwrap();
        fs::write(pins.join("file_ioctl"), "").unwrap();
        let (enforcer, queue) = enforcer(Limits::Advisory, sys.path());
        enforcer.apply();
        assert!(!pins.exists());
        let enforcement = enforcer.restrictions().enforcement().borrow().clone();
        assert!(matches!(&enforcement, Enforcement::Failed(reason) if reason.contains("disabled")), "{enforcement:?}");
        drop(enforcer);
        assert_eq!(queue.next().await, None);
    }
}
