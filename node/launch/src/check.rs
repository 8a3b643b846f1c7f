//! Whether the machine can run the node: looked at before anything is made.

use crate::options::{Boot, Data, Options};
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
    /// The guest would not run with so little.
    #[error("the node does not run with {memory} of memory; choose at least {LEAST_MEMORY} with --memory")]
    LittleMemory {
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
    data: Option<(PathBuf, DataFile)>,
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
    /// A file or a block device that can be written.
    Usable(Bytes),
    /// Neither.
    Other,
    Unusable(io::Error),
}

/// Looks at the machine.
///
/// # Errors
/// [`Refusal`]: the node would not run. Nothing was made.
pub(crate) fn check(options: &Options) -> Result<(), Refusal> {
    decide(options.memory, look(options)?)
}

fn decide(memory: Bytes, host: Host) -> Result<(), Refusal> {
    if memory < LEAST_MEMORY {
        return Err(Refusal::LittleMemory { memory });
    }
    if memory.saturating_add(OVERHEAD) > host.available {
        return Err(Refusal::Memory { memory, available: host.available });
    }
    if let Some((port, Err(source))) = host.port {
        return Err(Refusal::Port { port, source });
    }
    if let Some((path, file)) = host.data {
        take(path, file)?;
    }
    enough(host.rooms)
}

fn take(path: PathBuf, file: DataFile) -> Result<(), Refusal> {
    match file {
        DataFile::Usable(size) if size < LEAST_DATA => Err(Refusal::Data { path, source: DataRefusal::Small { size } }),
        DataFile::Absent | DataFile::Usable(_) => Ok(()),
        DataFile::Other => Err(Refusal::Data { path, source: DataRefusal::Kind }),
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

fn look(options: &Options) -> Result<Host, Refusal> {
    let image = &options.image;
    let files = match &options.boot {
        Boot::Kernel => vec![&image.kernel, &image.initramfs, &image.system, &image.command_line],
        Boot::Firmware(disk) => vec![disk],
    };
    for path in files {
        fs::File::open(path).map_err(|source| Refusal::Look { path: path.clone(), source })?;
    }
    let meminfo = Path::new("/proc/meminfo");
    let available = fs::read_to_string(meminfo)
        .and_then(|text| available(&text).ok_or_else(|| io::Error::other("it has no line MemAvailable")))
        .map_err(|source| Refusal::Look { path: meminfo.into(), source })?;
    let port = options.port.map(|port| {
        let port = port.get();
        (port, TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map(drop))
    });
    let data = match &options.data {
        Data::Temporary => None,
        Data::File(path) => Some((path.clone(), data_file(path))),
    };
    Ok(Host { available, port, data, rooms: rooms(options)? })
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
        && !path.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device())
        && let Some(directory) = directory_of(path).filter(|directory| directory.is_dir())
    {
        rooms.push(room(directory, need, "with --data")?);
    }
    Ok(rooms)
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

/// The line `MemAvailable:   123 kB` of proc_meminfo(5).
fn available(meminfo: &str) -> Option<Bytes> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Bytes::KIB.checked_mul(kilobytes)
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
    use proptest::prelude::*;

    const ENOUGH: Bytes = Bytes::new(16 << 30);

    fn host() -> Host {
        Host { available: ENOUGH, port: None, data: None, rooms: Vec::new() }
    }

    fn with_data(file: DataFile) -> Host {
        Host { data: Some(("data.img".into(), file)), ..host() }
    }

    #[test]
    fn a_machine_with_everything_is_taken() {
        let port = Some((6443, Ok(())));
        assert!(decide(Bytes::new(2 << 30), Host { port, ..with_data(DataFile::Absent) }).is_ok());
    }

    #[test]
    fn too_little_free_memory_is_refused_with_the_figures() {
        let available = Bytes::new(2 << 30);
        let refusal = decide(Bytes::new(2 << 30), Host { available, ..host() }).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "the guest's 2 GiB and QEMU's 320 MiB do not fit in the 2 GiB that are free; \
             end other programs or choose less with --memory (at least 1.25 GiB)"
        );
    }

    #[test]
    fn a_guest_that_could_not_run_is_refused() {
        assert!(matches!(decide(Bytes::new(512 << 20), host()), Err(Refusal::LittleMemory { .. })));
    }

    #[test]
    fn a_taken_port_is_refused() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let second = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map(drop);
        let refusal = decide(Bytes::new(2 << 30), Host { port: Some((port, second)), ..host() }).unwrap_err();
        assert!(matches!(refusal, Refusal::Port { port: refused, .. } if refused == port), "{refusal}");
    }

    #[test]
    fn a_small_data_file_is_refused() {
        let refusal = decide(Bytes::new(2 << 30), with_data(DataFile::Usable(Bytes::MIB)));
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
            decide(Bytes::new(2 << 30), Host { rooms, ..host() }).unwrap_err().to_string(),
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
    fn available_memory_is_read_in_kibibytes() {
        assert_eq!(available("MemTotal: 9 kB\nMemAvailable:   2048 kB\n"), Some(Bytes::new(2 << 20)));
        assert_eq!(available("MemTotal: 9 kB\n"), None);
    }

    proptest! {
        #[test]
        fn any_meminfo_is_read_or_refused(text in "(MemAvailable:)?[ 0-9a-zA-Z\n:]*") {
            _ = available(&text);
        }
    }
}
