//! Faults of the data disk. The kernel has no counter of failed requests for virtio and NVMe disks, but logs them. NVMe
//! controllers also report warnings.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::num::{NonZeroU32, NonZeroU64};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use localstorage::{FindError, SmartWarnings, sysfs};
use nix::libc::dev_t;
use nix::sys::stat::fstat;
use nodelog::{Origin, Record, Sink};
use tracing::warn;
use volume::{DiskFault, DiskObserver};

const BLOCKS: &str = "/sys/block";

/// Maximum age of cached warnings. Each statistics call of a volume uses the warnings.
const FRESH: Duration = Duration::from_mins(1);

#[derive(Debug, thiserror::Error)]
pub enum HealthError {
    #[error("cannot read the device of the data disk")]
    Device(#[source] io::Error),
    #[error("cannot list the disks in {BLOCKS}")]
    List(#[source] io::Error),
    #[error(transparent)]
    Find(#[from] FindError),
}

/// A consumer of the log, and an observer of the volumes. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct DiskHealth(Arc<Observed>);

#[derive(Debug, Default)]
struct Observed {
    disks: OnceLock<BTreeSet<String>>,
    failed_requests: AtomicU64,
    warnings: Mutex<Option<(Instant, Vec<DiskFault>)>>,
}

impl DiskHealth {
    /// Observes the disks of this file system. The log contains all records since the boot: if its reader starts after
    /// this call, no failed request is missed.
    pub fn observe(&self, file_system: BorrowedFd<'_>) -> Result<(), HealthError> {
        let device = fstat(file_system).map_err(|errno| HealthError::Device(errno.into()))?.st_dev;
        let disks = disks(Path::new(BLOCKS), device)?;
        // Later calls keep the first disks: a node has one data disk.
        self.0.disks.get_or_init(|| disks);
        Ok(())
    }
}

impl Sink for DiskHealth {
    fn take(&self, record: &Record) {
        // Any process with write access to /dev/kmsg can imitate the text, but not the origin.
        if record.origin == Origin::Kernel
            && let Some(disks) = self.0.disks.get()
            && kernel::text::failed_disk(&record.message).is_some_and(|disk| disks.contains(disk))
        {
            self.0.failed_requests.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl DiskObserver for DiskHealth {
    fn faults(&self) -> Vec<DiskFault> {
        let failed = NonZeroU64::new(self.0.failed_requests.load(Ordering::Relaxed)).map(DiskFault::Requests);
        failed.into_iter().chain(self.0.warnings()).collect()
    }
}

impl Observed {
    fn warnings(&self) -> Vec<DiskFault> {
        let mut last = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, warnings)) = &*last
            && at.elapsed() < FRESH
        {
            return warnings.clone();
        }
        let disks = self.disks.get().into_iter().flatten().filter(|disk| disk.starts_with("nvme"));
        let warnings: Vec<_> = disks.filter_map(|disk| warning(disk)).collect();
        *last = Some((Instant::now(), warnings.clone()));
        warnings
    }
}

fn warning(disk: &str) -> Option<DiskFault> {
    let opened = File::open(Path::new("/dev").join(disk));
    match opened.and_then(|device| Ok(SmartWarnings::read(device)?)) {
        Ok(found) => {
            let count = NonZeroU32::new(found.count())?;
            Some(DiskFault::Warnings { count, text: format!("{disk}: {found}") })
        }
        Err(error) => {
            warn!(disk, %error, "cannot read the critical warnings of the disk");
            None
        }
    }
}

/// Names of the disks that contain this device, also through stacked devices.
fn disks(blocks: &Path, device: dev_t) -> Result<BTreeSet<String>, HealthError> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(blocks).map_err(HealthError::List)? {
        let disk = entry.map_err(HealthError::List)?;
        if sysfs::holds(&disk.path(), device)? {
            // sysfs replaces `/` in names by `!`.
            found.insert(disk.file_name().to_string_lossy().replace('!', "/"));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::makedev;
    use tracing::Level;

    use super::*;

    #[test]
    fn a_partition_is_on_its_disk() {
        let blocks = tempfile::tempdir().unwrap();
        for (device, number) in [("sda", "8:0"), ("sda/sda4", "8:4"), ("sdb", "8:16")] {
            let place = blocks.path().join(device);
            fs::create_dir_all(&place).unwrap();
            fs::write(place.join("dev"), number).unwrap();
        }
        fs::write(blocks.path().join("sda/sda4/partition"), "4\n").unwrap();
        let sda = BTreeSet::from(["sda".to_owned()]);
        assert_eq!(disks(blocks.path(), makedev(8, 4)).unwrap(), sda);
        assert_eq!(disks(blocks.path(), makedev(8, 0)).unwrap(), sda);
    }

    #[test]
    fn only_the_kernels_errors_of_the_data_disk_are_counted() {
        let health = DiskHealth::default();
        health.0.disks.set(["vdb".to_owned()].into()).unwrap();
        assert_eq!(health.faults(), []);
        let error =
            |disk| format!("I/O error, dev {disk}, sector 8 op 0x1:(WRITE) flags 0x800 phys_seg 1 prio class 2");
        for (origin, disk) in [(Origin::Kernel, "vdb"), (Origin::Kernel, "vda"), (Origin::Kmsg, "vdb")] {
            health.take(&Record::now(Level::ERROR, origin, error(disk)));
        }
        assert_eq!(health.faults(), [DiskFault::Requests(NonZeroU64::MIN)]);
    }
}
