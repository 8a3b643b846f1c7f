//! Objects of the cluster in the requests of sidecars. Pure.
//!
//! external-provisioner and csi-snapshotter derive the name of a volume, snapshot or group from the UID of its object:
//! `pvc-UID`, `snapshot-UID`, `groupsnapshot-UID`. Their options change the prefix, and add parameters that describe
//! the object. The node's own provisioner also derives IDs from objects: `pvc-UID`, `snapshot-UID`,
//! `snapshot-UID-VERSION` and `group-UID-VOLUME`.

use crate::controller::request::RESERVED;

/// The program that creates the volumes and snapshots of the cluster's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provisioner {
    /// The node's own provisioner. The services reject requests for objects of the cluster: both programs would serve
    /// these objects, and a client would occupy the IDs of the provisioner.
    Own,
    /// external-provisioner and csi-snapshotter, as clients of the services.
    External,
}

/// Prefixes of names, and the objects that have such names.
const PREFIXES: [(&str, &str); 4] = [
    ("pvc-", "claims"),
    ("snapshot-", "snapshots"),
    ("group-", "groups of snapshots"),
    ("groupsnapshot-", "groups of snapshots"),
];

/// Length of a UID, and the places of its hyphens.
const UID: usize = 36;
const HYPHENS: [usize; 4] = [8, 13, 18, 23];

/// Maximum number of characters of parameters in an error.
const SHOWN: usize = 512;

/// The part of a request that belongs to an object of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ClusterObject {
    #[error("the request has the parameters {0}")]
    Parameters(String),
    #[error("names that begin with {prefix} are those of {objects}")]
    Prefix { prefix: &'static str, objects: &'static str },
    #[error("the name ends with the UID of an object, {0}")]
    Uid(String),
}

impl ClusterObject {
    /// `None` if neither the name nor a parameter is that of an object.
    pub(crate) fn of<'a>(name: &str, parameters: impl IntoIterator<Item = (&'a String, &'a String)>) -> Option<Self> {
        let reserved = parameters.into_iter().filter(|(key, _)| key.starts_with(RESERVED));
        let mut described: Vec<_> = reserved.map(|(key, value)| format!("{key}={value}")).collect();
        if !described.is_empty() {
            described.sort_unstable();
            return Some(Self::Parameters(described.join(", ").chars().take(SHOWN).collect()));
        }
        match PREFIXES.into_iter().find(|(prefix, _)| name.starts_with(*prefix)) {
            Some((prefix, objects)) => Some(Self::Prefix { prefix, objects }),
            None => uid(name).map(|uid| Self::Uid(uid.to_owned())),
        }
    }
}

/// The UID at the end of a name with a prefix, as with the option `--volume-name-prefix` of external-provisioner.
fn uid(name: &str) -> Option<&str> {
    let (prefix, uid) = name.split_at_checked(name.len().checked_sub(UID)?)?;
    let fits = |(at, byte): (usize, u8)| if HYPHENS.contains(&at) { byte == b'-' } else { byte.is_ascii_hexdigit() };
    (prefix.ends_with('-') && uid.bytes().enumerate().all(fits)).then_some(uid)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const SOME_UID: &str = "0b6f2f6e-9c1f-4d4e-8d0a-6f1f2a3b4c5d";

    fn named(name: &str) -> Option<ClusterObject> {
        ClusterObject::of(name, &HashMap::new())
    }

    #[test]
    fn names_of_claims_and_snapshots_are_those_of_objects() {
        for (prefix, objects) in PREFIXES {
            let expected = Some(ClusterObject::Prefix { prefix, objects });
            assert_eq!(named(&format!("{prefix}{SOME_UID}")), expected);
            // A sidecar may shorten the UID, and the provisioner adds a part to it.
            assert_eq!(named(&format!("{prefix}0b6f2f6e9c1f")), expected);
            assert_eq!(named(&format!("{prefix}{SOME_UID}-4711")), expected);
        }
        assert_eq!(named(&format!("local-{SOME_UID}")), Some(ClusterObject::Uid(SOME_UID.to_owned())));
    }

    #[test]
    fn other_names_are_those_of_clients() {
        let without_hyphen = format!("local{SOME_UID}");
        let no_digit = format!("local-{}", SOME_UID.replace('b', "x"));
        let long = format!("local-{}", "a".repeat(UID));
        let letters = "ä".repeat(UID);
        let names = ["data", "Data 1", "pvc", "snapshot0-1A2B3C4D-5E6F7A8B", "csi-1", SOME_UID, ""];
        for name in names.into_iter().chain([&*without_hyphen, &*no_digit, &*long, &*letters]) {
            assert_eq!(named(name), None, "{name}");
        }
    }

    #[test]
    fn parameters_of_kubernetes_describe_an_object() {
        let parameters = |parameters: [(&str, &str); 2]| -> HashMap<String, String> {
            parameters.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
        };
        let of_claim =
            parameters([("csi.storage.k8s.io/pvc/namespace", "shop"), ("csi.storage.k8s.io/pvc/name", "data")]);
        let found = ClusterObject::of("data", &of_claim).expect("an object");
        assert_eq!(
            found.to_string(),
            "the request has the parameters csi.storage.k8s.io/pvc/name=data, csi.storage.k8s.io/pvc/namespace=shop"
        );
        let of_driver = parameters([("blockAllocation", "thin"), ("bytesPerInode", "65536")]);
        assert_eq!(ClusterObject::of("data", &of_driver), None);
        let long = parameters([("csi.storage.k8s.io/pvc/name", &"ä".repeat(1 << 19)), ("thin", "true")]);
        let found = ClusterObject::of("data", &long).expect("an object").to_string();
        assert!(found.chars().count() < SHOWN + 64, "{} characters", found.chars().count());
    }
}
