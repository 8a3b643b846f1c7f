//! Memory limits of the node's programs, by the machine's memory. No I/O.

use units::Bytes;

/// A share of the machine's memory, between two bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    pub(crate) percent: u64,
    pub(crate) least: Bytes,
    pub(crate) most: Bytes,
}

impl Share {
    pub(crate) const fn new(percent: u64, least: Bytes, most: Bytes) -> Self {
        Self { percent, least, most }
    }

    pub(crate) fn limit(self, machine: Bytes) -> Bytes {
        Bytes::new(machine.get() / 100 * self.percent).clamp(self.least, self.most)
    }
}

/// `GOMEMLIMIT` of a Go program: near this size Go collects garbage, whatever GOGC says. Otherwise garbage alone could
/// grow the heap past the limit.
pub(crate) const fn heap(limit: Bytes) -> Bytes {
    Bytes::new(limit.get() / 5 * 4)
}

/// The kubelet's `kubeReserved`: half a GiB for the programs of an idle node, and a tenth of the machine, up to 4 GiB,
/// for programs under load and for the kernel. At most half of the machine, so that a small machine can run pods.
pub(crate) fn reserved(machine: Bytes) -> Bytes {
    let more = Bytes::new(machine.get() / 10).min(mib(4 << 10));
    mib(512).saturating_add(more).min(Bytes::new(machine.get() / 2))
}

pub(crate) const fn mib(count: u64) -> Bytes {
    Bytes::new(count << 20)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::user::{limited, memory_limit};

    /// `MemTotal` of the smallest machine that the launcher allows. The kernel reserves some memory.
    const SMALLEST: Bytes = mib(1280 - 100);

    /// Memory of all programs together on an idle node.
    const IDLE: Bytes = mib(418 + 82);

    fn machines() -> impl Strategy<Value = Bytes> {
        // Draws the power of two first, so that small machines are as frequent as large ones.
        (0_u32..11, 0_u64..1024).prop_map(|(bits, more)| {
            Bytes::new(SMALLEST.get() << bits).saturating_add(Bytes::new((more << bits) << 20))
        })
    }

    #[test]
    fn the_machine_of_the_demonstration_is_divided_like_this() {
        let machine = mib(2 << 10);
        assert_eq!(memory_limit("kube-apiserver", machine).map(|limit| limit.get() >> 20), Some(1023));
        assert_eq!(memory_limit("etcd", machine).map(|limit| limit.get() >> 20), Some(409));
        assert_eq!(reserved(machine).get() >> 20, 716);
        assert_eq!(memory_limit("sh", machine), None);
    }

    proptest! {
        #[test]
        fn one_that_runs_away_is_stopped_before_the_others_starve(machine in machines()) {
            for (program, share) in limited() {
                let limit = share.limit(machine);
                prop_assert!(limit.saturating_add(IDLE) < machine, "{program}: {limit}");
                prop_assert!(heap(limit) < limit);
            }
        }

        #[test]
        fn an_idle_node_is_far_from_every_limit(machine in machines()) {
            // The limit is above the idle memory of all programs together.
            prop_assert!(memory_limit("kube-apiserver", machine).unwrap() > IDLE);
            prop_assert!(memory_limit("kubelet", machine).unwrap() > mib(4 * 47));
        }

        #[test]
        fn pods_leave_the_programs_the_memory_of_an_idle_node(machine in machines()) {
            let reserved = reserved(machine);
            prop_assert!(reserved > IDLE);
            prop_assert!(machine.saturating_sub(reserved) >= mib(512));
        }
    }
}
