//! The API server's audit log: each request without its body, in files that stay within the log's disk limit.

use std::path::{Path, PathBuf};

use serde_json::json;
use units::Bytes;

use crate::pki::identity::ADMINISTRATOR;

/// Number of rotated files on a disk that has space for them.
const BACKUPS: u64 = 10;
/// Sizes of a file in MiB, the unit of the flag. The API server loses a line that is longer than a file. The URI can be
/// most of a line: Go's HTTP server accepts headers of 1 MiB and 4 KiB, and JSON writes some characters as six. The
/// smallest disk has files of 6 MiB. Many small files lose less at each rotation than a few large ones.
const SMALLEST: u64 = 8;
const LARGEST: u64 = 100;
const DAYS: u32 = 30;

/// The audit policy: the user, the object and the decision of each request. The log has no bodies, because those of
/// Secrets contain their values.
///
/// The policy omits the node's own readiness requests and the heartbeats of kubelets, which would be most of the log.
/// The API server applies a rule before it authorizes a request. Therefore the log also omits a heartbeat for another
/// node's lease, which is denied. All other requests of a kubelet for leases are logged.
pub(crate) fn policy() -> String {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        // The API server logs a request when it ends, and a watch also when it begins.
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

/// Flags of the API server that keep the log within the limit of its directory.
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
    /// The API server removes a rotated file after it has created the next one. For a moment there is one file more
    /// than the backups and the current file. The last MiB is for the directory.
    fn within(limit: Bytes) -> Self {
        let space = (limit.get() / Bytes::MIB.get()).saturating_sub(1);
        // With 0, the API server would keep all backups.
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

    /// Limit in MiB of the log's directory on the smallest disk that `localstorage` accepts.
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

    /// A request that the policy omits is not logged even if it is denied.
    #[test]
    fn what_is_left_out_names_its_users_and_verbs() {
        let read: Value = serde_json::from_str(&policy()).unwrap();
        for rule in read["rules"].as_array().unwrap().iter().filter(|rule| rule["level"] == "None") {
            let who = rule.get("users").or(rule.get("userGroups")).and_then(Value::as_array).unwrap();
            assert!(who.len() == 1 && rule["verbs"].as_array().unwrap().len() == 1, "{rule}");
        }
    }
}
