//! Identifies the container of a cgroup. The kubelet and the container runtime name cgroups after pod UIDs and
//! container IDs, and the kubelet links logs by the names of pods and containers.

use std::fs;
use std::io;
use std::path::{Component, Path};

use provisioner::Pod;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Container {
    pod: String,
    id: String,
}

impl Container {
    /// Parses a path below the pods' cgroup: `…/pod<UID>/<ID>` (cgroup driver `cgroupfs`), or `…/…-pod<UID with
    /// underscores>.slice/<runtime>-<ID>.scope` (`systemd`). A container may have cgroups below its own.
    pub(crate) fn of_cgroup(path: &Path) -> Option<Self> {
        let names: Vec<&str> = path
            .components()
            .filter_map(|component| match component {
                Component::Normal(name) => name.to_str(),
                _ => None,
            })
            .collect();
        names.windows(2).find_map(|pair| {
            let (pod, container) = (pair.first()?, pair.get(1)?);
            let pod = match pod.strip_suffix(".slice") {
                Some(slice) => slice.rsplit_once("-pod")?.1.replace('_', "-"),
                None => pod.strip_prefix("pod")?.to_owned(),
            };
            let scope = container.strip_suffix(".scope").unwrap_or(container);
            let id = scope.rsplit_once('-').map_or(scope, |(_, id)| id);
            let is_valid = |text: &str, more: &str| {
                !text.is_empty() && text.chars().all(|c| c.is_ascii_hexdigit() || more.contains(c))
            };
            (is_valid(&pod, "-") && is_valid(id, "")).then(|| Self { pod, id: id.to_owned() })
        })
    }

    /// The pod and the name of the container, from the links in the kubelet's directory `/var/log/containers`:
    /// `<pod>_<namespace>_<container>-<ID>.log`. `None` if the kubelet has removed the link, or truncated a long name.
    pub(crate) fn names(&self, links: &Path) -> io::Result<Option<(Pod, String)>> {
        let suffix = format!("-{}.log", self.id);
        for entry in fs::read_dir(links)? {
            let name = entry?.file_name();
            let Some(names) = name.to_str().and_then(|name| name.strip_suffix(&*suffix)) else { continue };
            let mut names = names.split('_').map(str::to_owned);
            if let (Some(name), Some(namespace), Some(container), None) =
                (names.next(), names.next(), names.next(), names.next())
            {
                return Ok(Some((Pod { namespace, name, uid: self.pod.clone() }, container)));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0c1d2e3f-0000-4000-8000-00000000abcd";
    const ID: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    fn container() -> Container {
        Container { pod: UID.to_owned(), id: ID.to_owned() }
    }

    #[test]
    fn a_cgroup_names_its_pod_and_container_with_each_driver() {
        let slice = UID.replace('-', "_");
        for path in [
            format!("/sys/fs/cgroup/kubepods/pod{UID}/{ID}"),
            format!("/sys/fs/cgroup/kubepods/burstable/pod{UID}/{ID}/below/it"),
            format!(
                "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{slice}.slice/cri-containerd-{ID}.scope"
            ),
            format!("/kubepods.slice/kubepods-pod{slice}.slice/crio-{ID}.scope/container"),
            format!(
                "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{slice}.slice/cri-containerd-{ID}.scope"
            ),
        ] {
            assert_eq!(Container::of_cgroup(Path::new(&path)), Some(container()), "{path}");
        }
        for other in
            ["/", "/kubepods", "/kubepods/self-test", "/kubepods/burstable/pods/x", "/kubepods/pod/0a", "a/pod_/0a"]
        {
            assert_eq!(Container::of_cgroup(Path::new(other)), None, "{other}");
        }
        let pod_only = format!("/kubepods/pod{UID}");
        assert_eq!(Container::of_cgroup(Path::new(&pod_only)), None);
    }

    #[test]
    fn names_come_from_the_link_of_the_containers_log() {
        let links = tempfile::tempdir().unwrap();
        let link = |name: String| fs::write(links.path().join(name), "").unwrap();
        link(format!("other_default_main-{}.log", ID.replace('9', "8")));
        assert_eq!(container().names(links.path()).unwrap(), None);
        link(format!("tenant-0.x_team-a_side-car-{ID}.log"));
        let pod = Pod { namespace: "team-a".into(), name: "tenant-0.x".into(), uid: UID.into() };
        assert_eq!(container().names(links.path()).unwrap(), Some((pod, "side-car".to_owned())));
        assert!(container().names(&links.path().join("missing")).is_err());
    }
}
