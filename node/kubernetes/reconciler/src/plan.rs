//! Whether an object is as it should be, and what to do if not. Pure.

use serde_json::Value;

use crate::objects::{Object, REVISION, REVISION_ANNOTATION};

/// What makes the object right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It is right.
    Keep,
    /// A newer release keeps it.
    Leave {
        /// The revision of the newer release.
        revision: u32,
    },
    /// It is not there.
    Create,
    /// Some of its fields have to be set.
    Apply,
    /// Some of its fields cannot be changed.
    Recreate,
}

pub(crate) fn plan(object: &Object, seen: Option<&Value>) -> Step {
    let Some(seen) = seen else { return Step::Create };
    if let Some(revision) = revision(seen).filter(|revision| *revision > REVISION) {
        return Step::Leave { revision };
    }
    let differs = |pointer: &&&str| !is_same(object.want.pointer(pointer), seen.pointer(pointer));
    if object.immutable.iter().any(|pointer| differs(&pointer)) {
        return Step::Recreate;
    }
    if holds(&object.want, seen) { Step::Keep } else { Step::Apply }
}

fn revision(seen: &Value) -> Option<u32> {
    seen["metadata"]["annotations"][REVISION_ANNOTATION].as_str()?.parse().ok()
}

/// Whether everything in `want` is in `seen`. Lists are taken as a whole: the API's own defaults may only stand in
/// objects.
fn holds(want: &Value, seen: &Value) -> bool {
    match (want, seen) {
        (Value::Object(want), Value::Object(seen)) => {
            want.iter().all(|(key, want)| seen.get(key).is_some_and(|seen| holds(want, seen)))
        }
        (Value::Array(want), Value::Array(seen)) => {
            want.len() == seen.len() && want.iter().zip(seen).all(|(want, seen)| holds(want, seen))
        }
        (want, seen) => want == seen,
    }
}

/// The same value; empty ones are as good as none.
fn is_same(want: Option<&Value>, seen: Option<&Value>) -> bool {
    let something = |value: &&Value| match value {
        Value::Null => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    };
    want.filter(something) == seen.filter(something)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::objects::waves;

    fn all() -> impl Iterator<Item = Object> {
        waves().into_iter().flatten()
    }

    fn named(kind: &str) -> Object {
        all().find(|object| object.resource.kind == kind).expect("it is kept")
    }

    fn changed(object: &Object, pointer: &str, value: Value) -> Value {
        let mut seen = object.want.clone();
        *seen.pointer_mut(pointer).expect("it is there") = value;
        seen
    }

    #[test]
    fn what_is_missing_is_made_and_what_was_made_is_kept() {
        for object in all() {
            assert_eq!(plan(&object, None), Step::Create);
            assert_eq!(plan(&object, Some(&object.want)), Step::Keep);
        }
    }

    #[test]
    fn what_the_api_server_adds_is_no_drift() {
        for object in all() {
            let mut seen = object.want.clone();
            seen["metadata"]["uid"] = "u".into();
            seen["metadata"]["annotations"]["other"] = "kept".into();
            seen["spec"]["requiresRepublish"] = false.into();
            assert_eq!(plan(&object, Some(&seen)), Step::Keep);
        }
    }

    #[test]
    fn a_changed_field_is_set_again() {
        let role = named("ClusterRole");
        assert_eq!(plan(&role, Some(&changed(&role, "/rules/0/verbs", json!(["get"])))), Step::Apply);
        assert_eq!(plan(&role, Some(&changed(&role, "/rules", json!([])))), Step::Apply);
        let driver = named("CSIDriver");
        assert_eq!(plan(&driver, Some(&changed(&driver, "/spec/fsGroupPolicy", json!("None")))), Step::Apply);
        let class = named("StorageClass");
        assert_eq!(plan(&class, Some(&changed(&class, "/metadata/annotations", json!({})))), Step::Apply);
        let mut seen = role.want.clone();
        seen["rules"].as_array_mut().unwrap().push(json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}));
        assert_eq!(plan(&role, Some(&seen)), Step::Apply);
    }

    #[test]
    fn what_cannot_be_changed_is_made_anew() {
        let class = named("StorageClass");
        let immediate = changed(&class, "/volumeBindingMode", json!("Immediate"));
        assert_eq!(plan(&class, Some(&immediate)), Step::Recreate);
        let mut with_parameters = class.want.clone();
        with_parameters["parameters"] = json!({"type": "fast"});
        assert_eq!(plan(&class, Some(&with_parameters)), Step::Recreate);
        with_parameters["parameters"] = json!({});
        assert_eq!(plan(&class, Some(&with_parameters)), Step::Keep);
        let driver = named("CSIDriver");
        let attached = changed(&driver, "/spec/attachRequired", json!(true));
        assert_eq!(plan(&driver, Some(&attached)), Step::Recreate);
        let binding = named("ClusterRoleBinding");
        let admin = changed(&binding, "/roleRef/name", json!("cluster-admin"));
        assert_eq!(plan(&binding, Some(&admin)), Step::Recreate);
    }

    #[test]
    fn objects_of_a_newer_release_are_left_alone_and_older_ones_are_not() {
        for object in all() {
            let at = |revision: &str| {
                let mut seen = json!({"metadata": {"annotations": {}}, "provisioner": "another"});
                seen["metadata"]["annotations"][REVISION_ANNOTATION] = revision.into();
                plan(&object, Some(&seen))
            };
            assert_eq!(at(&(REVISION + 1).to_string()), Step::Leave { revision: REVISION + 1 });
            for revision in ["0", &REVISION.to_string(), "", "-1", "99999999999"] {
                assert!(matches!(at(revision), Step::Apply | Step::Recreate), "{revision}");
            }
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (0u8..3).prop_map(Value::from),
            "[ab]{0,2}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[ab]", inner, 0..3)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    /// What a server-side apply makes of fields in objects.
    fn applied(want: &Value, seen: &Value) -> Value {
        match (want, seen) {
            (Value::Object(want), Value::Object(seen)) => {
                let mut all = seen.clone();
                for (key, want) in want {
                    let merged = seen.get(key).map_or_else(|| want.clone(), |seen| applied(want, seen));
                    all.insert(key.clone(), merged);
                }
                Value::Object(all)
            }
            (want, _) => want.clone(),
        }
    }

    proptest! {
        #[test]
        fn after_an_apply_nothing_is_left_to_do(want in any_json(), seen in any_json()) {
            prop_assert!(holds(&want, &want));
            prop_assert!(holds(&want, &applied(&want, &seen)));
        }

        #[test]
        fn whatever_is_seen_is_planned_for(seen in any_json()) {
            for object in all() {
                let _ = plan(&object, Some(&seen));
            }
        }
    }
}
