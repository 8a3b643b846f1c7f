//! The users of confined programs.

use dir::{Gid, Owner, Uid};

/// The first ID. Kubernetes rejects IDs above 2³¹-1 as `runAsUser`, `fsGroup` and supplemental groups, and kubelet assigns
/// user namespaces from 65536 on: no pod has one of these IDs, unless it has `CAP_SETUID` in the node's user namespace.
const FIRST: u32 = 3_000_000_000;

/// A user that one program runs as. Its group has the same ID. There is no file of users: numbers are enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum User {
    Etcd,
    ApiServer,
    ControllerManager,
    Scheduler,
    Proxy,
    Dns,
    SnapshotController,
}

impl User {
    pub const ALL: [Self; 7] = [
        Self::Etcd,
        Self::ApiServer,
        Self::ControllerManager,
        Self::Scheduler,
        Self::Proxy,
        Self::Dns,
        Self::SnapshotController,
    ];

    /// The program that runs as the user.
    pub const fn program(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Proxy => "kube-proxy",
            Self::Dns => "coredns",
            Self::SnapshotController => "snapshot-controller",
        }
    }

    /// On the data disk and in the kernel: a number never changes.
    pub const fn id(self) -> u32 {
        FIRST
            + match self {
                Self::Etcd => 1,
                Self::ApiServer => 2,
                Self::ControllerManager => 3,
                Self::Scheduler => 4,
                Self::Proxy => 5,
                Self::Dns => 6,
                Self::SnapshotController => 7,
            }
    }

    pub(crate) const fn owner(self) -> Owner {
        Owner { user: Uid::from_raw(self.id()), group: Gid::from_raw(self.id()) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_pod_can_ask_for_one_of_the_ids() {
        let ids: BTreeSet<_> = User::ALL.map(User::id).into();
        assert_eq!(ids.len(), User::ALL.len());
        // MaxInt32 of Kubernetes' validation; the largest number is not an ID, chown(2).
        assert!(ids.iter().all(|id| i32::try_from(*id).is_err() && *id != u32::MAX));
    }
}
