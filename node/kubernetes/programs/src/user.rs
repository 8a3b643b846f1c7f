//! The users of confined programs, and their capabilities.

use dir::{Gid, Owner, Uid};

/// The first ID. Kubernetes rejects IDs above 2³¹-1 as `runAsUser`, `fsGroup` and supplemental groups, and kubelet assigns
/// user namespaces from 65536 on: no pod has one of these IDs, unless it has `CAP_SETUID` in the node's user namespace.
const FIRST: u32 = 3_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// `CAP_NET_BIND_SERVICE`: ports below 1024.
    NetBindService = 10,
    /// `CAP_NET_ADMIN`: rules for packets, and the table of connections.
    NetAdmin = 12,
}

impl Capability {
    /// The set as in `/proc/PID/status`, proc_pid_status(5).
    pub fn set(capabilities: &[Self]) -> u64 {
        capabilities.iter().fold(0, |all, one| all | 1 << *one as u32)
    }
}

macro_rules! users {
    ($($user:ident = $number:literal: $program:literal, [$($capability:ident),*];)*) => {
        /// A user that one program runs as. Its group has the same ID. There is no file of users: numbers are enough.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum User {
            $($user = $number,)*
        }

        impl User {
            pub const ALL: [Self; [$($number),*].len()] = [$(Self::$user),*];

            /// The program that runs as the user.
            pub const fn program(self) -> &'static str {
                match self {
                    $(Self::$user => $program,)*
                }
            }

            /// The capabilities of the program.
            pub const fn capabilities(self) -> &'static [Capability] {
                match self {
                    $(Self::$user => &[$(Capability::$capability),*],)*
                }
            }
        }
    };
}

// User, its number, program, capabilities. On the data disk and in the kernel: a number never changes.
users! {
    Etcd               = 1: "etcd",                    [];
    ApiServer          = 2: "kube-apiserver",          [];
    ControllerManager  = 3: "kube-controller-manager", [];
    Scheduler          = 4: "kube-scheduler",          [];
    // It has the rules written by nft, and ends connections in the table of connections.
    Proxy              = 5: "kube-proxy",              [NetAdmin];
    Dns                = 6: "coredns",                 [NetBindService];
    SnapshotController = 7: "snapshot-controller",     [];
}

impl User {
    pub const fn id(self) -> u32 {
        FIRST + self as u32
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

    #[test]
    fn only_programs_of_the_pods_network_have_capabilities() {
        let sets = User::ALL.map(|user| (user, Capability::set(user.capabilities())));
        let sets: Vec<_> = sets.into_iter().filter(|(_, set)| *set != 0).collect();
        assert_eq!(sets, [(User::Proxy, 0x1000), (User::Dns, 0x400)]);
    }
}
