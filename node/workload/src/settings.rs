//! Kernel settings, sysctl(8).

use crate::CheckError;
use crate::finding::{Setting, Settings};
use nix::sched::{CloneFlags, setns};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::{panic, thread};

const ROOT: &str = "/proc/sys";
/// Network namespace of the node's PID 1. `/proc/sys/net` shows the namespace of the reading thread.
const NETWORK: &str = "/proc/1/ns/net";
const EACH: &str = "*";

/// Reads settings in the namespaces of the node's processes.
pub(crate) fn read(keys: &[String]) -> Result<Settings, CheckError> {
    let read = || {
        let network = Path::new(NETWORK);
        let file = File::open(network).map_err(CheckError::of("open", network))?;
        setns(file, CloneFlags::CLONE_NEWNET).map_err(CheckError::of("enter", network))?;
        below(Path::new(ROOT), keys)
    };
    // setns(2) moves only the calling thread, so a separate thread reads the settings.
    thread::scope(|scope| scope.spawn(read).join()).unwrap_or_else(|reason| panic::resume_unwind(reason))
}

fn below(root: &Path, keys: &[String]) -> Result<Settings, CheckError> {
    let mut settings = Vec::new();
    for key in keys {
        match key.split_once(EACH) {
            None => settings.push(Setting { key: key.clone(), interface: None, value: value(&path(root, key))? }),
            Some((before, after)) => {
                let directory = path(root, before.trim_end_matches('.'));
                for entry in fs::read_dir(&directory).map_err(CheckError::of("list", &directory))? {
                    let entry = entry.map_err(CheckError::of("list", &directory))?;
                    let file = path(&entry.path(), after.trim_start_matches('.'));
                    let value = match fs::read_to_string(&file) {
                        // The network interface of a pod is removed with its pod.
                        Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                        found => found.map_err(CheckError::of("read", &file))?,
                    };
                    let interface = Some(entry.file_name().to_string_lossy().into_owned());
                    settings.push(Setting { key: key.clone(), interface, value: value.trim().to_owned() });
                }
            }
        }
    }
    Ok(Settings { settings })
}

fn value(file: &Path) -> Result<String, CheckError> {
    fs::read_to_string(file).map(|text| text.trim().to_owned()).map_err(CheckError::of("read", file))
}

/// Path of a setting. Dots separate the components of a key.
fn path(root: &Path, key: &str) -> PathBuf {
    key.split('.').fold(root.to_owned(), |path, part| path.join(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_of_each_interface_is_read_from_all_of_them() {
        let root = tempfile::tempdir().unwrap();
        for (interface, value) in [("all", "0\n"), ("eth0.7", "1\n")] {
            let directory = root.path().join("net/ipv4/conf").join(interface);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("rp_filter"), value).unwrap();
        }
        fs::create_dir_all(root.path().join("kernel")).unwrap();
        fs::write(root.path().join("kernel/modprobe"), "\n").unwrap();
        let read = |keys: &[&str]| below(root.path(), &keys.iter().map(ToString::to_string).collect::<Vec<_>>());
        let mut found = read(&["net.ipv4.conf.*.rp_filter", "kernel.modprobe"]).unwrap().settings;
        found.sort_by(|one, other| one.interface.cmp(&other.interface));
        let found: Vec<_> = found.iter().map(|one| (one.interface.as_deref(), one.value.as_str())).collect();
        assert_eq!(found, [(None, ""), (Some("all"), "0"), (Some("eth0.7"), "1")]);
        let error = read(&["kernel.none"]).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot read {}", root.path().join("kernel/none").display()));
    }
}
