//! Takes snapshots of filesystem volumes with many files while a pod writes.

use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bench::{Changed, PauseSample, print};
use dir::Dir;
use ktest_support::XfsDisk;
use nix::unistd::syncfs;
use units::{Bytes, Inodes};
use volume::{FrozenPods, Mode, PodFreezer, Settings, SnapshotRequest, Store, VolumeId, Volumes as _};

use crate::call::{CallError, arrange};
use crate::cgroup::{self, Cgroup, Place};
use crate::snapshots::snapshot_of;
use crate::volumes::{open_with, request};

/// Sizes of the files in bytes. The large files are 128 times as large as the small ones.
const SIZES: [u64; 2] = [8 << 10, 1 << 20];
const PER_DIRECTORY: u32 = 100;
const BLOCK: [u8; 4096] = [0x5a; 4096];
/// Limit of the pause that is never reached, because the benchmark measures the pause.
const BUDGET: Duration = Duration::from_secs(600);

/// Takes a snapshot of each kind `runs` times, and prints the samples.
pub(crate) fn measure(runs: u32, files: u32) -> Result<(), CallError> {
    let xfs = XfsDisk::with_project_quota();
    let store = open_with(xfs.path(), Settings { pass: Duration::ZERO, ..Settings::default() })?;
    let cgroup = Cgroup::make()?;
    let processes = cgroup.path().join("cgroup.procs");
    let [small, large] = SIZES.map(|size| Source::create(&store, size, files));
    let (small, large) = (small?, large?);
    // This copy is not counted. The large files have replaced the small ones in the page cache, so the first copy took
    // twice as long.
    small.copy(&xfs.path().join("copy"))?;
    for run in 1..=runs {
        for source in [&small, &large] {
            for changed in Changed::ALL {
                // A copy of the large files takes minutes, and the limit that matters is that of the small files.
                let copied =
                    if source.size == small.size { Some(source.copy(&xfs.path().join("copy"))?) } else { None };
                let pod = cgroup.start("pod", &source.top().join("0/0"), || {
                    fs::read(&processes).is_ok_and(|text| !text.is_empty())
                })?;
                let (passes, phases) = source.snapshot(&store, &cgroup, changed)?;
                drop(pod);
                print(&PauseSample {
                    changed,
                    run,
                    files,
                    size: source.size,
                    passes_us: microseconds(passes)?,
                    freeze_us: microseconds(phases.freeze)?,
                    clone_us: microseconds(phases.clone)?,
                    thaw_us: microseconds(phases.thaw)?,
                    copy_us: copied.map(microseconds).transpose()?,
                })?;
            }
        }
    }
    Ok(())
}

/// The pod's process: enters the cgroup and writes to a file of its volume.
pub(crate) fn write(Place { cgroup, file }: &Place) -> Result<(), CallError> {
    let opened = File::options().write(true).open(file).map_err(arrange("open", file))?;
    cgroup::enter(cgroup)?;
    loop {
        opened.write_all_at(&BLOCK, 0).map_err(arrange("write", file))?;
        thread::sleep(Duration::from_millis(1));
    }
}

/// A volume with files of one size.
struct Source {
    id: VolumeId,
    directory: Dir,
    size: u64,
    files: u32,
}

impl Source {
    fn create(store: &Store, size: u64, files: u32) -> Result<Self, CallError> {
        let id: VolumeId = format!("pvc-files-{size}").parse()?;
        let mode = Mode::Filesystem { inodes: Inodes::new(u64::from(files) * 2) };
        // A file that changes temporarily occupies its blocks twice.
        let bytes = Bytes::new(size * u64::from(files) * 5 / 4 + (64 << 20));
        store.provision(&id, &request(&id, mode, bytes))?;
        store.announce(&id)?;
        let source = Self { directory: store.open_volume(&id)?.into_dir(), id, size, files };
        source.fill().map_err(arrange("fill", &source.top()))?;
        Ok(source)
    }

    /// Path of the volume's directory that other processes can also open.
    fn top(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", process::id(), self.directory.as_fd().as_raw_fd()).into()
    }

    fn fill(&self) -> io::Result<()> {
        let data = vec![1; usize::try_from(self.size).map_err(io::Error::other)?];
        create_directories(&self.top(), self.files)?;
        names(self.files).try_for_each(|name| fs::write(self.top().join(name), &data))?;
        sync(&self.top())
    }

    /// Duration of a recursive copy. `std::fs::copy` would share the blocks.
    fn copy(&self, target: &Path) -> Result<Duration, CallError> {
        let begun = Instant::now();
        fs::create_dir(target)?;
        create_directories(target, self.files)?;
        let copy = |name: String| fs::write(target.join(&name), fs::read(self.top().join(&name))?);
        names(self.files).try_for_each(copy).and_then(|()| sync(target)).map_err(arrange("copy into", target))?;
        let copied = begun.elapsed();
        fs::remove_dir_all(target).map_err(arrange("remove", target))?;
        Ok(copied)
    }

    /// Takes and removes a snapshot. Returns the duration of the passes while the pod runs, and the phases of the
    /// pause.
    fn snapshot(&self, store: &Store, cgroup: &Cgroup, changed: Changed) -> Result<(Duration, Phases), CallError> {
        let phases = Arc::default();
        let freezer: Arc<dyn PodFreezer> = Arc::new(Stopwatch {
            cgroup: cgroup.path().to_owned(),
            top: self.top(),
            files: self.files,
            changed,
            phases: Arc::clone(&phases),
        });
        store.freeze_by(Arc::downgrade(&freezer));
        let (snapshot, want) = snapshot_of(&self.id)?;
        let want = SnapshotRequest { max_pause: BUDGET, ..want };
        let begun = Instant::now();
        store.take_snapshot(&snapshot, &want)?;
        store.remove_snapshot(&snapshot)?;
        let phases = phases.lock().unwrap_or_else(PoisonError::into_inner).take();
        let phases = phases.ok_or("the snapshot did not stop the pod")?;
        Ok((phases.called.duration_since(begun), phases))
    }
}

#[derive(Debug)]
struct Phases {
    /// End of the passes that ran while the pod ran.
    called: Instant,
    freeze: Duration,
    clone: Duration,
    thaw: Duration,
}

/// Stops the pod and measures the duration.
#[derive(Debug)]
struct Stopwatch {
    cgroup: PathBuf,
    top: PathBuf,
    files: u32,
    changed: Changed,
    phases: Arc<Mutex<Option<Phases>>>,
}

struct Frozen {
    frozen: freezer::Frozen,
    called: Instant,
    since: Instant,
    phases: Arc<Mutex<Option<Phases>>>,
}

impl Stopwatch {
    fn change_all(&self) -> io::Result<()> {
        for name in names(self.files) {
            File::options().write(true).open(self.top.join(name))?.write_all_at(&BLOCK, 0)?;
        }
        sync(&self.top)
    }
}

impl PodFreezer for Stopwatch {
    fn freeze(&self, _: &[VolumeId], budget: Duration) -> Result<Box<dyn FrozenPods>, Box<dyn Error + Send + Sync>> {
        let called = Instant::now();
        if self.changed == Changed::All {
            self.change_all().map_err(arrange("write the files of", &self.top))?;
        }
        let mut guard = Command::new("/proc/self/exe");
        guard.arg("guard");
        let frozen = freezer::freeze(guard, &[&self.cgroup], budget)?;
        Ok(Box::new(Frozen { frozen, called, since: Instant::now(), phases: Arc::clone(&self.phases) }))
    }
}

impl FrozenPods for Frozen {
    fn deadline(&self) -> Option<Instant> {
        Some(self.frozen.deadline())
    }

    fn thaw(self: Box<Self>) -> Result<(), Box<dyn Error + Send + Sync>> {
        let Self { frozen, called, since, phases } = *self;
        let clone = since.elapsed();
        let pause = frozen.thaw()?;
        let thaw = pause.total.saturating_sub(pause.freeze).saturating_sub(clone);
        *phases.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Phases { called, freeze: pause.freeze, clone, thaw });
        Ok(())
    }
}

fn names(files: u32) -> impl Iterator<Item = String> {
    (0..files).map(|number| format!("{}/{}", number / PER_DIRECTORY, number % PER_DIRECTORY))
}

fn create_directories(top: &Path, files: u32) -> io::Result<()> {
    (0..files.div_ceil(PER_DIRECTORY)).try_for_each(|number| fs::create_dir(top.join(number.to_string())))
}

fn sync(directory: &Path) -> io::Result<()> {
    Ok(syncfs(File::open(directory)?)?)
}

fn microseconds(time: Duration) -> Result<u64, std::num::TryFromIntError> {
    time.as_micros().try_into()
}
