//! Cgroups of pods. As long as a cgroup exists, its processes may have a device node and the permission for its number.
//!
//! The I/O limits of a device are set on the cgroup above all pods, because the kernel charges a buffered write to the
//! cgroup that owns the writeback of the device. The owner is the pod that wrote first, even after it has ended, and
//! limits of an ended pod cannot be changed.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use loopdev::DeviceNumber;
use nix::errno::Errno;
use volume::IoLimits;

/// Maximum depth of a pod's cgroup below the root: the kubelet may use a part of the tree, and has a level for each
/// class of pods.
const LEVELS: usize = 4;

/// The cgroup of all pods, and the ends of the names of slices of the QoS classes below it. Guaranteed pods have none.
const PODS: &str = "kubepods";
const CLASSES: [&str; 2] = ["-burstable", "-besteffort"];

/// The file of a cgroup with the limits of devices, `MAJOR:MINOR rbps=N wbps=N riops=N wiops=N`, without a line for a
/// device that has none (cgroup v2; Documentation/admin-guide/cgroup-v2.rst).
const LIMITS: &str = "io.max";

#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("cannot read {}; the host's hierarchy of cgroup v2 is needed", path.display())]
    Hierarchy { path: PathBuf, source: std::io::Error },
    #[error("{} does not have the controller io; enable it in the kernel (CONFIG_BLK_CGROUP, CONFIG_BLK_DEV_THROTTLING)", path.display())]
    Controller { path: PathBuf },
    #[error("no cgroup below {} is named kubepods or kubepods.slice yet; the kubelet creates it (cgroupsPerQOS)", root.display())]
    Missing { root: PathBuf },
    #[error("the pod has no cgroup below {} yet; try again", root.display())]
    NoPod { root: PathBuf },
    #[error("{} has no {LIMITS}; enable the controller io in cgroup.subtree_control of the cgroups above it", cgroup.display())]
    NoLimits { cgroup: PathBuf },
    #[error("cannot {what} {}", path.display())]
    File { what: &'static str, path: PathBuf, source: std::io::Error },
}

/// The host's cgroup v2 hierarchy.
#[derive(Clone, Debug)]
pub(super) struct Cgroups {
    root: PathBuf,
}

#[derive(Clone, Debug)]
pub(super) struct PodCgroup {
    name: String,
    path: PathBuf,
}

impl Cgroups {
    pub(super) const fn new(root: PathBuf) -> Self {
        Self { root }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Fails if I/O cannot be limited.
    pub(super) fn check(&self) -> Result<(), CgroupError> {
        let path = self.root.join("cgroup.controllers");
        let controllers = match fs::read_to_string(&path) {
            Ok(controllers) => controllers,
            Err(source) => return Err(CgroupError::Hierarchy { path, source }),
        };
        if controllers.split_whitespace().any(|name| name == "io") {
            Ok(())
        } else {
            Err(CgroupError::Controller { path })
        }
    }

    /// The cgroups of all pods. Empty if cgroup2 is not mounted.
    pub(super) fn pods(&self) -> Vec<PodCgroup> {
        let is_pod = |name: &str| name.starts_with("pod") || name.contains("-pod");
        find(&self.root, LEVELS, &is_pod).into_iter().map(|(name, path)| PodCgroup { name, path }).collect()
    }

    /// The cgroup of the pod with this UID.
    pub(super) fn of(&self, pod: &OsStr) -> Result<PodCgroup, CgroupError> {
        let found = self.pods().into_iter().find(|cgroup| cgroup.is_of(pod));
        found.ok_or_else(|| CgroupError::NoPod { root: self.root.clone() })
    }

    /// Sets the limits of a device for all pods together, or removes them. Idempotent.
    pub(super) fn limit(&self, device: DeviceNumber, limits: IoLimits) -> Result<(), CgroupError> {
        if !limits.is_none() {
            self.check()?;
        }
        // Names that the two cgroup drivers use. Cgroups of other kubelets on the machine may match too, but their pods
        // do not have the device.
        let is_above_pods =
            |name: &str| name == "kubepods" || name == "kubepods.slice" || name.ends_with("-kubepods.slice");
        let found = find(&self.root, LEVELS, &is_above_pods);
        if found.is_empty() && !limits.is_none() {
            return Err(CgroupError::Missing { root: self.root.clone() });
        }
        found.iter().try_for_each(|(_, cgroup)| limit(cgroup, device, limits))
    }
}

impl PodCgroup {
    /// Whether this is the cgroup of the pod with this UID, by the names of kubelet's two drivers
    /// (pkg/kubelet/cm/cgroup_manager_linux.go): `podUID` (`cgroupfs`), or `kubepods-podUID.slice` and
    /// `kubepods-CLASS-podUID.slice` with `_` for each `-` of the UID (`systemd`). With `--cgroup-root`, the names of
    /// slices begin with that root. The UID of a static pod is a hash without `-`.
    pub(super) fn is_of(&self, pod: &OsStr) -> bool {
        let Some(uid) = pod.to_str() else { return false };
        self.name.strip_prefix("pod") == Some(uid) || slice_uid(&self.name) == Some(&*uid.replace('-', "_"))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// The UID in the name of a pod's slice, with `_` for `-`. The kubelet replaces each `-` within the name of a level, so
/// that `-` separates only the levels.
fn slice_uid(name: &str) -> Option<&str> {
    let (above, pod) = name.strip_suffix(".slice")?.rsplit_once('-')?;
    let root = CLASSES.iter().find_map(|class| above.strip_suffix(*class)).unwrap_or(above);
    let is_above_pods = root == PODS || root.strip_suffix(PODS).is_some_and(|root| root.ends_with('-'));
    if is_above_pods { pod.strip_prefix("pod") } else { None }
}

fn limit(cgroup: &Path, device: DeviceNumber, limits: IoLimits) -> Result<(), CgroupError> {
    let path = cgroup.join(LIMITS);
    let failed = |what| {
        let path = path.clone();
        move |source| CgroupError::File { what, path, source }
    };
    let found = match fs::read_to_string(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound && limits.is_none() => return Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(CgroupError::NoLimits { cgroup: cgroup.to_owned() });
        }
        found => found.map_err(failed("read"))?,
    };
    if has(&found, device, limits) {
        return Ok(());
    }
    match fs::write(&path, line(device, limits)) {
        // The kernel removes the limits of a device with the device.
        Err(error) if limits.is_none() && error.raw_os_error() == Some(Errno::ENODEV as i32) => Ok(()),
        written => written.map_err(failed("write")),
    }
}

/// Whether the content of the file has these limits of the device.
fn has(content: &str, device: DeviceNumber, limits: IoLimits) -> bool {
    let DeviceNumber { major, minor } = device;
    let of_device = format!("{major}:{minor}");
    let found = content.lines().map(str::split_whitespace).find_map(|mut words| {
        let is_of_device = words.next() == Some(&*of_device);
        is_of_device.then(|| words.collect::<Vec<_>>())
    });
    match found {
        Some(found) => values(limits).iter().all(|value| found.contains(&value.as_str())),
        None => limits.is_none(),
    }
}

fn line(DeviceNumber { major, minor }: DeviceNumber, limits: IoLimits) -> String {
    format!("{major}:{minor} {}", values(limits).join(" "))
}

fn values(limits: IoLimits) -> [String; 4] {
    let IoLimits { read_operations, write_operations, read_bytes, write_bytes } = limits;
    let [rbps, wbps] = [read_bytes, write_bytes].map(|limit| limit.map(units::Bytes::get));
    let [riops, wiops] = [read_operations, write_operations].map(|limit| limit.map(u64::from));
    [("rbps", rbps), ("wbps", wbps), ("riops", riops), ("wiops", wiops)]
        .map(|(name, limit)| format!("{name}={}", limit.map_or_else(|| "max".to_owned(), |limit| limit.to_string())))
}

/// The cgroups whose names `is_wanted` accepts. The search does not descend into these.
fn find(dir: &Path, levels: usize, is_wanted: &dyn Fn(&str) -> bool) -> Vec<(String, PathBuf)> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let directories = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let found = directories.flat_map(|entry| match entry.file_name().into_string() {
        Ok(name) if is_wanted(&name) => vec![(name, entry.path())],
        _ if levels > 1 => find(&entry.path(), levels - 1, is_wanted),
        _ => Vec::new(),
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use units::Bytes;

    use super::*;

    const DEVICE: DeviceNumber = DeviceNumber { major: 7, minor: 9 };
    const LIMITED: IoLimits = IoLimits { write_bytes: Some(Bytes::MIB), read_operations: Some(100), ..IoLimits::NONE };

    fn hierarchy(pods: &[&str]) -> (tempfile::TempDir, Cgroups) {
        let root = tempfile::tempdir().expect("a directory");
        for path in pods {
            fs::create_dir_all(root.path().join(path)).expect("directories");
        }
        let cgroups = Cgroups::new(root.path().to_owned());
        (root, cgroups)
    }

    #[test]
    fn pods_are_found_by_both_drivers_names() {
        let (_root, cgroups) = hierarchy(&[
            "kubepods/burstable/pod11-22/container",
            "kubepods/pod33-44",
            "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod55_66.slice",
            "system/77-88",
        ]);
        let found = cgroups.pods();
        let exists = |uid: &str| found.iter().any(|cgroup| cgroup.is_of(OsStr::new(uid)));
        assert!(exists("11-22") && exists("33-44") && exists("55-66"), "{found:?}");
        assert!(!exists("77-88") && !exists("container"), "{found:?}");
    }

    #[test]
    fn a_cgroup_is_of_the_pod_with_exactly_its_uid() {
        const UID: &str = "0c1d2e3f-0000-4000-8000-00000000abcd";
        const STATIC: &str = "0c1d2e3f0000400080000000000abcd0";
        let is_of =
            |name: &str, uid: &str| PodCgroup { name: name.to_owned(), path: PathBuf::new() }.is_of(OsStr::new(uid));
        for uid in [UID, STATIC] {
            let slice = uid.replace('-', "_");
            let names = [
                format!("pod{uid}"),
                format!("kubepods-pod{slice}.slice"),
                format!("kubepods-burstable-pod{slice}.slice"),
                format!("kubepods-besteffort-pod{slice}.slice"),
                format!("kubelet-kubepods-burstable-pod{slice}.slice"),
            ];
            for name in &names {
                assert!(is_of(name, uid), "{name}");
                let others = [&uid[1..], &uid[..8], "0", "kubepods", "burstable", "pod", ".slice", "", "1-1"];
                for other in others.into_iter().chain([UID, STATIC].into_iter().filter(|other| *other != uid)) {
                    assert!(!is_of(name, other), "{name} is not of {other:?}");
                }
                assert!(!is_of(name, &format!("{uid}0")) && !is_of(name, &format!("pod{uid}")), "{name}");
            }
            for name in [
                format!("pod{uid}.slice"),
                format!("pod{slice}-x"),
                format!("user-pod{slice}.slice"),
                format!("notkubepods-pod{slice}.slice"),
                format!("kubepods-other-pod{slice}.slice"),
                format!("kubepods-burstable-pod1-pod{slice}.slice"),
                format!("kubepods-burstable-pod{slice}.slice:cri-containerd:1"),
                format!("cri-containerd-pod{slice}.scope"),
            ] {
                assert!(!is_of(&name, uid), "{name}");
            }
        }
        // Only the driver `systemd` replaces `-`, and each of them.
        assert!(is_of("poda_b", "a_b") && !is_of("poda_b", "a-b") && !is_of("kubepods-poda-b.slice", "a-b"));
    }

    #[test]
    fn a_hierarchy_without_the_controller_is_rejected() {
        let (root, cgroups) = hierarchy(&[]);
        assert!(matches!(cgroups.check(), Err(CgroupError::Hierarchy { .. })), "no cgroup v2");
        let controllers = root.path().join("cgroup.controllers");
        fs::write(&controllers, "cpuset cpu memory iox\n").expect("write");
        assert!(matches!(cgroups.check(), Err(CgroupError::Controller { .. })));
        fs::write(&controllers, "cpuset cpu io memory\n").expect("write");
        cgroups.check().expect("it has the controller");
    }

    #[test]
    fn limits_are_written_as_the_kernel_reads_them() {
        assert_eq!(line(DEVICE, LIMITED), "7:9 rbps=max wbps=1048576 riops=100 wiops=max");
        assert_eq!(line(DEVICE, IoLimits::NONE), "7:9 rbps=max wbps=max riops=max wiops=max");
        let content = format!("7:90 rbps=1 wbps=1 riops=1 wiops=1\n{}\n", line(DEVICE, LIMITED));
        assert!(has(&content, DEVICE, LIMITED) && !has(&content, DEVICE, IoLimits::NONE));
        assert!(!has(&content, DEVICE, IoLimits { write_operations: Some(10), ..LIMITED }));
        assert!(has("7:90 rbps=1 wbps=1 riops=1 wiops=1\n", DEVICE, IoLimits::NONE) && has("", DEVICE, IoLimits::NONE));
    }

    #[test]
    fn the_cgroup_above_all_pods_has_the_limits() {
        for (above, pod) in [
            ("kubepods", "burstable/pod1"),
            ("kubepods.slice", "kubepods-pod1.slice"),
            (
                "kubelet.slice/kubelet-kubepods.slice",
                "kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod1.slice",
            ),
            ("kubepods", "pod1/kubelet/kubepods/pod2"),
        ] {
            let (root, cgroups) = hierarchy(&[&format!("{above}/{pod}"), "system"]);
            fs::write(root.path().join("cgroup.controllers"), "io").expect("write");
            let above = root.path().join(above);
            let no_file = cgroups.limit(DEVICE, LIMITED).expect_err("no io.max");
            assert!(matches!(&no_file, CgroupError::NoLimits { cgroup } if *cgroup == above), "{no_file}");
            cgroups.limit(DEVICE, IoLimits::NONE).expect("nothing to remove");
            fs::write(above.join("io.max"), "").expect("write");
            cgroups.limit(DEVICE, LIMITED).expect("limited");
            assert_eq!(fs::read_to_string(above.join("io.max")).expect("read"), line(DEVICE, LIMITED));
        }
        let (root, cgroups) = hierarchy(&["system/pod1"]);
        fs::write(root.path().join("cgroup.controllers"), "io").expect("write");
        assert!(matches!(cgroups.limit(DEVICE, LIMITED), Err(CgroupError::Missing { .. })));
        cgroups.limit(DEVICE, IoLimits::NONE).expect("nothing to remove");
    }
}
