//! Limits of the directories of the data disk, by its size. No I/O.

use fsquota::Limits;
use units::{Bytes, Inodes};

/// A part of the data disk to which others than the node itself write: pods, their images, the cluster's objects. A
/// part is a directory with its own limit, or several directories with a common limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Directories of containerd for packed and unpacked images and the writable layers of containers, and directories
    /// for programs and configurations of CNI plugins and for settings of registries.
    Containerd,
    /// The kubelet's directory of pods, mainly emptyDir volumes.
    Pods,
    Etcd,
    Log,
    /// The node's own log. As a separate part, it cannot be filled by a container with endless output.
    NodeLog,
    /// The API server's audit log. As a separate part, it cannot fill the node's log if a client sends endless
    /// requests.
    Audit,
}

/// Growth of a part with the disk.
#[derive(Clone, Copy, Debug)]
struct Share {
    permille: u64,
    least: Bytes,
    most: Bytes,
    /// Bytes per inode.
    per_inode: u64,
}

/// Files without a limit that only the node writes: keys, certificates, records of volumes, the kubelet's state.
const NODE: Share = Share { permille: 5, least: mib(16), most: gib(1), per_inode: 8 << 10 };

/// Reserve of XFS, included in its size: up to 32 MiB to continue when the file system is full, and space in each
/// allocation group for the trees of free inodes and of shared blocks.
const XFS: Share = Share { permille: 20, least: mib(40), most: Bytes::new(u64::MAX), per_inode: u64::MAX };

/// Size of an inode in bytes, which no block limit counts.
const INODE: u64 = 512;

impl Part {
    pub const ALL: [Self; 6] = [Self::Containerd, Self::Pods, Self::Etcd, Self::Log, Self::NodeLog, Self::Audit];

    /// Name of the part in the record of project IDs on the disk.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Containerd => "containerd",
            Self::Pods => "pods",
            Self::Etcd => "etcd",
            Self::Log => "pod-logs",
            Self::NodeLog => "node-log",
            Self::Audit => "audit-log",
        }
    }

    /// Whether every pod can read the project ID of the part: from its root file system, an overlay in containerd's
    /// directory, and from its `/etc/hosts`, which is in the kubelet's directory.
    pub(crate) const fn is_visible_to_pods(self) -> bool {
        matches!(self, Self::Containerd | Self::Pods)
    }

    /// The shares of the disk. etcd allocates three WAL segments of 64 MB each before the first write. The minimum of
    /// the others is the usage of a node without pods. The audit log has at least 3 files of 6 MiB.
    #[rustfmt::skip]
    const fn share(self) -> Share {
        match self {
            Self::Containerd => Share { permille: 80, least: mib(64),  most: gib(16), per_inode: 4 << 10 },
            Self::Pods       => Share { permille: 40, least: mib(24),  most: gib(8),  per_inode: 4 << 10 },
            Self::Etcd       => Share { permille: 60, least: mib(256), most: gib(3),  per_inode: 256 << 10 },
            Self::Log        => Share { permille: 15, least: mib(8),   most: gib(4),  per_inode: 8 << 10 },
            Self::NodeLog    => Share { permille: 5,  least: mib(4),   most: gib(1),  per_inode: 4 << 10 },
            Self::Audit      => Share { permille: 5,  least: mib(19),  most: gib(2),  per_inode: 8 << 10 },
        }
    }
}

impl Share {
    fn of(self, disk: Bytes) -> Limits {
        let part = disk.get().saturating_mul(self.permille) / 1000;
        let bytes = Bytes::new(part - part % Bytes::MIB.get()).clamp(self.least, self.most);
        Limits { bytes: Some(bytes), inodes: Some(Inodes::new(bytes.get() / self.per_inode)) }
    }
}

/// The division of a data disk of a given size. The rest is for volumes.
///
/// ```
/// use localstorage::{Budget, Part};
/// use units::Bytes;
///
/// let budget = Budget::of(Bytes::new(100 << 30));
/// assert_eq!(budget.bytes(Part::Pods), Bytes::new(4 << 30));
/// assert!(budget.reserve() < Bytes::new(25 << 30));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    size: Bytes,
}

impl Budget {
    /// Budget of a file system of this size (`statfs`).
    pub const fn of(size: Bytes) -> Self {
        Self { size }
    }

    pub const fn size(self) -> Bytes {
        self.size
    }

    pub fn limits(self, part: Part) -> Limits {
        part.share().of(self.size)
    }

    pub fn bytes(self, part: Part) -> Bytes {
        self.limits(part).bytes.unwrap_or_default()
    }

    /// Space that is unavailable to volumes: all parts with their inodes, the node's own files, and the reserve of XFS.
    pub fn reserve(self) -> Bytes {
        let parts = Part::ALL.into_iter().map(Part::share);
        parts.chain([NODE, XFS]).map(|share| taken(share.of(self.size))).sum()
    }
}

fn taken(limits: Limits) -> Bytes {
    let inodes = limits.inodes.unwrap_or_default().get();
    limits.bytes.unwrap_or_default().saturating_add(Bytes::new(inodes.saturating_mul(INODE)))
}

const fn mib(count: u64) -> Bytes {
    Bytes::new(count << 20)
}

const fn gib(count: u64) -> Bytes {
    Bytes::new(count << 30)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::MINIMUM;

    const JOURNAL: Bytes = mib(64);

    fn sizes() -> impl Strategy<Value = Bytes> {
        // Draws the power of two first, so that small disks are as frequent as large ones.
        (29_u32..60, any::<u64>()).prop_map(|(bits, more)| Bytes::new((1 << bits) + more % (1 << bits)))
    }

    #[test]
    fn the_disk_of_the_demonstration_is_divided_like_this() {
        let budget = Budget::of(mib((8 << 10) - 64));
        let parts = Part::ALL.map(|part| budget.bytes(part));
        assert_eq!(parts, [mib(650), mib(325), mib(487), mib(121), mib(40), mib(40)]);
        assert!(budget.reserve() < gib(2), "{}", budget.reserve());
    }

    /// Compares the rows of docs/architecture.md, in the order of [`Part::ALL`].
    #[test]
    fn the_table_of_the_documentation_has_these_shares() {
        let docs = include_str!("../../../docs/architecture.md");
        let (_, table) = docs.split_once("\n## Division of the data disk\n").unwrap();
        let cells = |row: &str| row.split('|').skip(2).take(3).map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
        let rows = table.lines().filter(|line| line.starts_with("| ")).skip(1);
        let shares: Vec<Share> = Part::ALL.into_iter().map(Part::share).chain([NODE, XFS]).collect();
        let rows: Vec<_> = rows.take(shares.len()).map(cells).collect();
        let shares = shares.into_iter().map(|share| {
            let (percent, tenth) = (share.permille / 10, share.permille % 10);
            let percent = if tenth == 0 { format!("{percent} %") } else { format!("{percent}.{tenth} %") };
            let most = if share.most == XFS.most { "–".to_owned() } else { share.most.to_string() };
            vec![percent, share.least.to_string(), most]
        });
        assert_eq!(rows, shares.collect::<Vec<_>>());
    }

    #[test]
    fn the_smallest_disk_holds_all_parts() {
        let size = MINIMUM.saturating_sub(JOURNAL);
        assert!(Budget::of(size).reserve() <= size, "{}", Budget::of(size).reserve());
    }

    #[test]
    fn a_large_disk_is_for_volumes() {
        let budget = Budget::of(Bytes::TIB);
        assert!(budget.reserve() < gib(60), "{}", budget.reserve());
    }

    proptest! {
        #[test]
        fn the_parts_with_their_inodes_fit_into_the_reserve(size in sizes()) {
            let budget = Budget::of(size);
            let parts: Bytes = Part::ALL.into_iter().map(|part| taken(budget.limits(part))).sum();
            prop_assert!(parts < budget.reserve());
        }

        #[test]
        fn a_larger_disk_has_larger_parts_and_more_for_volumes(size in sizes(), more in sizes()) {
            let (small, large) = (Budget::of(size), Budget::of(size.saturating_add(more)));
            for part in Part::ALL {
                prop_assert!(small.limits(part).bytes <= large.limits(part).bytes);
                prop_assert!(small.limits(part).inodes <= large.limits(part).inodes);
            }
            let free = |budget: Budget| budget.size().saturating_sub(budget.reserve());
            prop_assert!(small.reserve() <= large.reserve());
            prop_assert!(free(small) <= free(large));
        }

        #[test]
        fn every_limit_is_one_that_the_kernel_keeps_as_it_is(size in any::<u64>().prop_map(Bytes::new)) {
            for part in Part::ALL {
                let Limits { bytes: Some(bytes), inodes: Some(inodes) } = Budget::of(size).limits(part) else {
                    return Err(TestCaseError::fail("a part without a limit"));
                };
                prop_assert!(bytes > Bytes::ZERO && bytes.get() % 4096 == 0);
                prop_assert!(inodes.get() >= 1024);
            }
        }
    }
}
