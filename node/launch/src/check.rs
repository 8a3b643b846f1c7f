//! Whether the machine can run the nodes: looked at before anything is made.

use crate::options::{Boot, Data, Options};
use crate::site::Site;
use std::fs::{self, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use units::Bytes;

/// What QEMU needs beside the guest's memory: its own code, the translator's cache, the disks' caches.
const OVERHEAD: Bytes = Bytes::new(320 << 20);
/// The least with which the services run; below that the kernel kills one of them.
const LEAST_MEMORY: Bytes = Bytes::new(1280 << 20);
/// The same for a worker, which has neither etcd nor an API server.
const LEAST_WORKER_MEMORY: Bytes = Bytes::new(768 << 20);
/// What QEMU needs for the network between nodes.
const SEGMENT: Bytes = Bytes::new(64 << 20);
/// The least data disk: images, etcd and logs take about half of it. What the machine's disk needs room for, too: QEMU
/// stops a guest whose sparse file cannot grow.
const LEAST_DATA: Bytes = Bytes::GIB;
/// For the console's log, the kubeconfig and the like.
const SMALL_FILES: Bytes = Bytes::new(64 << 20);

/// Why the node is not started.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The guest's memory is not there.
    #[error(
        "the guest's {memory} and QEMU's {OVERHEAD} do not fit in the {available} that are free; end other programs or choose less with --memory (at least {LEAST_MEMORY})"
    )]
    Memory {
        /// What the guest was to get.
        memory: Bytes,
        /// What the kernel could give.
        available: Bytes,
    },
    /// The memory of all guests is not there.
    #[error(
        "the {memory} of {guests} guests and QEMU's {overhead} do not fit in the {available} that are free; end other programs, or choose fewer --nodes, or less with --memory (at least {LEAST_MEMORY}) and --worker-memory (at least {LEAST_WORKER_MEMORY})"
    )]
    Memories {
        /// How many guests there were to be.
        guests: usize,
        /// What they were to get together.
        memory: Bytes,
        /// What QEMU needs beside it.
        overhead: Bytes,
        /// What the kernel could give.
        available: Bytes,
    },
    /// The guest would not run with so little.
    #[error("the node does not run with {memory} of memory; choose at least {LEAST_MEMORY} with --memory")]
    LittleMemory {
        /// What the guest was to get.
        memory: Bytes,
    },
    /// A worker would not run with so little.
    #[error(
        "a worker does not run with {memory} of memory; choose at least {LEAST_WORKER_MEMORY} with --worker-memory"
    )]
    LittleWorkerMemory {
        /// What the guest was to get.
        memory: Bytes,
    },
    /// The port is in use, or not allowed.
    #[error(
        "cannot listen on port {port} of 127.0.0.1; end the program that does, or choose another with --port (a free one without)"
    )]
    Port {
        /// The port.
        port: u16,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The data file is there but cannot be used.
    #[error("cannot use data file {path}")]
    Data {
        /// The file.
        path: PathBuf,
        /// What the matter is.
        #[source]
        source: DataRefusal,
    },
    /// QEMU would stop the guest in the middle.
    #[error(
        "a run can write {need} to {directory}, which has {free} free; free some, or choose another place {remedy}"
    )]
    Room {
        /// Where files are made.
        directory: PathBuf,
        /// What may be written there, and to other directories of its file system.
        need: Bytes,
        /// What its file system has for this user.
        free: Bytes,
        /// How another place is chosen.
        remedy: &'static str,
    },
    /// Something could not be looked at.
    #[error("cannot read {path}; start the node by bazel run //:launch, which makes what is missing")]
    Look {
        /// What was looked at.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
}

/// What is wrong with a data file.
#[derive(Debug, thiserror::Error)]
pub enum DataRefusal {
    /// A directory, a socket or the like.
    #[error("it is no regular file and no block device; name a file, it is made if it is missing")]
    Kind,
    /// Several nodes cannot have it.
    #[error("it is a block device, and every node needs a disk of its own; name a file, the others are made beside it")]
    OneDevice,
    /// Nothing is made through a link.
    #[error(
        "it is a symbolic link to {target}, which is not there; make that file with truncate --size=8G, or remove the link"
    )]
    Link {
        /// Where it leads.
        target: PathBuf,
    },
    /// Too small for a node.
    #[error("it has {size}, a node needs {LEAST_DATA} at least; remove it, or enlarge it with truncate --size")]
    Small {
        /// Its size.
        size: Bytes,
    },
    /// No permission, a missing directory and the like.
    #[error("it cannot be opened for writing; name a file in an existing directory that you may write to")]
    Open(#[source] io::Error),
}

/// What the machine looks like.
#[derive(Debug)]
struct Host {
    /// Memory that programs can get.
    available: Bytes,
    /// Whether the port can be had, if one is asked for.
    port: Option<(u16, Result<(), io::Error>)>,
    data: Vec<(PathBuf, DataFile)>,
    rooms: Vec<Room>,
}

/// A directory that files are made in, or that has one that grows.
#[derive(Debug)]
struct Room {
    directory: PathBuf,
    /// Tells file systems apart.
    device: u64,
    need: Bytes,
    free: Bytes,
    remedy: &'static str,
}

/// What is at the data file's path.
#[derive(Debug)]
enum DataFile {
    /// Nothing, in a directory that exists.
    Absent,
    /// A symbolic link to nothing.
    Link(PathBuf),
    /// A file or a block device that can be written.
    Usable(Bytes),
    /// Neither.
    Other,
    /// A block device, where files are needed beside it.
    OneDevice,
    Unusable(io::Error),
}

/// Looks at the machine, which is to run all of these at the same time.
///
/// # Errors
/// [`Refusal`]: they would not run. Nothing was made.
pub(crate) fn check(sites: &[Site]) -> Result<(), Refusal> {
    let memories: Vec<Bytes> = sites.iter().map(|site| site.options.memory).collect();
    decide(&memories, look(sites)?)
}

/// The control plane's memory stands first.
fn decide(memories: &[Bytes], host: Host) -> Result<(), Refusal> {
    fits(memories, host.available)?;
    if let Some((port, Err(source))) = host.port {
        return Err(Refusal::Port { port, source });
    }
    for (path, file) in host.data {
        take(path, file)?;
    }
    enough(host.rooms)
}

fn fits(memories: &[Bytes], available: Bytes) -> Result<(), Refusal> {
    let (control_plane, workers) = memories.split_at(1.min(memories.len()));
    if let Some(memory) = control_plane.iter().copied().find(|memory| *memory < LEAST_MEMORY) {
        return Err(Refusal::LittleMemory { memory });
    }
    if let Some(memory) = workers.iter().copied().find(|memory| *memory < LEAST_WORKER_MEMORY) {
        return Err(Refusal::LittleWorkerMemory { memory });
    }
    let memory = memories.iter().fold(Bytes::ZERO, |sum, memory| sum.saturating_add(*memory));
    let mut overhead = memories.iter().fold(Bytes::ZERO, |sum, _| sum.saturating_add(OVERHEAD));
    if !workers.is_empty() {
        overhead = overhead.saturating_add(SEGMENT);
    }
    match memories.len() {
        _ if memory.saturating_add(overhead) <= available => Ok(()),
        1 => Err(Refusal::Memory { memory, available }),
        guests => Err(Refusal::Memories { guests, memory, overhead, available }),
    }
}

fn take(path: PathBuf, file: DataFile) -> Result<(), Refusal> {
    match file {
        DataFile::Usable(size) if size < LEAST_DATA => Err(Refusal::Data { path, source: DataRefusal::Small { size } }),
        DataFile::Absent | DataFile::Usable(_) => Ok(()),
        DataFile::Link(target) => Err(Refusal::Data { path, source: DataRefusal::Link { target } }),
        DataFile::Other => Err(Refusal::Data { path, source: DataRefusal::Kind }),
        DataFile::OneDevice => Err(Refusal::Data { path, source: DataRefusal::OneDevice }),
        DataFile::Unusable(source) => Err(Refusal::Data { path, source: DataRefusal::Open(source) }),
    }
}

/// Directories of one file system share its room.
fn enough(rooms: Vec<Room>) -> Result<(), Refusal> {
    let of = |device| rooms.iter().filter(|room| room.device == device).map(|room| room.need).sum::<Bytes>();
    let needs: Vec<Bytes> = rooms.iter().map(|room| of(room.device)).collect();
    match rooms.into_iter().zip(needs).find(|(room, need)| *need > room.free) {
        Some((Room { directory, free, remedy, .. }, need)) => Err(Refusal::Room { directory, need, free, remedy }),
        None => Ok(()),
    }
}

fn look(sites: &[Site]) -> Result<Host, Refusal> {
    let files = sites.iter().flat_map(|site| match &site.options.boot {
        Boot::Kernel => {
            let image = &site.options.image;
            vec![&image.kernel, &image.initramfs, &image.system, &image.command_line]
        }
        Boot::Firmware(disk) => vec![disk],
    });
    for path in files {
        fs::File::open(path).map_err(|source| Refusal::Look { path: path.clone(), source })?;
    }
    let meminfo = Path::new("/proc/meminfo");
    let available = fs::read_to_string(meminfo)
        .and_then(|text| {
            kerneltext::size(&text, "MemAvailable:").ok_or_else(|| io::Error::other("it has no line MemAvailable"))
        })
        .map_err(|source| Refusal::Look { path: meminfo.into(), source })?;
    let port = sites.iter().find_map(|site| site.options.port).map(|port| {
        let port = port.get();
        (port, TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map(drop))
    });
    let data = sites.iter().filter_map(|site| match &site.options.data {
        Data::Temporary => None,
        Data::File(path) if sites.len() > 1 && is_block_device(path) => Some((path.clone(), DataFile::OneDevice)),
        Data::File(path) => Some((path.clone(), data_file(path))),
    });
    let data = data.collect();
    let rooms = sites.iter().map(|site| rooms(&site.options)).collect::<Result<Vec<_>, _>>()?;
    Ok(Host { available, port, data, rooms: rooms.into_iter().flatten().collect() })
}

fn rooms(options: &Options) -> Result<Vec<Room>, Refusal> {
    let copied = match (&options.boot, &options.data) {
        (Boot::Firmware(image), Data::Temporary) => allocated(image),
        (Boot::Firmware(_) | Boot::Kernel, _) => Bytes::ZERO,
    };
    let (temporary, kept) = match &options.data {
        Data::Temporary => (LEAST_DATA, None),
        Data::File(path) => (Bytes::ZERO, Some((path, LEAST_DATA.saturating_sub(allocated(path))))),
    };
    let mut rooms = vec![room(&options.state, [SMALL_FILES, temporary, copied].iter().sum(), "with TMPDIR")?];
    // What is wrong with the path itself is told of the file.
    if let Some((path, need)) = kept
        && !is_block_device(path)
        && let Some(directory) = directory_of(path).filter(|directory| directory.is_dir())
    {
        rooms.push(room(directory, need, "with --data")?);
    }
    Ok(rooms)
}

fn is_block_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device())
}

fn room(directory: &Path, need: Bytes, remedy: &'static str) -> Result<Room, Refusal> {
    let failed = |source: io::Error| Refusal::Look { path: directory.into(), source };
    let device = fs::metadata(directory).map_err(failed)?.dev();
    let system = nix::sys::statvfs::statvfs(directory).map_err(|errno| failed(errno.into()))?;
    let free = Bytes::new(system.blocks_available().saturating_mul(system.fragment_size()));
    Ok(Room { directory: directory.into(), device, need, free, remedy })
}

/// What a file takes of its file system now; nothing if it is not there.
fn allocated(path: &Path) -> Bytes {
    // In units of 512 bytes, stat(2).
    fs::metadata(path).map_or(Bytes::ZERO, |metadata| Bytes::new(metadata.blocks().saturating_mul(512)))
}

fn data_file(path: &Path) -> DataFile {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return absent(path),
        Err(error) => return DataFile::Unusable(error),
    };
    let kind = metadata.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return DataFile::Other;
    }
    // The end of a block device is found by seeking: its length says 0.
    let size = OpenOptions::new().read(true).write(true).open(path).and_then(|mut file| {
        use io::Seek;
        file.seek(io::SeekFrom::End(0))
    });
    size.map_or_else(DataFile::Unusable, |size| DataFile::Usable(Bytes::new(size)))
}

fn absent(path: &Path) -> DataFile {
    let Some(directory) = directory_of(path) else { return DataFile::Other };
    // `O_EXCL` does not make what a link leads to, open(2).
    if let Ok(target) = fs::read_link(path) {
        // A relative one begins in the link's directory, symlink(7).
        return DataFile::Link(directory.join(target));
    }
    match nix::unistd::access(directory, nix::unistd::AccessFlags::W_OK) {
        Ok(()) => DataFile::Absent,
        Err(errno) => DataFile::Unusable(errno.into()),
    }
}

fn directory_of(path: &Path) -> Option<&Path> {
    let directory = path.parent()?;
    Some(if directory.as_os_str().is_empty() { Path::new(".") } else { directory })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENOUGH: Bytes = Bytes::new(16 << 30);

    fn host() -> Host {
        Host { available: ENOUGH, port: None, data: Vec::new(), rooms: Vec::new() }
    }

    fn with_data(file: DataFile) -> Host {
        Host { data: vec![("data.img".into(), file)], ..host() }
    }

    #[test]
    fn a_machine_with_everything_is_taken() {
        let port = Some((6443, Ok(())));
        assert!(decide(&[Bytes::new(2 << 30)], Host { port, ..with_data(DataFile::Absent) }).is_ok());
    }

    #[test]
    fn too_little_free_memory_is_refused_with_the_figures() {
        let available = Bytes::new(2 << 30);
        let refusal = decide(&[Bytes::new(2 << 30)], Host { available, ..host() }).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "the guest's 2 GiB and QEMU's 320 MiB do not fit in the 2 GiB that are free; \
             end other programs or choose less with --memory (at least 1.25 GiB)"
        );
    }

    #[test]
    fn a_guest_that_could_not_run_is_refused() {
        assert!(matches!(decide(&[Bytes::new(512 << 20)], host()), Err(Refusal::LittleMemory { .. })));
    }

    #[test]
    fn the_memory_of_all_guests_counts() {
        let memories = [Bytes::new(2 << 30), Bytes::GIB, Bytes::GIB];
        assert!(fits(&memories, Bytes::new(5 << 30)).is_ok());
        assert_eq!(
            fits(&memories, Bytes::new(9 << 29)).unwrap_err().to_string(),
            "the 4 GiB of 3 guests and QEMU's 1 GiB do not fit in the 4.5 GiB that are free; end other programs, or choose \
             fewer --nodes, or less with --memory (at least 1.25 GiB) and --worker-memory (at least 768 MiB)"
        );
    }

    #[test]
    fn a_worker_needs_less_than_a_control_plane() {
        let least = [LEAST_MEMORY, LEAST_WORKER_MEMORY];
        assert!(fits(&least, ENOUGH).is_ok());
        let less = [LEAST_MEMORY, Bytes::new(LEAST_WORKER_MEMORY.get() - 1)];
        assert!(matches!(fits(&less, ENOUGH), Err(Refusal::LittleWorkerMemory { .. })));
        assert!(matches!(fits(&[LEAST_WORKER_MEMORY], ENOUGH), Err(Refusal::LittleMemory { .. })));
    }

    #[test]
    fn a_device_cannot_be_the_disk_of_several_nodes() {
        let refusal = decide(&[Bytes::new(2 << 30)], with_data(DataFile::OneDevice));
        assert!(matches!(refusal, Err(Refusal::Data { source: DataRefusal::OneDevice, .. })));
    }

    #[test]
    fn a_taken_port_is_refused() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let second = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map(drop);
        let refusal = decide(&[Bytes::new(2 << 30)], Host { port: Some((port, second)), ..host() }).unwrap_err();
        assert!(matches!(refusal, Refusal::Port { port: refused, .. } if refused == port), "{refusal}");
    }

    #[test]
    fn a_small_data_file_is_refused() {
        let refusal = decide(&[Bytes::new(2 << 30)], with_data(DataFile::Usable(Bytes::MIB)));
        assert!(matches!(refusal, Err(Refusal::Data { source: DataRefusal::Small { .. }, .. })));
    }

    fn a_room(directory: &str, device: u64, need: u64, free: u64) -> Room {
        let mebi = |count| Bytes::new(count << 20);
        Room { directory: directory.into(), device, need: mebi(need), free: mebi(free), remedy: "with TMPDIR" }
    }

    #[test]
    fn a_full_disk_is_refused_with_the_figures_and_another_place() {
        let rooms = vec![a_room("/tmp", 1, 1088, 512)];
        assert_eq!(
            decide(&[Bytes::new(2 << 30)], Host { rooms, ..host() }).unwrap_err().to_string(),
            "a run can write 1.06 GiB (1140850688 B) to /tmp, which has 512 MiB free; free some, or choose another \
             place with TMPDIR"
        );
    }

    #[test]
    fn directories_of_one_file_system_share_its_room() {
        assert!(enough(vec![a_room("/tmp", 1, 600, 1000), a_room("/home", 2, 600, 1000)]).is_ok());
        let shared = enough(vec![a_room("/tmp", 1, 600, 1000), a_room("/home", 1, 600, 1000)]);
        assert!(matches!(shared, Err(Refusal::Room { need, .. }) if need == Bytes::new(1200 << 20)), "{shared:?}");
    }

    #[test]
    fn a_file_needs_no_room_for_what_it_has() {
        use crate::options::Image;
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data.img");
        let nothing = || Path::new("/dev/null").to_path_buf();
        let image = Image { kernel: nothing(), initramfs: nothing(), system: nothing(), command_line: nothing() };
        let mut options = Options::new(image, directory.path());
        let needs =
            |options: &Options| -> Vec<Bytes> { rooms(options).unwrap().iter().map(|room| room.need).collect() };
        assert_eq!(needs(&options), [SMALL_FILES.saturating_add(LEAST_DATA)]);
        options.data = Data::File(data.clone());
        assert_eq!(needs(&options), [SMALL_FILES, LEAST_DATA]);
        fs::write(&data, vec![1; 8 << 20]).unwrap();
        fs::File::open(&data).unwrap().sync_all().unwrap();
        assert!(needs(&options)[1] <= Bytes::new((1 << 30) - (8 << 20)), "{:?}", needs(&options));
    }

    #[test]
    fn a_data_file_in_a_missing_directory_is_unusable_and_not_made() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("missing/data.img");
        assert!(matches!(data_file(&path), DataFile::Unusable(error) if error.kind() == io::ErrorKind::NotFound));
        assert!(!path.parent().unwrap().exists());
    }

    #[test]
    fn a_directory_is_no_data_file() {
        let directory = tempfile::tempdir().unwrap();
        assert!(matches!(data_file(directory.path()), DataFile::Other));
    }

    #[test]
    fn a_data_file_that_can_be_made_is_not_made_by_looking() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("data.img");
        assert!(matches!(data_file(&path), DataFile::Absent));
        assert!(!path.exists());
    }

    #[test]
    fn a_link_to_nothing_is_refused_with_what_it_leads_to() {
        let directory = tempfile::tempdir().unwrap();
        let (path, target) = (directory.path().join("data.img"), directory.path().join("disks/gone.img"));
        fs::create_dir(directory.path().join("disks")).unwrap();
        for written in [&*target, Path::new("disks/gone.img")] {
            std::os::unix::fs::symlink(written, &path).unwrap();
            let refusal = take(path.clone(), data_file(&path)).unwrap_err();
            assert_eq!(refusal.to_string(), format!("cannot use data file {}", path.display()));
            let Refusal::Data { source, .. } = refusal else { panic!("{refusal:?}") };
            assert_eq!(
                source.to_string(),
                format!(
                    "it is a symbolic link to {}, which is not there; make that file with truncate --size=8G, or remove \
                     the link",
                    target.display()
                )
            );
            fs::File::create_new(&target).unwrap().set_len(LEAST_DATA.get()).unwrap();
            assert!(matches!(data_file(&path), DataFile::Usable(LEAST_DATA)));
            fs::remove_file(&target).unwrap();
            fs::remove_file(&path).unwrap();
        }
    }
}
