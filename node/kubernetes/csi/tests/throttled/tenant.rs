//! A process of a pod: reads or writes its device for a while, and prints the rate.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::libc;

use super::sys::Mapping;

/// Duration of a measurement, and the tolerance of its result. The kernel throttles in slices of a tenth of a second,
/// and admits the I/O of one slice at once: 3 % of three seconds, 10 % of one second.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    seconds: u64,
    pub percent: u64,
}

impl Window {
    /// The accuracy that `docs/operations/io-limits.md` documents.
    pub const DOCUMENTED: Self = Self { seconds: 3, percent: 5 };
    /// Long enough to find which limit applies.
    pub const SHORT: Self = Self { seconds: 1, percent: 15 };
}

const CGROUP: &str = "TENANT_CGROUP";
const DEVICE: &str = "TENANT_DEVICE";
const WORK: &str = "TENANT_WORK";
const SECONDS: &str = "TENANT_SECONDS";

const MIB: usize = 1 << 20;
/// Size of the part of the device that a kind of work uses.
const PART: usize = 16 * MIB;

/// Buffer of one request, aligned for direct I/O.
#[repr(C, align(4096))]
struct Piece([u8; Piece::SIZE]);

impl Piece {
    const SIZE: usize = 64 << 10;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    DirectWrites,
    DirectReads,
    /// Writes to the page cache, each with a sync.
    Writes,
    /// Reads of data that is not in the page cache, without read-ahead.
    Reads,
    /// Writes through a mapping, each with a sync.
    MappedWrites,
    /// As [`Self::Reads`], through a mapping.
    MappedReads,
    SmallDirectWrites,
    SmallDirectReads,
}

impl Work {
    const ALL: [Self; 8] = [
        Self::DirectWrites,
        Self::DirectReads,
        Self::Writes,
        Self::Reads,
        Self::MappedWrites,
        Self::MappedReads,
        Self::SmallDirectWrites,
        Self::SmallDirectReads,
    ];

    /// Bytes of an operation.
    pub const fn size(self) -> usize {
        match self {
            Self::DirectWrites | Self::DirectReads | Self::Reads | Self::MappedReads => Piece::SIZE,
            Self::Writes | Self::MappedWrites => MIB,
            Self::SmallDirectWrites | Self::SmallDirectReads => 4096,
        }
    }

    /// Whether the work reads through the page cache. No work writes to its part, so that all pages of the part are clean
    /// and can leave the cache.
    const fn reads_cache(self) -> bool {
        matches!(self, Self::Reads | Self::MappedReads)
    }

    const fn start(self) -> usize {
        if self.reads_cache() { PART } else { 0 }
    }

    const fn is_direct(self) -> bool {
        !matches!(self, Self::Writes | Self::Reads | Self::MappedWrites | Self::MappedReads)
    }

    /// Function that runs one operation at an offset of the device.
    fn operation(self, file: File) -> Box<dyn FnMut(usize)> {
        let mut piece = Box::new(Piece([7; Piece::SIZE]));
        let size = self.size();
        let at = |place: usize| u64::try_from(place).expect("small");
        if self.reads_cache() {
            let offset = |place: usize| libc::off_t::try_from(place).expect("small");
            let (start, length) = (offset(self.start()), offset(PART));
            let advise = |advice| posix_fadvise(&file, start, length, advice).expect("advise");
            advise(PosixFadviseAdvice::POSIX_FADV_DONTNEED);
            advise(PosixFadviseAdvice::POSIX_FADV_RANDOM);
        }
        match self {
            Self::DirectWrites | Self::SmallDirectWrites => {
                Box::new(move |place| file.write_all_at(&piece.0[..size], at(place)).expect("write"))
            }
            Self::Writes => {
                let text = vec![7; size];
                Box::new(move |place| {
                    file.write_all_at(&text, at(place)).and_then(|()| file.sync_data()).expect("write and sync");
                })
            }
            Self::DirectReads | Self::SmallDirectReads | Self::Reads => {
                Box::new(move |place| file.read_exact_at(&mut piece.0[..size], at(place)).expect("read"))
            }
            Self::MappedWrites => {
                // The first access to a page reads the page, unless the page cache has it.
                let mut mapping = Mapping::of(&file, PART.try_into().expect("not 0"));
                Box::new(move |place| mapping.write(place, size, 9))
            }
            Self::MappedReads => {
                let end = (self.start() + PART).try_into().expect("not 0");
                let mapping = Mapping::of(&file, end).without_read_ahead();
                Box::new(move |place| mapping.read(place, &mut piece.0[..size]))
            }
        }
    }
}

/// Runs the work in a copy of this program that [`tenant`] started, and returns true. Otherwise returns false.
pub fn work_if_started_so() -> bool {
    let (Some(cgroup), Some(device), Some(name)) = (env::var_os(CGROUP), env::var_os(DEVICE), env::var(WORK).ok())
    else {
        return false;
    };
    let seconds = env::var(SECONDS).ok().and_then(|text| text.parse().ok()).expect("a duration");
    let window = Duration::from_secs(seconds);
    fs::write(Path::new(&cgroup).join("cgroup.procs"), "0").expect("a process of the pod");
    let work = Work::ALL.into_iter().find(|work| format!("{work:?}") == name).expect("a kind of work");
    let flags = if work.is_direct() { libc::O_DIRECT } else { 0 };
    let device = OpenOptions::new().read(true).write(true).custom_flags(flags).open(device).expect("open");
    let (mut operation, mut number) = (work.operation(device), 0);
    // The first operation starts the kernel's accounting.
    operation(work.start());
    let begin = Instant::now();
    while begin.elapsed() < window {
        number += 1;
        operation(work.start() + number * work.size() % PART);
    }
    println!("\nrate {}", number as u128 * 1_000_000 / begin.elapsed().as_millis());
    true
}

/// Command of a process of the pod, which runs this test.
pub fn tenant(test: &str, cgroup: &Path, device: &Path, work: Work, window: Window) -> Command {
    let mut tenant = Command::new(env::current_exe().expect("this program"));
    tenant.args(["--exact", test, "--nocapture"]);
    tenant.env(CGROUP, cgroup).env(DEVICE, device).env(WORK, format!("{work:?}"));
    tenant.env(SECONDS, window.seconds.to_string());
    tenant
}

/// Number of operations of a process of the pod in 1000 seconds.
pub fn rate(test: &str, cgroup: &Path, device: &Path, work: Work, window: Window) -> u64 {
    let output = tenant(test, cgroup, device, work, window).output().expect("a process");
    let text = String::from_utf8_lossy(&output.stdout);
    let rate = text.lines().find_map(|line| line.strip_prefix("rate ")?.parse().ok());
    rate.unwrap_or_else(|| panic!("{text} {}", String::from_utf8_lossy(&output.stderr)))
}
