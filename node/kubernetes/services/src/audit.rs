//! The API server's audit log: every request without its body, in files that fit into their part of the disk.

use std::path::{Path, PathBuf};

use serde_json::json;
use units::Bytes;

/// Files beside the one that is written.
const BACKUPS: u64 = 10;
/// A rotated file is removed after the next one was begun, so that for a moment there is one more. The rest is for the
/// directory.
const FILES: u64 = BACKUPS + 3;
/// In MiB, as the flag takes it. More files of a smaller size lose less at each rotation.
const LARGEST: u64 = 100;
const DAYS: u32 = 30;

/// What is written: who did what to which object, and whether it was allowed. No bodies: Secrets have their values there.
/// Left out are the questions whether the API server is alive, and the kubelets' heartbeats, which would be most of it.
pub(crate) fn policy() -> String {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "None", "nonResourceURLs": ["/healthz*", "/livez*", "/readyz*"]},
            {
                "level": "None",
                "userGroups": ["system:nodes"],
                "verbs": ["get", "update"],
                "namespaces": ["kube-node-lease"],
                "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}],
            },
            {"level": "Metadata"},
        ],
    })
    .to_string()
}

/// The file that is written now.
pub(crate) fn file(directory: &Path) -> PathBuf {
    directory.join("audit.log")
}

/// Flags of the API server that keep the log within a directory with this limit.
pub(crate) fn bounds(limit: Bytes) -> [(&'static str, String); 3] {
    [
        ("audit-log-maxage", DAYS.to_string()),
        ("audit-log-maxbackup", BACKUPS.to_string()),
        ("audit-log-maxsize", mebibytes(limit).to_string()),
    ]
}

/// The size of one file.
fn mebibytes(limit: Bytes) -> u64 {
    (limit.get() / Bytes::MIB.get() / FILES).clamp(1, LARGEST)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn all_files_fit_into_the_part_of_the_disk() {
        for limit in [13_u64, 40, 500, 2 << 10].map(|mib| Bytes::new(mib << 20)) {
            let files = Bytes::new((mebibytes(limit) * (BACKUPS + 2)) << 20);
            assert!(files < limit, "{files} of {limit}");
        }
        assert_eq!(mebibytes(Bytes::new(40 << 20)), 3);
        assert_eq!(mebibytes(Bytes::new(2 << 30)), LARGEST);
    }

    #[test]
    fn no_rule_writes_a_body() {
        let read: Value = serde_json::from_str(&policy()).unwrap();
        let levels: Vec<_> = read["rules"].as_array().unwrap().iter().map(|rule| rule["level"].clone()).collect();
        assert_eq!(levels, ["None", "None", "Metadata"]);
        let last = read["rules"][2].as_object().unwrap();
        assert_eq!(last.len(), 1, "the last rule is for every request");
    }
}
