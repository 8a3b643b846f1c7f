//! Direct I/O of a disk, of a file on XFS, and of a loop device with this file as its backing file.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use bench::{Access, IoSample, Target, print};
use ktest_support::random::Random;
use ktest_support::{Disk, XfsDisk};
use loopdev::{Control, Detach};
use nix::fcntl::OFlag;

use crate::call::{CallError, arrange};
use crate::loops::CONFIG;

const BLOCK: u64 = 4096;
const BYTES: usize = 4096;

/// Size of the file and of the part of the disk that is used. All blocks are written in advance, so that no run
/// allocates.
const SIZE: u64 = 256 << 20;

const THREADS: [u32; 2] = [1, 4];

/// `O_DIRECT` requires memory that is aligned to the disk's blocks.
#[repr(align(4096))]
struct Block([u8; BYTES]);

pub(crate) fn measure_in_vm(runs: u32, milliseconds: u64) -> Result<(), CallError> {
    let (disk, xfs) = (Disk::take(), XfsDisk::with_project_quota());
    fill(disk.path())?;
    let path = xfs.path().join("image");
    let image = File::options().read(true).write(true).create_new(true).open(&path);
    measure(Some(disk.path()), &path, &image.map_err(arrange("create", &path))?, runs, milliseconds)
}

/// Measures a file in a directory of this machine. The file has no name, so that the measurement leaves nothing behind.
pub(crate) fn measure_in(directory: &Path, runs: u32, milliseconds: u64) -> Result<(), CallError> {
    let image = OpenOptions::new().read(true).write(true).custom_flags(OFlag::O_TMPFILE.bits()).open(directory);
    let image = image.map_err(arrange("create a file in", directory))?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", image.as_raw_fd()));
    measure(None, &path, &image, runs, milliseconds)
}

/// Measures `runs` times, `milliseconds` for each figure, and prints the samples.
fn measure(disk: Option<&Path>, path: &Path, image: &File, runs: u32, milliseconds: u64) -> Result<(), CallError> {
    nix::fcntl::fallocate(image, nix::fcntl::FallocateFlags::empty(), 0, i64::try_from(SIZE)?)?;
    fill(path)?;
    let device = Control::open()?.attach(image, &CONFIG)?;
    if !device.config()?.direct_io {
        return Err("the loop device has no direct I/O".into());
    }
    let node = device.path();
    for run in 1..=runs {
        for access in Access::ALL {
            for threads in THREADS {
                for target in Target::ALL {
                    let path = match (target, disk) {
                        (Target::Disk, None) => continue,
                        (Target::Disk, Some(disk)) => disk,
                        (Target::File, _) => path,
                        (Target::Loop, _) => &node,
                    };
                    let begun = Instant::now();
                    let mut times = all_threads(path, access, threads, Duration::from_millis(milliseconds))?;
                    let elapsed_us = u64::try_from(begun.elapsed().as_micros())?;
                    times.sort_unstable();
                    let at = |hundredth| times.get(times.len() * hundredth / 100).copied().unwrap_or_default();
                    let (median_ns, high_ns) = (at(50), at(99));
                    let operations = u64::try_from(times.len())?;
                    print(&IoSample { target, access, threads, run, operations, elapsed_us, median_ns, high_ns })?;
                }
            }
        }
    }
    if device.detach(image)? != Detach::Detached {
        return Err("the loop device is in use by another process".into());
    }
    Ok(())
}

/// Nanoseconds of each operation, of all threads.
fn all_threads(path: &Path, access: Access, threads: u32, limit: Duration) -> Result<Vec<u64>, CallError> {
    let results: Vec<_> = thread::scope(|scope| {
        let started: Vec<_> =
            (1..=threads).map(|seed| scope.spawn(move || one_thread(path, access, seed, limit))).collect();
        started.into_iter().map(thread::ScopedJoinHandle::join).collect()
    });
    let mut times = Vec::new();
    for result in results {
        let result = result.map_err(|_| "a thread panicked")?;
        times.extend(result.map_err(arrange("read or write", path))?);
    }
    Ok(times)
}

fn one_thread(path: &Path, access: Access, seed: u32, limit: Duration) -> io::Result<Vec<u64>> {
    let file = open_direct(path)?;
    let mut block = Box::new(Block([0x5a; BYTES]));
    // Random offsets defeat caches. The seed makes them the same in each run.
    let (mut times, mut random) = (Vec::new(), Random::from_seed(u64::from(seed)));
    let begun = Instant::now();
    while begun.elapsed() < limit {
        let offset = random.number() % (SIZE / BLOCK) * BLOCK;
        let start = Instant::now();
        match access {
            Access::Read => file.read_exact_at(&mut block.0, offset)?,
            Access::Write => file.write_all_at(&block.0, offset)?,
        }
        times.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    Ok(times)
}

fn fill(path: &Path) -> Result<(), CallError> {
    let write = || {
        let mut file = open_direct(path)?;
        let block = Box::new(Block([0xa5; BYTES]));
        (0..SIZE / BLOCK).try_for_each(|_| file.write_all(&block.0))?;
        file.sync_all()
    };
    write().map_err(arrange("fill", path))
}

fn open_direct(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(OFlag::O_DIRECT.bits()).open(path)
}
