//! The programs of a node with their users, capabilities and memory limits.

use dir::{Gid, Owner, Uid};
use units::Bytes;

use crate::memory::{Share, mib};

/// First user ID. Kubernetes rejects IDs above 2³¹-1 as `runAsUser`, `fsGroup` and supplemental groups, and the kubelet
/// assigns user namespaces from 65536 on. Therefore no pod has one of these IDs, unless it has `CAP_SETUID` in the
/// node's user namespace.
const FIRST: u32 = 3_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// `CAP_NET_BIND_SERVICE`: ports below 1024.
    NetBindService = 10,
    /// `CAP_NET_ADMIN`: packet filter rules, and the connection tracking table.
    NetAdmin = 12,
}

impl Capability {
    /// The capability set as in `/proc/PID/status`, proc_pid_status(5).
    pub fn set(capabilities: &[Self]) -> u64 {
        capabilities.iter().fold(0, |all, one| all | 1 << *one as u32)
    }
}

macro_rules! users {
    ($(
        $user:ident = $number:literal: $program:literal, [$($capability:ident),*],
        $percent:literal %, $least:literal, $most:expr;
    )*) => {
        /// A user that runs one program. The group has the same ID. The IDs need no file of users.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum User {
            $($user = $number,)*
        }

        impl User {
            pub const ALL: [Self; [$($number),*].len()] = [$(Self::$user),*];

            /// Program of the user.
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

            const fn memory(self) -> Share {
                match self {
                    $(Self::$user => Share::new($percent, mib($least), mib($most)),)*
                }
            }
        }
    };
}

// User, its number, program, capabilities, memory limit: share of the machine's memory, minimum and maximum in MiB. The
// data disk and the kernel contain the number, so it never changes.
//
// A limit stops a runaway program and leaves the others enough memory; the limits need not add up to the machine's
// memory. Each limit is several times the program's need. On a node of 4 GiB without pods, all programs and the node's
// own program have 418 MiB (`RSS`), the kubelet 47 of these. snapshot-controller, measured without a node, has 82 MiB
// more, of which it shares 65 with the others.
//
// The API server keeps the objects that it serves in memory, several times. kube-controller-manager and kube-scheduler
// keep the objects that they watch, snapshot-controller keeps volumes, claims and snapshots, CoreDNS keeps the names of
// Services and pods, and etcd keeps recent writes, while its database is in the kernel's page cache. The kubelet and
// containerd keep the state of pods. `ctr` reads an archive while the node starts.
users! {
    Etcd               = 1: "etcd",                    [],               20 %, 256, 8 << 10;
    ApiServer          = 2: "kube-apiserver",          [],               50 %, 640, 32 << 10;
    ControllerManager  = 3: "kube-controller-manager", [],               20 %, 256, 4 << 10;
    Scheduler          = 4: "kube-scheduler",          [],               15 %, 192, 2 << 10;
    // kube-proxy starts nft, and deletes entries of the connection tracking table.
    Proxy              = 5: "kube-proxy",              [NetAdmin],       10 %, 128, 1 << 10;
    Dns                = 6: "coredns",                 [NetBindService],  5 %,  96, 512;
    SnapshotController = 7: "snapshot-controller",     [],               10 %, 128, 1 << 10;
}

/// Programs without a user of their own that have a memory limit.
const UNCONFINED: [(&str, Share); 3] = [
    ("kubelet", Share::new(15, mib(256), mib(4 << 10))),
    ("containerd", Share::new(20, mib(256), mib(4 << 10))),
    ("ctr", Share::new(10, mib(128), mib(1 << 10))),
];

/// All programs with a memory limit.
pub(crate) fn limited() -> impl Iterator<Item = (&'static str, Share)> {
    User::ALL.into_iter().map(|user| (user.program(), user.memory())).chain(UNCONFINED)
}

/// Memory limit of a program on a machine with this memory; `None` for an unknown program.
pub(crate) fn memory_limit(program: &str, machine: Bytes) -> Option<Bytes> {
    let (_, share) = limited().find(|(name, _)| *name == program)?;
    Some(share.limit(machine))
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
        // Kubernetes' validation accepts IDs up to MaxInt32. The largest number is not an ID, chown(2).
        assert!(ids.iter().all(|id| i32::try_from(*id).is_err() && *id != u32::MAX));
    }

    #[test]
    fn the_page_has_the_user_and_the_limit_of_every_program() {
        const PAGE: &str = include_str!("../../../../docs/architecture.md");
        let table: String = limited()
            .map(|(program, Share { percent, least, most })| {
                let user = User::ALL.into_iter().find(|user| user.program() == program);
                let id = user.map_or("root".to_owned(), |user| user.id().to_string());
                let capabilities = match user.map(User::capabilities) {
                    None => "all",
                    Some([]) => "none",
                    Some([Capability::NetBindService]) => "`CAP_NET_BIND_SERVICE`",
                    Some([Capability::NetAdmin]) => "`CAP_NET_ADMIN`",
                    Some(other) => panic!("{program}: {other:?}"),
                };
                format!("| `{program}` | {id} | {capabilities} | {percent} % | {least} | {most} |\n")
            })
            .collect();
        docs::assert_table("docs/architecture.md", PAGE, "Rights of programs on the node", &table);
    }

    #[test]
    fn only_programs_of_the_pods_network_have_capabilities() {
        let sets = User::ALL.map(|user| (user, Capability::set(user.capabilities())));
        let sets: Vec<_> = sets.into_iter().filter(|(_, set)| *set != 0).collect();
        assert_eq!(sets, [(User::Proxy, 0x1000), (User::Dns, 0x400)]);
    }
}
