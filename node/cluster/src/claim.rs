//! Annotations of claims, and names of objects in claims.

use std::collections::BTreeMap;

/// The node that the scheduler, the reconciler or a user selected for the claim's new volume.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// The node of a bound claim's volume. The reconciler sets it for claims that were bound to an existing PV.
pub const VOLUME_NODE: &str = "local.granary.dev/node";

/// Annotation of a bound claim with the VolumeSnapshot of its namespace to which the node rolls the volume back. The
/// node removes the annotation afterwards.
pub const RESTORE_FROM: &str = "granary.dev/restore-from";

/// Annotation of a bound claim with the ID of the snapshot that keeps the content from before the rollback. The node
/// sets it when the rollback begins, so that it serves no request twice, and removes it with [`RESTORE_FROM`].
pub const ROLLBACK: &str = "granary.dev/rollback";

/// The node that an admission policy allows to write the status of a bound claim. The policy cannot read PVs: without
/// [`VOLUME_NODE`], the selected node may write if the PV was created for the claim and has the UID of the claim in its
/// name.
pub fn status_writer<'a>(uid: &str, pv: Option<&str>, annotations: &'a BTreeMap<String, String>) -> Option<&'a str> {
    let is_created = pv.and_then(|pv| pv.strip_prefix("pvc-")) == Some(uid);
    let selected = annotations.get(SELECTED_NODE).filter(|_| is_created);
    annotations.get(VOLUME_NODE).or(selected).map(String::as_str)
}

/// Whether an object can have the name `text`. Users write names of objects into claims and their annotations, which
/// the API server does not verify, and the client copies a name into the path of its request.
pub fn is_object_name(text: &str) -> bool {
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    match text.as_bytes() {
        [only] => alphanumeric(only),
        [first, middle @ .., last] => {
            let is_valid = |byte: &u8| alphanumeric(byte) || matches!(byte, b'.' | b'-');
            text.len() <= 253 && alphanumeric(first) && alphanumeric(last) && middle.iter().all(is_valid)
        }
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_segment_of_a_path() {
        for name in ["a", "1", "data", "before-1.two"] {
            assert!(is_object_name(name), "{name}");
        }
        let (long, longer) = ("a".repeat(253), "a".repeat(254));
        assert!(is_object_name(&long) && !is_object_name(&longer));
        for other in ["", ".", "..", "a/b", "../b", "a?watch=true", "a#b", "a b", "a%2fb", "-a", "a.", "A", "\u{e4}"] {
            assert!(!is_object_name(other), "{other}");
        }
    }

    #[test]
    fn the_selected_node_counts_only_for_the_volume_that_it_created() {
        let mut annotations = BTreeMap::from([(SELECTED_NODE.to_owned(), "one".to_owned())]);
        assert_eq!(status_writer("u", Some("pvc-u"), &annotations), Some("one"));
        for pv in [None, Some("adopted"), Some("u"), Some("pvc-other")] {
            assert_eq!(status_writer("u", pv, &annotations), None, "{pv:?}");
        }
        annotations.insert(VOLUME_NODE.to_owned(), "two".to_owned());
        for pv in ["pvc-u", "adopted"] {
            assert_eq!(status_writer("u", Some(pv), &annotations), Some("two"));
        }
    }
}
