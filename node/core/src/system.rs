//! The kernel's file systems, settings and limits, set before any service runs.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use mount::Filesystem;
use nix::mount::MsFlags;
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::sethostname;
use units::Bytes;

use config::NodeName;

use crate::error::StepError;

/// Directories in file systems of `/dev` and `/sys`, created before the mounts.
const DIRECTORIES: [&str; 3] = ["/dev/pts", "/dev/shm", "/dev/mqueue"];

const NO_PROGRAMS: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NOEXEC).union(MsFlags::MS_NODEV);

/// Type, target, flags and data. The initramfs mounts `/dev`, `/proc` and `/sys`.
///
/// `nsdelegate`: a container's cgroup namespace is a delegation boundary. securityfs shows the state of lockdown and
/// the active LSMs.
const MOUNTS: [(&str, &str, MsFlags, &str); 5] = [
    ("devpts", "/dev/pts", MsFlags::MS_NOSUID.union(MsFlags::MS_NOEXEC), "mode=0620,ptmxmode=0666"),
    ("tmpfs", "/dev/shm", MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV), "mode=1777"),
    ("mqueue", "/dev/mqueue", NO_PROGRAMS, ""),
    ("cgroup2", "/sys/fs/cgroup", NO_PROGRAMS, "nsdelegate"),
    ("securityfs", "/sys/kernel/security", NO_PROGRAMS, ""),
];

const SETTINGS: &str = include_str!("sysctl.conf");

const CONNECTION_SETTINGS: &str = include_str!("conntrack.conf");

/// Limit of open files per process, also for containers.
const OPEN_FILES: u64 = 1 << 20;

/// Sets up mounts, settings, limits and the host name. Call once per boot.
pub fn prepare(node: &NodeName) -> Result<(), StepError> {
    for path in DIRECTORIES {
        make(Path::new(path))?;
    }
    for (kind, target, flags, data) in MOUNTS {
        let what = Filesystem { kind, source: Path::new(kind), target: Path::new(target), flags, data };
        mount::filesystem(what).map_err(StepError::of(format!("cannot mount {target}")))?;
    }
    apply(SETTINGS, Path::new(SYSCTL_ROOT))?;
    setrlimit(Resource::RLIMIT_NOFILE, OPEN_FILES, OPEN_FILES)
        .map_err(StepError::of("cannot raise the limit of open files"))?;
    sethostname(node.as_str()).map_err(StepError::of(format!("cannot set the host name {node}")))
}

/// Creates the directories and files of `/ephemeral` to which links of the read-only root refer.
pub fn prepare_links(ephemeral: &Path, node: &NodeName) -> Result<(), StepError> {
    for below in ["etc", "run", "tmp", "var/lib", "var/log", "var/run", "var/tmp"] {
        make(&ephemeral.join(below))?;
    }
    for (name, text) in [("hosts", format!("127.0.0.1 localhost {node}\n")), ("machine-id", machine_id(node))] {
        let path = ephemeral.join("etc").join(name);
        fs::write(&path, text).map_err(StepError::of(format!("cannot write {}", path.display())))?;
    }
    Ok(())
}

/// Creates a link in `/var/log`, which the kubelet serves to administrators: `/api/v1/nodes/NODE/proxy/logs/NAME/`.
pub fn show_log(ephemeral: &Path, name: &str, directory: &Path) -> Result<(), StepError> {
    let path = ephemeral.join("var/log").join(name);
    symlink(directory, &path).map_err(StepError::of(format!("cannot write {}", path.display())))
}

/// machine-id(5): 32 hexadecimal digits, derived from the node's name, so that the ID stays the same.
fn machine_id(node: &NodeName) -> String {
    // FNV-1a, 128 bits. The ID is not secret, it only differs between names.
    let hash = node.as_str().bytes().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    });
    format!("{hash:032x}\n")
}

/// Applies settings of kernel modules that are loaded later than the others.
pub fn prepare_connections() -> Result<(), StepError> {
    apply(CONNECTION_SETTINGS, Path::new(SYSCTL_ROOT))
}

/// Memory of the machine without the part that the kernel reserves at its start (`MemTotal`), proc_meminfo(5). `None`
/// if the kernel does not report it.
pub fn machine_memory() -> Option<Bytes> {
    kernel::text::size(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")
}

/// Memory of this process with its share of shared pages (PSS), proc_pid_smaps(5). `None` if the kernel does not report
/// it.
pub fn own_memory() -> Option<Bytes> {
    kernel::text::size(&fs::read_to_string("/proc/self/smaps_rollup").ok()?, "Pss:")
}

fn make(path: &Path) -> Result<(), StepError> {
    fs::create_dir_all(path).map_err(StepError::of(format!("cannot create {}", path.display())))
}

const SYSCTL_ROOT: &str = "/proc/sys";

/// Placeholder in [`SETTINGS`] for each network interface.
const EACH: &str = "*";

/// Assignments of sysctl.d(5).
fn settings(text: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once('=')).map(|(key, value)| (key.trim(), value.trim()))
}

/// Writes settings below the directory `root`.
fn apply(text: &'static str, root: &Path) -> Result<(), StepError> {
    for (key, value) in settings(text) {
        match key.split_once(EACH) {
            None => write_setting(root, key, value).map_err(not_set(key, value))?,
            Some((before, after)) => write_each(root, before, after, value)?,
        }
    }
    Ok(())
}

/// Writes `BEFORE*AFTER`. A kernel without IPv6 (`ipv6.disable=1`) has none of its settings and needs none. An
/// interface may disappear meanwhile.
fn write_each(root: &Path, before: &str, after: &str, value: &'static str) -> Result<(), StepError> {
    let directory = setting_path(root, before.trim_end_matches('.'));
    let interfaces = match interfaces(&directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && before.starts_with("net.ipv6.") => return Ok(()),
        found => found.map_err(StepError::of(format!("cannot read {}", directory.display())))?,
    };
    for interface in interfaces {
        let key = format!("{before}{interface}{after}");
        match write_setting(root, &key, value) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && !FOR_ALL.contains(&&*interface) => {}
            written => written.map_err(not_set(&key, value))?,
        }
    }
    Ok(())
}

const FOR_ALL: [&str; 2] = ["default", "all"];

/// Names of the interfaces with settings, in the form of sysctl(8): `/` stands for a `.` in a name. [`FOR_ALL`] is
/// first, so that an interface that appears meanwhile has the new default or is in the list.
fn interfaces(directory: &Path) -> io::Result<Vec<String>> {
    let mut found = FOR_ALL.map(str::to_owned).to_vec();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name().to_string_lossy().replace('.', "/");
        if !found.contains(&name) {
            found.push(name);
        }
    }
    Ok(found)
}

/// Appends an end of line, because the kernel receives no write(2) of an empty value.
fn write_setting(root: &Path, key: &str, value: &str) -> io::Result<()> {
    fs::write(setting_path(root, key), format!("{value}\n"))
}

fn not_set(key: &str, value: &str) -> impl FnOnce(io::Error) -> StepError {
    StepError::of(format!("cannot set {key} to {value:?}"))
}

/// sysctl(8): `.` separates components, and `/` stands for a `.` in a name.
fn setting_path(root: &Path, key: &str) -> PathBuf {
    root.join(key.split('.').map(|part| part.replace('/', ".")).collect::<PathBuf>())
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
        let path = |key| setting_path(Path::new(SYSCTL_ROOT), key);
        assert_eq!(path("kernel.keys.root_maxkeys"), Path::new("/proc/sys/kernel/keys/root_maxkeys"));
        assert_eq!(path("net.ipv4.conf.eth0/7.rp_filter"), Path::new("/proc/sys/net/ipv4/conf/eth0.7/rp_filter"));
    }

    #[test]
    fn each_line_of_the_settings_is_one_or_a_comment() {
        let lines = SETTINGS.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        assert_eq!(settings(SETTINGS).count(), lines.count());
        assert!(settings(SETTINGS).any(|setting| setting == ("kernel.modprobe", "")));
        assert!(settings(SETTINGS).any(|setting| setting == ("kernel.kptr_restrict", "2")));
    }

    /// Regression: one pod could open as many files as the machine allows, so that etcd could open none, and root in a
    /// pod could use up the kubelet's instances of inotify.
    #[test]
    fn pods_cannot_use_up_the_files_and_watches_of_the_node() {
        // The largest values that the kernel accepts: `sysctl_long_vals` of fs/file_table.c, `it_int_max` of
        // fs/notify/inotify/inotify_user.c.
        let (files, watches) = (i64::MAX.to_string(), i32::MAX.to_string());
        for wanted in [
            ("fs.file-max", files.as_str()),
            ("fs.inotify.max_user_instances", watches.as_str()),
            ("fs.inotify.max_user_watches", watches.as_str()),
        ] {
            assert!(settings(SETTINGS).any(|setting| setting == wanted), "{wanted:?}");
        }
    }

    /// A directory like `/proc/sys` with settings of these interfaces.
    fn network(interfaces: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for interface in interfaces {
            fs::create_dir_all(root.path().join("net/ipv4/conf").join(interface)).unwrap();
        }
        root
    }

    const REDIRECTS: &str = "# Comment\nnet.ipv4.conf.*.send_redirects = 0\nnet.ipv6.conf.*.accept_redirects = 0";

    /// The directory has no settings of IPv6, as with a kernel without IPv6.
    #[test]
    fn settings_apply_to_present_and_future_interfaces() {
        let root = network(&["all", "default", "eth0.7", "lo"]);
        apply(REDIRECTS, root.path()).unwrap();
        for interface in ["all", "default", "eth0.7", "lo"] {
            let path = root.path().join("net/ipv4/conf").join(interface).join("send_redirects");
            assert_eq!(fs::read_to_string(path).unwrap(), "0\n", "{interface}");
        }
    }

    #[test]
    fn a_setting_that_the_kernel_lacks_is_an_error_with_its_name() {
        let root = network(&["default"]);
        let error = apply(REDIRECTS, root.path()).unwrap_err();
        assert_eq!(error.to_string(), "cannot set net.ipv4.conf.all.send_redirects to \"0\"");
        let error = apply(REDIRECTS, Path::new("/nowhere")).unwrap_err();
        assert_eq!(error.to_string(), "cannot read /nowhere/net/ipv4/conf");
        let error = apply("kernel.yama.ptrace_scope = 1", root.path()).unwrap_err();
        assert_eq!(error.to_string(), "cannot set kernel.yama.ptrace_scope to \"1\"");
    }

    #[test]
    fn a_machine_id_is_the_names_own() {
        let id = |name: &str| machine_id(&name.parse().unwrap());
        assert_eq!(id("granary").len(), 33);
        assert_eq!(id("granary"), id("granary"));
        assert_ne!(id("granary"), id("granary-1"));
    }
}
