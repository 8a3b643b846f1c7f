//! Metrics of the disk and its volumes, read at each scrape.

use std::sync::{Mutex, PoisonError};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, IntGauge, IntGaugeVec, Opts};
use tracing::warn;
use units::Bytes;
use volume::{Mode, Overcommit, Space, State, VolumeUsage, Volumes};

use crate::error::Error;

/// Maximum number of volumes with series, which limits the size of a scrape. The first ones by name have series.
const MOST: usize = 5000;

const VOLUME: [&str; 4] = ["volume", "namespace", "claim", "mode"];

#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) space: Space,
    /// Sorted by name.
    pub(crate) volumes: Vec<VolumeUsage>,
    pub(crate) retired: usize,
}

impl Snapshot {
    /// Reads all quotas and one directory.
    pub(crate) fn of(volumes: &dyn Volumes) -> Result<Self, Error> {
        let mut found = volumes.usage()?;
        found.sort_by(|one, other| one.id.cmp(&other.id));
        Ok(Self { space: volumes.space()?, volumes: found, retired: volumes.retired()?.len() })
    }
}

pub(crate) struct Inventory<L> {
    read: L,
    /// The lock allows one scrape at a time.
    errors: Mutex<IntCounter>,
    descs: Vec<Desc>,
}

impl<L: Fn() -> Result<Snapshot, Error> + Send + Sync> Inventory<L> {
    /// `read` runs at each scrape.
    pub(crate) fn new(read: L) -> Result<Self, prometheus::Error> {
        let errors = IntCounter::new(
            "granary_volume_scrape_errors_total",
            "Scrapes that could not read the disk, without metrics of disk and volumes.",
        )?;
        let zero = Bytes::ZERO;
        let space = Space { size: zero, reserved: zero, reserve: zero, overcommit: Overcommit::NONE };
        let gauges = gauges(&Snapshot { space, volumes: Vec::new(), retired: 0 })?;
        let descs = gauges.iter().flat_map(|gauge| gauge.desc()).chain(errors.desc()).cloned().collect();
        Ok(Self { read, errors: Mutex::new(errors), descs })
    }
}

impl<L: Fn() -> Result<Snapshot, Error> + Send + Sync> Collector for Inventory<L> {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    /// No stale values: after an error, only the error counter is returned.
    fn collect(&self) -> Vec<MetricFamily> {
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        let read = || Ok::<_, Box<dyn std::error::Error>>(gauges(&(self.read)()?)?);
        match read() {
            Ok(gauges) => gauges.iter().flat_map(|gauge| gauge.collect()).chain(errors.collect()).collect(),
            Err(error) => {
                errors.inc();
                warn!(error = causes::of(&*error), "scrape of the disk failed, its metrics are missing");
                errors.collect()
            }
        }
    }
}

/// Gauges with these values.
fn gauges(found: &Snapshot) -> Result<Vec<Box<dyn Collector>>, prometheus::Error> {
    let Snapshot { space, volumes, retired } = found;
    let changed = volumes.iter().filter(|volume| volume.changed.is_some()).count();
    let mut all = Vec::<Box<dyn Collector>>::new();
    for (name, help, value) in [
        ("granary_disk_size_bytes", "Size of the data disk's file system.", bytes(space.size)),
        (
            "granary_disk_reserve_bytes",
            "Reserved for other data on the disk: images, logs, emptyDirs, etcd.",
            bytes(space.reserve),
        ),
        (
            "granary_disk_promisable_bytes",
            "Space for all volumes together: size times overcommit factor, less reserve.",
            bytes(space.overcommit.of(space.size).saturating_sub(space.reserve)),
        ),
        (
            "granary_disk_promised_bytes",
            "Space reserved for volumes, including their inodes or the extent maps of their images.",
            bytes(space.reserved),
        ),
        ("granary_disk_free_bytes", "Unreserved space for volumes.", bytes(space.free())),
        ("granary_volumes_retired", "Deleted volumes whose data is not removed yet.", count(*retired)),
        ("granary_volumes_limits_changed", "Volumes whose limits another program lifted or changed.", count(changed)),
    ] {
        let gauge = IntGauge::new(name, help)?;
        gauge.set(value);
        all.push(Box::new(gauge));
    }

    let vec = |name: &str, help: &str, labels: &[&str]| IntGaugeVec::new(Opts::new(name, help), labels);
    let states = vec(
        "granary_volumes",
        "Volumes and snapshots by mode and state; a staged one has no PV or is not ready, the blocks of a complete one are being copied.",
        &["mode", "state"],
    )?;
    let limit = vec("granary_volume_limit_bytes", "Size of a volume.", &VOLUME)?;
    let allocated = "Allocated space of a volume; that of a thick image is its size from the start.";
    let used_bytes = vec("granary_volume_used_bytes", allocated, &VOLUME)?;
    let most = "Maximum number of inodes of a filesystem volume.";
    let inode_limit = vec("granary_volume_limit_inodes", most, &VOLUME)?;
    let inodes_used = vec("granary_volume_used_inodes", "Inodes of a filesystem volume.", &VOLUME)?;
    for mode in ["filesystem", "block", "snapshot"] {
        for state in ["staged", "announced"] {
            states.with_label_values(&[mode, state]);
        }
    }
    states.with_label_values(&["snapshot", state(State::Complete)]);
    for VolumeUsage { record, .. } in volumes {
        states.with_label_values(&[kind(record.mode), state(record.state)]).inc();
    }
    for VolumeUsage { id, record, used, .. } in volumes.iter().take(MOST) {
        let labels = [id.as_str(), &record.claim.namespace, &record.claim.name, kind(record.mode)];
        limit.with_label_values(&labels).set(bytes(record.size));
        used_bytes.with_label_values(&labels).set(bytes(used.bytes));
        if let Mode::Filesystem { inodes } = record.mode {
            inode_limit.with_label_values(&labels).set(int(inodes.get()));
            inodes_used.with_label_values(&labels).set(int(used.inodes.get()));
        }
    }
    let of_volumes = [states, limit, used_bytes, inode_limit, inodes_used];
    all.extend(of_volumes.map(|gauge| Box::new(gauge) as Box<dyn Collector>));
    Ok(all)
}

const fn kind(mode: Mode) -> &'static str {
    match mode {
        Mode::Filesystem { .. } => "filesystem",
        Mode::Block { .. } => "block",
        Mode::Snapshot { .. } | Mode::SnapshotTree { .. } => "snapshot",
    }
}

const fn state(state: State) -> &'static str {
    match state {
        State::Staged => "staged",
        State::Complete => "complete",
        State::Announced => "announced",
    }
}

fn bytes(size: Bytes) -> i64 {
    int(size.get())
}

pub(crate) fn count(things: usize) -> i64 {
    i64::try_from(things).unwrap_or(i64::MAX)
}

fn int(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// A disk of 100 GiB with a filesystem volume, and a block volume that has no PV yet.
#[cfg(test)]
pub(crate) fn example() -> Snapshot {
    use fsquota::Usage;
    use units::Inodes;
    use volume::{Allocation, Claim, Record};

    use crate::fixture::{self, id};

    let volume = |name: &str, mode, state, used| VolumeUsage {
        id: id(&format!("pvc-{name}")),
        record: Record {
            claim: Claim { uid: name.into(), namespace: "shop".into(), name: name.into() },
            ..fixture::record(mode, state)
        },
        used,
        changed: None,
    };
    let files = Usage { bytes: Bytes::MIB, inodes: Inodes::new(3) };
    let image = Usage { bytes: Bytes::GIB, inodes: Inodes::new(2) };
    Snapshot {
        space: Space {
            size: Bytes::new(100 << 30),
            reserved: Bytes::new(3 << 30),
            reserve: Bytes::new(10 << 30),
            overcommit: Overcommit::NONE,
        },
        volumes: vec![
            volume("data", Mode::Filesystem { inodes: Inodes::new(64) }, State::Announced, files),
            volume("disk", Mode::Block { allocation: Allocation::Thick }, State::Staged, image),
        ],
        retired: 1,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use envtest::FakeVolumes;
    use prometheus::{Registry, TextEncoder};
    use volume::{Allocation, Owner, Record};

    use super::*;
    use crate::fixture::{self, id};

    fn text(registry: &Registry) -> String {
        TextEncoder::new().encode_to_string(&registry.gather()).expect("text")
    }

    #[test]
    fn the_disk_and_every_volume_have_metrics() {
        let registry = Registry::new();
        registry.register(Box::new(Inventory::new(|| Ok(example())).unwrap())).unwrap();
        let text = text(&registry);
        let values: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let data = r#"{claim="data",mode="filesystem",namespace="shop",volume="pvc-data"}"#;
        let disk = r#"{claim="disk",mode="block",namespace="shop",volume="pvc-disk"}"#;
        assert_eq!(
            values,
            [
                "granary_disk_free_bytes 93415538688",
                "granary_disk_promisable_bytes 96636764160",
                "granary_disk_promised_bytes 3221225472",
                "granary_disk_reserve_bytes 10737418240",
                "granary_disk_size_bytes 107374182400",
                &format!("granary_volume_limit_bytes{data} 1073741824"),
                &format!("granary_volume_limit_bytes{disk} 1073741824"),
                &format!("granary_volume_limit_inodes{data} 64"),
                "granary_volume_scrape_errors_total 0",
                &format!("granary_volume_used_bytes{data} 1048576"),
                &format!("granary_volume_used_bytes{disk} 1073741824"),
                &format!("granary_volume_used_inodes{data} 3"),
                r#"granary_volumes{mode="block",state="announced"} 0"#,
                r#"granary_volumes{mode="block",state="staged"} 1"#,
                r#"granary_volumes{mode="filesystem",state="announced"} 1"#,
                r#"granary_volumes{mode="filesystem",state="staged"} 0"#,
                r#"granary_volumes{mode="snapshot",state="announced"} 0"#,
                r#"granary_volumes{mode="snapshot",state="complete"} 0"#,
                r#"granary_volumes{mode="snapshot",state="staged"} 0"#,
                "granary_volumes_limits_changed 0",
                "granary_volumes_retired 1",
            ]
        );
    }

    /// The alert GranaryVolumeUnfinished reports clones that a client of CSI has given up.
    #[test]
    fn staged_volumes_of_csi_are_counted() {
        let disk = FakeVolumes::with_size(Bytes::new(100 << 30));
        let mode = Mode::Block { allocation: Allocation::Thick };
        let owner = Owner::Controller { source: Some(id("pvc-data")) };
        disk.put(&id("copy"), Record { owner, ..fixture::record(mode, State::Staged) });
        let registry = Registry::new();
        registry.register(Box::new(Inventory::new(move || Snapshot::of(&disk)).unwrap())).unwrap();
        let text = text(&registry);
        assert!(text.contains(r#"granary_volumes{mode="block",state="staged"} 1"#), "{text}");
    }

    #[test]
    fn a_deleted_volume_has_no_series() {
        let registry = Registry::new();
        let (gone, found) = (std::sync::Arc::new(AtomicBool::new(false)), example());
        let later = std::sync::Arc::clone(&gone);
        let read = move || {
            let mut found = found.clone();
            if later.load(Ordering::Relaxed) {
                found.volumes.clear();
            }
            Ok(found)
        };
        registry.register(Box::new(Inventory::new(read).unwrap())).unwrap();
        assert!(text(&registry).contains("pvc-data"));
        gone.store(true, Ordering::Relaxed);
        let after = text(&registry);
        assert!(!after.contains("pvc-data"), "{after}");
        assert!(after.contains(r#"granary_volumes{mode="filesystem",state="announced"} 0"#), "{after}");
    }

    #[test]
    fn the_number_of_series_is_limited() {
        let registry = Registry::new();
        let read = || {
            let mut found = example();
            let many = (0..MOST + 10).map(|number| VolumeUsage {
                id: format!("pvc-{number:06}").parse().expect("an identifier"),
                ..found.volumes[0].clone()
            });
            found.volumes = many.collect();
            Ok(found)
        };
        registry.register(Box::new(Inventory::new(read).unwrap())).unwrap();
        let text = text(&registry);
        let series = text.lines().filter(|line| line.starts_with("granary_volume_used_bytes{")).count();
        assert_eq!(series, MOST);
        assert!(text.contains(&format!("state=\"announced\"}} {}", MOST + 10)), "all volumes are counted");
    }

    #[test]
    fn a_disk_that_cannot_be_read_is_counted() {
        let registry = Registry::new();
        let read = || Err(Error::Usage(fsquota::FsError::NotXfs.into()));
        registry.register(Box::new(Inventory::new(read).unwrap())).unwrap();
        assert!(text(&registry).contains("granary_volume_scrape_errors_total 1"));
        let text = text(&registry);
        assert!(text.contains("granary_volume_scrape_errors_total 2"));
        assert!(!text.contains("granary_disk"), "{text}");
    }
}
