//! Preflight checks of the machine, before anything is created.

use crate::image_archive::{self, ImageArchiveError};
use crate::options::{Boot, Data};
use crate::spec::NodeSpec;
use nix::sys::stat::SFlag;
use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use units::Bytes;

/// Memory that QEMU needs in addition to the guest's: its code, the translator's cache, the caches of disks.
const OVERHEAD: Bytes = Bytes::new(320 << 20);
/// Minimum memory; with less, the kernel kills a service.
const LEAST_MEMORY: Bytes = Bytes::new(1280 << 20);
/// Minimum memory of a worker, which has neither etcd nor an API server.
const LEAST_WORKER_MEMORY: Bytes = Bytes::new(768 << 20);
/// Memory of the QEMU that connects the nodes.
const SEGMENT: Bytes = Bytes::new(64 << 20);
/// Minimum size of a data disk: images, etcd and logs take about half of it. The machine's disk needs the same free
/// space, because QEMU stops a guest whose sparse file cannot grow.
const LEAST_DATA: Bytes = Bytes::GIB;
/// First port that every user may listen on, unless `net.ipv4.ip_unprivileged_port_start` is different.
const UNPRIVILEGED: u16 = 1024;
/// Space for the console's log, the kubeconfig and other small files.
const SMALL_FILES: Bytes = Bytes::new(64 << 20);

const MEMINFO: &str = "/proc/meminfo";

#[derive(Debug, thiserror::Error)]
pub enum PreflightError {
    #[error(
        "the guest's {memory} and QEMU's {OVERHEAD} do not fit in {available} of free memory; end other programs or choose less with --memory (at least {LEAST_MEMORY})"
    )]
    Memory { memory: Bytes, available: Bytes },
    #[error(
        "the {memory} of {guests} guests and QEMU's {overhead} do not fit in {available} of free memory; end other programs, or choose fewer --nodes, or less with --memory (at least {LEAST_MEMORY}) and --worker-memory (at least {LEAST_WORKER_MEMORY})"
    )]
    ClusterMemory { guests: usize, memory: Bytes, overhead: Bytes, available: Bytes },
    #[error("{memory} of memory is too little for {node}; choose at least {least} with {option}")]
    LittleMemory { node: &'static str, memory: Bytes, least: Bytes, option: &'static str },
    #[error(
        "cannot listen on port {port} of 127.0.0.1; end the program that uses it, or choose another port with {purpose}"
    )]
    Port { port: u16, purpose: PortPurpose, source: io::Error },
    #[error("port {port} of 127.0.0.1 needs root rights; choose {UNPRIVILEGED} or higher with {purpose}")]
    PrivilegedPort { port: u16, purpose: PortPurpose },
    #[error("port {port} of 127.0.0.1 is used twice; choose another port with --port or --forward")]
    SamePort { port: u16 },
    #[error("a data disk of {size} is too small; choose at least {LEAST_DATA} with --data-size")]
    LittleData { size: Bytes },
    #[error("cannot use data file {}", path.display())]
    Data { path: PathBuf, source: DataFileError },
    #[error(
        "a run can write {need} to {}, which has {free} free; free some space, or choose another place {remedy}", directory.display()
    )]
    Full { directory: PathBuf, need: Bytes, free: Bytes, remedy: &'static str },
    #[error("cannot measure the free space of {}; choose another place {remedy}", directory.display())]
    Space { directory: PathBuf, source: io::Error, remedy: &'static str },
    #[error("cannot use the images in {}", path.display())]
    Images { path: PathBuf, source: ImageArchiveError },
    #[error("cannot read {}; start the node with `bazel run //:launch`, which builds missing files", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot read the free memory of this machine in {MEMINFO}; run the launcher where /proc is mounted")]
    FreeMemory(#[source] io::Error),
}

#[derive(Debug, thiserror::Error)]
pub enum DataFileError {
    #[error(
        "it is not a regular file, as a data disk of the launcher must be; name a file, which is created if it is missing"
    )]
    Kind,
    #[error(
        "it is a symbolic link to {}, which does not exist; create that file with truncate --size=8G, or remove the link", target.display()
    )]
    Link { target: PathBuf },
    #[error("it has {size}, a node needs at least {LEAST_DATA}; remove it, or enlarge it with truncate --size")]
    Small { size: Bytes },
    #[error(
        "it has {size}, and a data disk is never shrunk to {requested}; choose at least {size} with --data-size, or another file"
    )]
    Shrink { size: Bytes, requested: Bytes },
    #[error("it cannot be opened for writing; name a file in an existing directory that you may write to")]
    Open(#[source] io::Error),
}

/// The option that chooses a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortPurpose {
    Api,
    Forward,
}

impl fmt::Display for PortPurpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Api => "--port (without it, a free one is used)",
            Self::Forward => "--forward",
        })
    }
}

#[derive(Debug)]
struct Machine {
    available: Bytes,
    /// Requested ports, and the result of binding each.
    ports: Vec<(u16, PortPurpose, Result<(), io::Error>)>,
    data: Vec<(PathBuf, Result<(), DataFileError>)>,
    directories: Vec<Directory>,
}

#[derive(Debug)]
struct Directory {
    path: PathBuf,
    device: u64,
    need: Bytes,
    free: Bytes,
    remedy: &'static str,
}

/// Checks that the machine can run all nodes at the same time. Creates nothing.
pub(crate) fn check(specs: &[NodeSpec]) -> Result<(), PreflightError> {
    let memories: Vec<Bytes> = specs.iter().map(|spec| spec.options.memory).collect();
    decide(&memories, inspect(specs)?)
}

/// Checks the machine. The memory of the control plane is the first of `memories`.
fn decide(memories: &[Bytes], machine: Machine) -> Result<(), PreflightError> {
    check_memory(memories, machine.available)?;
    check_ports(machine.ports)?;
    for (path, usable) in machine.data {
        usable.map_err(|source| PreflightError::Data { path, source })?;
    }
    check_space(machine.directories)
}

fn check_ports(ports: Vec<(u16, PortPurpose, Result<(), io::Error>)>) -> Result<(), PreflightError> {
    let mut checked = BTreeSet::new();
    for (port, purpose, free) in ports {
        if !checked.insert(port) {
            return Err(PreflightError::SamePort { port });
        }
        match free {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(PreflightError::PrivilegedPort { port, purpose });
            }
            Err(source) => return Err(PreflightError::Port { port, purpose, source }),
        }
    }
    Ok(())
}

fn check_memory(memories: &[Bytes], available: Bytes) -> Result<(), PreflightError> {
    let (control_plane, workers) = memories.split_at(1.min(memories.len()));
    for (memories, node, least, option) in [
        (control_plane, "the node", LEAST_MEMORY, "--memory"),
        (workers, "a worker", LEAST_WORKER_MEMORY, "--worker-memory"),
    ] {
        if let Some(&memory) = memories.iter().find(|memory| **memory < least) {
            return Err(PreflightError::LittleMemory { node, memory, least, option });
        }
    }
    let memory = memories.iter().fold(Bytes::ZERO, |sum, memory| sum.saturating_add(*memory));
    let mut overhead = memories.iter().fold(Bytes::ZERO, |sum, _| sum.saturating_add(OVERHEAD));
    if !workers.is_empty() {
        overhead = overhead.saturating_add(SEGMENT);
    }
    match memories.len() {
        _ if memory.saturating_add(overhead) <= available => Ok(()),
        1 => Err(PreflightError::Memory { memory, available }),
        guests => Err(PreflightError::ClusterMemory { guests, memory, overhead, available }),
    }
}

/// Checks the free space. Directories on the same file system share its free space.
fn check_space(directories: Vec<Directory>) -> Result<(), PreflightError> {
    let of = |device| directories.iter().filter(|one| one.device == device).map(|one| one.need).sum::<Bytes>();
    let needs: Vec<Bytes> = directories.iter().map(|directory| of(directory.device)).collect();
    match directories.into_iter().zip(needs).find(|(directory, need)| *need > directory.free) {
        Some((Directory { path: directory, free, remedy, .. }, need)) => {
            Err(PreflightError::Full { directory, need, free, remedy })
        }
        None => Ok(()),
    }
}

fn inspect(specs: &[NodeSpec]) -> Result<Machine, PreflightError> {
    let files = specs.iter().flat_map(|spec| match &spec.options.boot {
        Boot::Kernel => {
            let image = &spec.options.image;
            vec![&image.kernel, &image.initramfs, &image.system, &image.command_line]
        }
        Boot::Firmware(disk) => vec![disk],
    });
    for path in files {
        fs::File::open(path).map_err(|source| PreflightError::Read { path: path.clone(), source })?;
    }
    // All nodes have the same images.
    for path in specs.iter().take(1).flat_map(|spec| &spec.options.images) {
        image_archive::check(path).map_err(|source| PreflightError::Images { path: path.clone(), source })?;
    }
    let available = fs::read_to_string(MEMINFO)
        .and_then(|text| {
            kernel::text::size(&text, "MemAvailable:").ok_or_else(|| io::Error::other("MemAvailable is missing"))
        })
        .map_err(PreflightError::FreeMemory)?;
    let ports = specs.iter().flat_map(|spec| {
        let api = spec.options.port.map(|port| (port.get(), PortPurpose::Api));
        api.into_iter().chain(spec.options.forwards.iter().map(|forward| (forward.host, PortPurpose::Forward)))
    });
    let is_free = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map(drop);
    let ports = ports.map(|(port, purpose)| (port, purpose, is_free(port))).collect();
    if let Some(size) = specs.iter().find_map(|spec| spec.options.data_size).filter(|size| *size < LEAST_DATA) {
        return Err(PreflightError::LittleData { size });
    }
    let data = specs.iter().filter_map(|spec| match &spec.options.data {
        Data::Temporary => None,
        Data::File(path) => Some((path.clone(), check_data(path, spec.options.data_size))),
    });
    let data = data.collect();
    let mut all = Vec::new();
    for spec in specs {
        all.extend(directories(spec)?);
    }
    Ok(Machine { available, ports, data, directories: all })
}

fn directories(spec: &NodeSpec) -> Result<Vec<Directory>, PreflightError> {
    let options = &spec.options;
    // All nodes use the archives of the control plane.
    let mut small = SMALL_FILES;
    for path in options.images.iter().filter(|_| spec.index == 0) {
        let packed = image_archive::packed_size(path)
            .map_err(|error| PreflightError::Images { path: path.clone(), source: ImageArchiveError::Read(error) })?;
        small = small.saturating_add(packed);
    }
    let (temporary, kept) = match &options.data {
        Data::Temporary => (LEAST_DATA, None),
        Data::File(path) => (Bytes::ZERO, Some((path, LEAST_DATA.saturating_sub(allocated(path))))),
    };
    let mut directories = vec![directory(
        &options.state,
        small.saturating_add(temporary),
        "with TMPDIR (XDG_STATE_HOME if the cluster is kept)",
    )?];
    // `check_data` reports errors of the path itself.
    if let Some((path, need)) = kept
        && let Some(parent) = directory_of(path).filter(|parent| parent.is_dir())
    {
        directories.push(directory(parent, need, "with --data (XDG_STATE_HOME if the cluster is kept)")?);
    }
    Ok(directories)
}

fn directory(path: &Path, need: Bytes, remedy: &'static str) -> Result<Directory, PreflightError> {
    let failed = |source: io::Error| PreflightError::Space { directory: path.into(), source, remedy };
    let device = fs::metadata(path).map_err(failed)?.dev();
    let system = nix::sys::statvfs::statvfs(path).map_err(|errno| failed(errno.into()))?;
    let free = Bytes::new(system.blocks_available().saturating_mul(system.fragment_size()));
    Ok(Directory { path: path.into(), device, need, free, remedy })
}

/// Allocated size of a file; zero if it is missing.
fn allocated(path: &Path) -> Bytes {
    // stat(2) counts blocks of 512 bytes.
    fs::metadata(path).map_or(Bytes::ZERO, |metadata| Bytes::new(metadata.blocks().saturating_mul(512)))
}

fn check_data(path: &Path, requested: Option<Bytes>) -> Result<(), DataFileError> {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return check_absent(path),
        Err(error) => return Err(DataFileError::Open(error)),
    };
    check_kind(metadata.mode())?;
    OpenOptions::new().read(true).write(true).open(path).map_err(DataFileError::Open)?;
    let size = Bytes::new(metadata.len());
    match requested {
        Some(requested) if requested < size => Err(DataFileError::Shrink { size, requested }),
        None if size < LEAST_DATA => Err(DataFileError::Small { size }),
        Some(_) | None => Ok(()),
    }
}

/// Rejects all files but regular ones. QEMU's driver `file` also rejects block devices.
fn check_kind(mode: u32) -> Result<(), DataFileError> {
    match SFlag::from_bits_truncate(mode) & SFlag::S_IFMT {
        SFlag::S_IFREG => Ok(()),
        _ => Err(DataFileError::Kind),
    }
}

fn check_absent(path: &Path) -> Result<(), DataFileError> {
    let Some(directory) = directory_of(path) else { return Err(DataFileError::Kind) };
    // `O_EXCL` does not create the target of a link, open(2).
    if let Ok(target) = fs::read_link(path) {
        // A relative target starts at the directory of the link, symlink(7).
        return Err(DataFileError::Link { target: directory.join(target) });
    }
    let writable = nix::unistd::access(directory, nix::unistd::AccessFlags::W_OK);
    writable.map_err(|errno| DataFileError::Open(errno.into()))
}

fn directory_of(path: &Path) -> Option<&Path> {
    let directory = path.parent()?;
    Some(if directory.as_os_str().is_empty() { Path::new(".") } else { directory })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{ClusterOptions, Options};

    const ENOUGH: Bytes = Bytes::new(16 << 30);

    fn machine() -> Machine {
        Machine { available: ENOUGH, ports: Vec::new(), data: Vec::new(), directories: Vec::new() }
    }

    #[test]
    fn a_suitable_machine_is_accepted() {
        let ports = vec![(6443, PortPurpose::Api, Ok(())), (8080, PortPurpose::Forward, Ok(()))];
        let data = vec![("data.img".into(), Ok(()))];
        assert!(decide(&[Bytes::new(2 << 30)], Machine { ports, data, ..machine() }).is_ok());
    }

    #[test]
    fn too_little_free_memory_is_rejected_with_sizes() {
        let available = Bytes::new(2 << 30);
        let error = decide(&[Bytes::new(2 << 30)], Machine { available, ..machine() }).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the guest's 2 GiB and QEMU's 320 MiB do not fit in 2 GiB of free memory; \
             end other programs or choose less with --memory (at least 1.25 GiB)"
        );
    }

    #[test]
    fn the_memory_of_all_guests_counts() {
        let memories = [Bytes::new(2 << 30), Bytes::GIB, Bytes::GIB];
        assert!(check_memory(&memories, Bytes::new(5 << 30)).is_ok());
        assert_eq!(
            check_memory(&memories, Bytes::new(9 << 29)).unwrap_err().to_string(),
            "the 4 GiB of 3 guests and QEMU's 1 GiB do not fit in 4.5 GiB of free memory; end other programs, or choose \
             fewer --nodes, or less with --memory (at least 1.25 GiB) and --worker-memory (at least 768 MiB)"
        );
    }

    #[test]
    fn a_worker_needs_less_memory_than_a_control_plane() {
        let (least, less) = (LEAST_WORKER_MEMORY, Bytes::new(LEAST_WORKER_MEMORY.get() - 1));
        assert!(check_memory(&[LEAST_MEMORY, least], ENOUGH).is_ok());
        for (memories, option) in
            [(&[LEAST_MEMORY, less][..], "768 MiB with --worker-memory"), (&[least], "1.25 GiB with --memory")]
        {
            let error = check_memory(memories, ENOUGH).unwrap_err().to_string();
            assert!(error.ends_with(option), "{error}");
        }
    }

    #[test]
    fn an_unusable_data_file_is_rejected() {
        let data = vec![("data.img".into(), Err(DataFileError::Kind))];
        let error = decide(&[Bytes::new(2 << 30)], Machine { data, ..machine() });
        assert!(matches!(error, Err(PreflightError::Data { source: DataFileError::Kind, .. })));
        assert_eq!(error.unwrap_err().to_string(), "cannot use data file data.img");
    }

    #[test]
    fn ports_must_be_free_and_different() {
        let rejected =
            |kind: io::ErrorKind, purpose| check_ports(vec![(80, purpose, Err(kind.into()))]).unwrap_err().to_string();
        assert_eq!(
            rejected(io::ErrorKind::AddrInUse, PortPurpose::Forward),
            "cannot listen on port 80 of 127.0.0.1; end the program that uses it, or choose another port with --forward"
        );
        assert_eq!(
            rejected(io::ErrorKind::PermissionDenied, PortPurpose::Forward),
            "port 80 of 127.0.0.1 needs root rights; choose 1024 or higher with --forward"
        );
        let twice = vec![(6443, PortPurpose::Api, Ok(())), (6443, PortPurpose::Forward, Ok(()))];
        assert_eq!(
            check_ports(twice).unwrap_err().to_string(),
            "port 6443 of 127.0.0.1 is used twice; choose another port with --port or --forward"
        );
    }

    #[test]
    fn a_data_disk_grows_and_does_not_shrink() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("data.img");
        fs::File::create_new(&path).unwrap().set_len(4 << 30).unwrap();
        assert!(check_data(&path, Some(Bytes::new(5 << 30))).is_ok());
        assert!(check_data(&path, Some(Bytes::new(4 << 30))).is_ok());
        assert_eq!(
            check_data(&path, Some(Bytes::new(2 << 30))).unwrap_err().to_string(),
            "it has 4 GiB, and a data disk is never shrunk to 2 GiB; choose at least 4 GiB with --data-size, or another file"
        );
        // A file that is too small passes if a larger size is requested.
        fs::write(&path, "small").unwrap();
        assert!(check_data(&path, Some(LEAST_DATA)).is_ok());
    }

    fn with_space(path: &str, device: u64, need: u64, free: u64) -> Directory {
        let mebi = |count| Bytes::new(count << 20);
        Directory { path: path.into(), device, need: mebi(need), free: mebi(free), remedy: "with TMPDIR" }
    }

    #[test]
    fn a_full_disk_is_rejected_with_sizes_and_a_remedy() {
        let directories = vec![with_space("/tmp", 1, 1088, 512)];
        assert_eq!(
            decide(&[Bytes::new(2 << 30)], Machine { directories, ..machine() }).unwrap_err().to_string(),
            "a run can write 1.06 GiB (1140850688 B) to /tmp, which has 512 MiB free; free some space, or choose \
             another place with TMPDIR"
        );
    }

    #[test]
    fn an_unusable_directory_is_rejected_with_a_remedy() {
        let error = directory(Path::new("/nowhere"), LEAST_DATA, "with TMPDIR").unwrap_err();
        assert_eq!(error.to_string(), "cannot measure the free space of /nowhere; choose another place with TMPDIR");
    }

    #[test]
    fn directories_of_one_file_system_share_its_space() {
        assert!(check_space(vec![with_space("/tmp", 1, 600, 1000), with_space("/home", 2, 600, 1000)]).is_ok());
        let shared = check_space(vec![with_space("/tmp", 1, 600, 1000), with_space("/home", 1, 600, 1000)]);
        assert!(
            matches!(shared, Err(PreflightError::Full { need, .. }) if need == Bytes::new(1200 << 20)),
            "{shared:?}"
        );
    }

    #[test]
    fn a_file_needs_only_the_space_that_it_lacks() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data.img");
        let mut options = Options::fake(directory.path());
        let needs = |options: &Options| -> Vec<Bytes> {
            directories(&NodeSpec::control_plane(options)).unwrap().iter().map(|directory| directory.need).collect()
        };
        assert_eq!(needs(&options), [SMALL_FILES.saturating_add(LEAST_DATA)]);
        options.data = Data::File(data.clone());
        assert_eq!(needs(&options), [SMALL_FILES, LEAST_DATA]);
        fs::write(&data, vec![1; 8 << 20]).unwrap();
        fs::File::open(&data).unwrap().sync_all().unwrap();
        assert!(needs(&options)[1] <= Bytes::new((1 << 30) - (8 << 20)), "{:?}", needs(&options));
    }

    /// Regression test: the launcher filled the disk with archives, and QEMU stopped the guests.
    #[test]
    fn images_in_a_directory_need_space_once() {
        let directory = tempfile::tempdir().unwrap();
        let [layout, archive] = ["layout", "archive.tar"].map(|name| directory.path().join(name));
        fs::create_dir(&layout).unwrap();
        for path in [&layout.join("index.json"), &archive] {
            fs::write(path, "{}").unwrap();
        }
        let data = Data::File(directory.path().join("data.img"));
        let options = Options { images: vec![layout, archive], data, ..Options::fake(directory.path()) };
        let specs = NodeSpec::all(&ClusterOptions::new(options, "2".parse().unwrap()));
        let needs: Vec<Bytes> = specs.iter().map(|spec| directories(spec).unwrap()[0].need).collect();
        assert_eq!(needs, [SMALL_FILES.saturating_add(Bytes::new(2)), SMALL_FILES]);
    }

    #[test]
    fn data_files_are_checked_and_not_created() {
        let directory = tempfile::tempdir().unwrap();
        let place = |name: &str| directory.path().join(name);
        assert!(check_data(&place("data.img"), None).is_ok());
        fs::write(place("small.img"), "small").unwrap();
        assert!(
            matches!(check_data(&place("small.img"), None), Err(DataFileError::Small { size }) if size == Bytes::new(5))
        );
        assert!(matches!(check_data(directory.path(), None), Err(DataFileError::Kind)));
        let missing = check_data(&place("missing/data.img"), None);
        assert!(matches!(missing, Err(DataFileError::Open(error)) if error.kind() == io::ErrorKind::NotFound));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    /// Regression test: block devices passed the check, and QEMU did not start.
    #[test]
    fn block_devices_are_rejected() {
        // Check only the mode, because a test machine may have no block device.
        for kind in [SFlag::S_IFBLK, SFlag::S_IFCHR, SFlag::S_IFIFO, SFlag::S_IFSOCK, SFlag::S_IFDIR] {
            assert!(matches!(check_kind(kind.bits() | 0o600), Err(DataFileError::Kind)), "{kind:?}");
        }
        assert!(check_kind(SFlag::S_IFREG.bits() | 0o600).is_ok());
        assert!(matches!(check_data(Path::new("/dev/null"), Some(LEAST_DATA)), Err(DataFileError::Kind)));
    }

    #[test]
    fn a_broken_link_is_rejected_with_its_target() {
        let directory = tempfile::tempdir().unwrap();
        let (path, target) = (directory.path().join("data.img"), directory.path().join("disks/gone.img"));
        fs::create_dir(directory.path().join("disks")).unwrap();
        for written in [&*target, Path::new("disks/gone.img")] {
            std::os::unix::fs::symlink(written, &path).unwrap();
            assert_eq!(
                check_data(&path, None).unwrap_err().to_string(),
                format!(
                    "it is a symbolic link to {}, which does not exist; create that file with truncate --size=8G, or \
                     remove the link",
                    target.display()
                )
            );
            fs::File::create_new(&target).unwrap().set_len(LEAST_DATA.get()).unwrap();
            assert!(check_data(&path, None).is_ok());
            fs::remove_file(&target).unwrap();
            fs::remove_file(&path).unwrap();
        }
    }
}
