//! The kernel's file systems, settings and limits, before anything else runs.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use mount::{Filesystem, FilesystemError};
use nix::errno::Errno;
use nix::mount::MsFlags;
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::sethostname;
use units::Bytes;

use config::NodeName;

/// Which step of the preparation failed.
#[derive(Debug, thiserror::Error)]
pub enum SystemError {
    /// A directory cannot be made.
    #[error("cannot make {path}")]
    Directory {
        /// Where.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {path}")]
    Write {
        /// Where.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// A file system cannot be mounted.
    #[error("cannot mount {target}")]
    Mount {
        /// Where.
        target: &'static str,
        /// Why.
        #[source]
        source: FilesystemError,
    },
    /// A kernel setting cannot be written.
    #[error("cannot set {key} to {value}")]
    Sysctl {
        /// The setting, as sysctl(8) writes it.
        key: &'static str,
        /// The wanted value.
        value: &'static str,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The limit of open files cannot be raised.
    #[error("cannot raise the limit of open files")]
    Limit(#[source] Errno),
    /// The host name cannot be set.
    #[error("cannot set the host name {name}")]
    HostName {
        /// The wanted name.
        name: NodeName,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
}

/// Directories of file systems on `/dev` and `/sys` that have to be made before the mount.
const DIRECTORIES: [&str; 3] = ["/dev/pts", "/dev/shm", "/dev/mqueue"];

const NO_PROGRAMS: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NOEXEC).union(MsFlags::MS_NODEV);

/// Kind, target, flags and data. `/dev`, `/proc` and `/sys` come from the initramfs.
///
/// `nsdelegate`: a container's cgroup namespace is a border for the container's own rights.
const MOUNTS: [(&str, &str, MsFlags, &str); 5] = [
    ("devpts", "/dev/pts", MsFlags::MS_NOSUID.union(MsFlags::MS_NOEXEC), "mode=0620,ptmxmode=0666"),
    ("tmpfs", "/dev/shm", MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV), "mode=1777"),
    ("mqueue", "/dev/mqueue", NO_PROGRAMS, ""),
    ("cgroup2", "/sys/fs/cgroup", NO_PROGRAMS, "nsdelegate"),
    ("securityfs", "/sys/kernel/security", NO_PROGRAMS, ""),
];

/// What kubelet checks (`protectKernelDefaults`) and what pods' networks need. Processes: as many as the kernel allows.
const SYSCTLS: [(&str, &str); 10] = [
    ("vm.overcommit_memory", "1"),
    ("vm.panic_on_oom", "0"),
    ("kernel.panic", "10"),
    ("kernel.panic_on_oops", "1"),
    ("kernel.pid_max", "4194304"),
    ("kernel.keys.root_maxkeys", "1000000"),
    ("kernel.keys.root_maxbytes", "25000000"),
    ("fs.inotify.max_user_instances", "8192"),
    ("fs.inotify.max_user_watches", "524288"),
    ("net.ipv4.ip_forward", "1"),
];

/// `net.bridge.*` is there once its module is.
const BRIDGE_SYSCTLS: [(&str, &str); 2] =
    [("net.bridge.bridge-nf-call-iptables", "1"), ("net.bridge.bridge-nf-call-ip6tables", "1")];

/// Open files of one process; containers get it too.
const OPEN_FILES: u64 = 1 << 20;

/// Mounts, settings, limits and the host name. Once per boot.
///
/// # Errors
/// The step that failed.
pub fn prepare(node: &NodeName) -> Result<(), SystemError> {
    for path in DIRECTORIES {
        make(Path::new(path))?;
    }
    for (kind, target, flags, data) in MOUNTS {
        let what = Filesystem { kind, source: Path::new(kind), target: Path::new(target), flags, data };
        mount::filesystem(what).map_err(|source| SystemError::Mount { target, source })?;
    }
    sysctls(&SYSCTLS)?;
    setrlimit(Resource::RLIMIT_NOFILE, OPEN_FILES, OPEN_FILES).map_err(SystemError::Limit)?;
    sethostname(node.as_str()).map_err(|source| SystemError::HostName { name: node.clone(), source })
}

/// The directories of `/ephemeral` that links of the read-only root lead to, and the files there.
///
/// # Errors
/// A directory or file cannot be made.
pub fn prepare_links(ephemeral: &Path, node: &NodeName) -> Result<(), SystemError> {
    for below in ["etc", "run", "tmp", "var/lib", "var/log", "var/run", "var/tmp"] {
        make(&ephemeral.join(below))?;
    }
    for (name, text) in [("hosts", format!("127.0.0.1 localhost {node}\n")), ("machine-id", machine_id(node))] {
        let path = ephemeral.join("etc").join(name);
        fs::write(&path, text).map_err(|source| SystemError::Write { path, source })?;
    }
    Ok(())
}

/// A link in `/var/log`, which kubelet serves to administrators: `/api/v1/nodes/NODE/proxy/logs/NAME/`.
///
/// # Errors
/// [`SystemError::Write`]: the link cannot be made.
pub fn show_log(ephemeral: &Path, name: &str, directory: &Path) -> Result<(), SystemError> {
    let path = ephemeral.join("var/log").join(name);
    symlink(directory, &path).map_err(|source| SystemError::Write { path, source })
}

/// machine-id(5): 32 hexadecimal digits. The node's name makes it, so that it stays the same.
fn machine_id(node: &NodeName) -> String {
    // FNV-1a, 128 bits: not a secret, only different for different names.
    let hash = node.as_str().bytes().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    });
    format!("{hash:032x}\n")
}

/// Settings of modules that are loaded later than the others.
///
/// # Errors
/// A setting cannot be written.
pub fn prepare_bridge() -> Result<(), SystemError> {
    sysctls(&BRIDGE_SYSCTLS)
}

/// Memory of the machine, without what the kernel took at its start (`MemTotal`), proc_meminfo(5). `None` if the kernel
/// does not tell.
pub fn machine_memory() -> Option<Bytes> {
    kerneltext::size(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")
}

/// Memory of this process, with its share of what it shares (PSS), proc_pid_smaps(5). `None` if the kernel
/// does not tell.
pub fn own_memory() -> Option<Bytes> {
    kerneltext::size(&fs::read_to_string("/proc/self/smaps_rollup").ok()?, "Pss:")
}

fn make(path: &Path) -> Result<(), SystemError> {
    fs::create_dir_all(path).map_err(|source| SystemError::Directory { path: path.to_owned(), source })
}

fn sysctls(all: &[(&'static str, &'static str)]) -> Result<(), SystemError> {
    for &(key, value) in all {
        fs::write(sysctl_path(key), value).map_err(|source| SystemError::Sysctl { key, value, source })?;
    }
    Ok(())
}

fn sysctl_path(key: &str) -> PathBuf {
    Path::new("/proc/sys").join(key.replace('.', "/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_is_read_from_the_kernels_tables() {
        assert!(machine_memory() > Some(Bytes::MIB));
        assert!(own_memory() > Some(Bytes::KIB));
    }

    #[test]
    fn a_setting_is_a_file_below_proc() {
        assert_eq!(sysctl_path("kernel.keys.root_maxkeys"), Path::new("/proc/sys/kernel/keys/root_maxkeys"));
        assert_eq!(
            sysctl_path("net.bridge.bridge-nf-call-iptables"),
            Path::new("/proc/sys/net/bridge/bridge-nf-call-iptables")
        );
    }

    #[test]
    fn a_machine_id_is_the_names_own() {
        let id = |name: &str| machine_id(&name.parse().unwrap());
        assert_eq!(id("granary").len(), 33);
        assert_eq!(id("granary"), id("granary"));
        assert_ne!(id("granary"), id("granary-1"));
    }
}
