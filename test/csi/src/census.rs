//! Counts of resources that could leak.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::Node;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census(BTreeMap<(&'static str, String), usize>);

impl Census {
    /// Mounts, attached loop devices, descriptors of this process, files below the kubelet's directory, and volumes
    /// that are not shared.
    pub fn take(node: &Node) -> Self {
        let mut census = Self::of_kernel();
        for descriptor in descriptors() {
            census.add("descriptor", descriptor);
        }
        let mounts = mount::table().expect("the mount table").into_iter().map(|entry| entry.point).collect();
        census.walk(node.kubelet(), &mounts);
        for id in node.volumes().unshared() {
            census.add("volume", id);
        }
        census
    }

    /// Mounts and attached loop devices.
    pub fn of_kernel() -> Self {
        let mut census = Self::default();
        for entry in mount::table().expect("the table of mounts") {
            census.add("mount", entry.point.display());
        }
        for device in loopdev::list().expect("loop devices") {
            census.add("loop device", format_args!("{} on {}", device.number, device.status.backing));
        }
        census
    }

    pub fn changes(&self, now: &Self) -> Vec<String> {
        let count = |census: &Self, key| census.0.get(key).copied().unwrap_or(0);
        let keys = self.0.keys().chain(now.0.keys().filter(|key| !self.0.contains_key(*key)));
        keys.map(|key| (key, count(self, key), count(now, key)))
            .filter(|(_, before, after)| before != after)
            .map(|((kind, name), before, after)| format!("{kind} {name}: {before} before, {after} now"))
            .collect()
    }

    fn add(&mut self, kind: &'static str, name: impl fmt::Display) {
        *self.0.entry((kind, name.to_string())).or_default() += 1;
    }

    /// Counts the files below a directory, but none in mounts, which have the files of pods.
    fn walk(&mut self, dir: &Path, mounts: &BTreeSet<PathBuf>) {
        let Ok(entries) = fs::read_dir(dir) else { return };
        for entry in entries.flatten() {
            let path = entry.path();
            self.add("file", path.display());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) && !mounts.contains(&path) {
                self.walk(&path, mounts);
            }
        }
    }
}

/// The open files of this process, without the descriptor that reads the directory.
fn descriptors() -> Vec<String> {
    let own = PathBuf::from(format!("/proc/{}/fd", std::process::id()));
    let open = |entry: fs::DirEntry| fs::read_link(entry.path()).ok();
    let links = fs::read_dir("/proc/self/fd").expect("descriptors").flatten().filter_map(open);
    links.filter(|link| *link != own).map(|link| nameless(&link.display().to_string())).collect()
}

/// `socket:[4711]` becomes `socket`.
fn nameless(link: &str) -> String {
    link.split_once(":[").map_or(link, |(kind, _)| kind).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_in_both_directions_are_named() {
        let of = |names: &[&str]| {
            let mut census = Census::default();
            names.iter().for_each(|name| census.add("mount", name));
            census
        };
        assert_eq!(of(&["a", "b"]).changes(&of(&["b", "a"])), Vec::<String>::new());
        assert_eq!(of(&["a"]).changes(&of(&["a", "a"])), ["mount a: 1 before, 2 now"]);
        assert_eq!(of(&["a"]).changes(&of(&["b"])), ["mount a: 1 before, 0 now", "mount b: 0 before, 1 now"]);
    }

    #[test]
    fn sockets_are_counted_not_numbered() {
        assert_eq!(nameless("socket:[4711]"), "socket");
        assert_eq!(nameless("/dev/null"), "/dev/null");
    }
}
