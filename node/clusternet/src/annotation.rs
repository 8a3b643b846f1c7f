//! The annotation with a node's public key.

use cluster::PUBLIC_KEY_ANNOTATION;
use serde_json::{Value, json};

use crate::PublicKey;

/// A merge patch (RFC 7396) of this annotation, which changes nothing else, regardless of concurrent writes and of
/// whether the Node has annotations.
pub(crate) fn patch(key: PublicKey) -> Value {
    json!({"metadata": {"annotations": {PUBLIC_KEY_ANNOTATION: key.to_string()}}})
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// RFC 7396, section 2.
    fn merge(target: &mut Value, patch: &Value) {
        let Value::Object(patch) = patch else {
            *target = patch.clone();
            return;
        };
        if !target.is_object() {
            *target = json!({});
        }
        for (name, value) in patch {
            match value {
                Value::Null => drop(target.as_object_mut().unwrap().remove(name)),
                value => merge(&mut target[name], value),
            }
        }
    }

    proptest! {
        #[test]
        fn the_patch_changes_only_the_annotation(
            others in proptest::option::of(proptest::collection::btree_map("[a-z~/.]{1,12}", ".{0,8}", 0..4)),
            bytes in proptest::array::uniform32(1_u8..),
        ) {
            let key = PublicKey::new(bytes).unwrap();
            let mut node = json!({"metadata": {"name": "one", "labels": {"a": "b"}}, "spec": {"podCIDR": "10.0.0.0/24"}});
            if let Some(others) = &others {
                node["metadata"]["annotations"] = json!(others);
            }
            let mut expected = node.clone();
            let mut annotations: BTreeMap<String, String> = others.unwrap_or_default();
            annotations.insert(PUBLIC_KEY_ANNOTATION.to_owned(), key.to_string());
            expected["metadata"]["annotations"] = json!(annotations);
            merge(&mut node, &patch(key));
            prop_assert_eq!(node, expected);
        }
    }
}
