//! The API server's audit log: every request without its body, in files that fit into their part of the disk.

use std::path::{Path, PathBuf};

use serde_json::json;
use units::Bytes;

use crate::pki::identity::ADMINISTRATOR;

/// Files beside the one that is written, on a disk that has space for them.
const BACKUPS: u64 = 10;
/// In MiB, as the flag takes it. A line that is longer than a file is lost, and the URI can be most of a line: Go's server
/// takes 1 MiB and 4 KiB of headers, and JSON writes some characters as six. The smallest disk has files of 6 MiB. More
/// files of a smaller size lose less at each rotation.
const SMALLEST: u64 = 8;
const LARGEST: u64 = 100;
const DAYS: u32 = 30;

/// The policy: the user, the object and the decision of each request. No bodies: Secrets have their values there.
///
/// Left out are the node's own questions whether the API server is ready, and the kubelets' heartbeats, which would be
/// most of the log. A rule applies before the request is authorized, so that a heartbeat for another node's lease is left
/// out too, although it is denied. Everything else that a kubelet does to leases is written.
pub(crate) fn policy() -> String {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        // Each request is written when it ends, a watch also when it begins.
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "None", "users": [ADMINISTRATOR], "verbs": ["get"], "nonResourceURLs": ["/readyz"]},
            {
                "level": "None",
                "userGroups": ["system:nodes"],
                "verbs": ["update"],
                "namespaces": ["kube-node-lease"],
                "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}],
            },
            {"level": "Metadata"},
        ],
    })
    .to_string()
}

pub(crate) fn file(directory: &Path) -> PathBuf {
    directory.join("audit.log")
}

/// Flags of the API server that keep the log within a directory with this limit.
pub(crate) fn bounds(limit: Bytes) -> [(&'static str, String); 3] {
    let Files { size, backups } = Files::within(limit);
    [
        ("audit-log-maxage", DAYS.to_string()),
        ("audit-log-maxbackup", backups.to_string()),
        ("audit-log-maxsize", size.to_string()),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Files {
    size: u64,
    backups: u64,
}

impl Files {
    /// A rotated file is removed after the next one was begun: for a moment there is one more than the backups and the
    /// one that is written. The last MiB is for the directory.
    fn within(limit: Bytes) -> Self {
        let space = (limit.get() / Bytes::MIB.get()).saturating_sub(1);
        // Without any, the API server would keep all of them.
        let backups = (space / SMALLEST).saturating_sub(2).clamp(1, BACKUPS);
        Self { size: (space / (backups + 2)).clamp(1, LARGEST), backups }
    }

    #[cfg(test)]
    const fn most(self) -> Bytes {
        Bytes::new((self.size * (self.backups + 2)) << 20)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    /// Of the smallest part of a disk that `localstorage` makes.
    const LEAST: u64 = 19;

    #[test]
    fn the_log_is_divided_like_this() {
        for (mib, size, backups) in [
            (LEAST, 6, 1),
            (25, 8, 1),
            (40, 9, 2),
            (104, 8, 10),
            (256, 21, 10),
            (1300, 100, 10),
            (2 << 10, LARGEST, BACKUPS),
        ] {
            assert_eq!(Files::within(Bytes::new(mib << 20)), Files { size, backups }, "{mib} MiB");
        }
    }

    proptest! {
        #[test]
        fn all_files_fit_into_the_part_of_the_disk(mib in LEAST..4096) {
            let limit = Bytes::new(mib << 20);
            let files = Files::within(limit);
            prop_assert!(files.most() < limit, "{files:?} of {limit}");
            prop_assert!((6..=LARGEST).contains(&files.size), "{files:?}");
            prop_assert!(files.size >= SMALLEST || mib < 25, "{files:?} of {limit}");
            prop_assert!((1..=BACKUPS).contains(&files.backups), "{files:?}");
        }
    }

    /// A denied request is left out as well as an allowed one.
    #[test]
    fn what_is_left_out_names_its_users_and_verbs() {
        let read: Value = serde_json::from_str(&policy()).unwrap();
        for rule in read["rules"].as_array().unwrap().iter().filter(|rule| rule["level"] == "None") {
            let who = rule.get("users").or(rule.get("userGroups")).and_then(Value::as_array).unwrap();
            assert!(who.len() == 1 && rule["verbs"].as_array().unwrap().len() == 1, "{rule}");
        }
    }
}
