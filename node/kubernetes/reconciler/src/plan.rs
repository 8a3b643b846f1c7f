//! Compares an object with its wanted state. Pure.

use serde_json::Value;

use crate::object::{DEFAULT_CLASS, Object, REVISION, REVISION_ANNOTATION};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Keep,
    /// A newer release, with this revision, maintains the object.
    Leave {
        revision: u32,
    },
    /// Another client maintains the object.
    Ignore,
    Create,
    Apply,
    /// An immutable field differs.
    Recreate,
}

pub(crate) fn plan(object: &Object, found: Option<&Value>) -> Step {
    let Some(found) = found else { return Step::Create };
    let released = revision(&object.want).and_then(|_| revision(found));
    if let Some(revision) = released.filter(|revision| *revision > REVISION) {
        return Step::Leave { revision };
    }
    if object.is_definition() && is_foreign(&object.want, found) {
        return Step::Ignore;
    }
    let differs = |pointer: &&&str| !is_same(object.want.pointer(pointer), found.pointer(pointer));
    if object.immutable.iter().any(|pointer| differs(&pointer)) {
        return Step::Recreate;
    }
    if holds(&wanted(object, Some(found)), found) { Step::Keep } else { Step::Apply }
}

/// The fields to apply. Administrators choose the default class, so a class that the reconciler created keeps its
/// annotation. An apply without the annotation removes it, because the reconciler has created it.
pub(crate) fn wanted(object: &Object, found: Option<&Value>) -> Value {
    let mut want = object.want.clone();
    let managed = found.filter(|found| revision(found).is_some());
    let annotations = want.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
    if let (Some(found), Some(annotations)) = (managed, annotations) {
        annotations.retain(|name, value| match &found["metadata"]["annotations"][name] {
            _ if !name.ends_with(DEFAULT_CLASS) => true,
            Value::Null => false,
            chosen => {
                *value = chosen.clone();
                true
            }
        });
    }
    want
}

fn revision(found: &Value) -> Option<u32> {
    found["metadata"]["annotations"][REVISION_ANNOTATION].as_str()?.parse().ok()
}

/// Whether another client has written the definition, or a newer release has replaced it: the definition has a version
/// that `want` lacks.
fn is_foreign(want: &Value, found: &Value) -> bool {
    let versions = |definition: &Value| {
        let versions = definition["spec"]["versions"].as_array().cloned().unwrap_or_default();
        versions.into_iter().map(|version| version["name"].clone()).collect::<Vec<_>>()
    };
    let wanted = versions(want);
    revision(found).is_none() || versions(found).iter().any(|version| !wanted.contains(version))
}

/// Whether `found` contains all of `want`. Lists are compared as a whole: the API server adds defaults only to objects.
fn holds(want: &Value, found: &Value) -> bool {
    match (want, found) {
        (Value::Object(want), Value::Object(found)) => {
            want.iter().all(|(key, want)| found.get(key).is_some_and(|found| holds(want, found)))
        }
        (Value::Array(want), Value::Array(found)) => {
            want.len() == found.len() && want.iter().zip(found).all(|(want, found)| holds(want, found))
        }
        (want, found) => want == found,
    }
}

/// Whether the values are equal. An empty value equals a missing one.
fn is_same(want: Option<&Value>, found: Option<&Value>) -> bool {
    let something = |value: &&Value| match value {
        Value::Null => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    };
    want.filter(something) == found.filter(something)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::objects::waves;
    use crate::removed::Removed;

    fn all() -> impl Iterator<Item = Object> {
        waves(&Removed::new()).into_iter().flatten()
    }

    fn named(kind: &str) -> Object {
        all().find(|object| object.resource.kind == kind).expect("it is kept")
    }

    fn changed(object: &Object, pointer: &str, value: Value) -> Value {
        let mut found = object.want.clone();
        *found.pointer_mut(pointer).expect("it is there") = value;
        found
    }

    #[test]
    fn missing_objects_are_created_and_correct_ones_kept() {
        for object in all() {
            assert_eq!(plan(&object, None), Step::Create);
            assert_eq!(plan(&object, Some(&object.want)), Step::Keep);
        }
    }

    #[test]
    fn fields_of_the_api_server_are_not_drift() {
        for object in all() {
            let mut found = object.want.clone();
            found["metadata"]["uid"] = "u".into();
            found["metadata"]["annotations"]["other"] = "kept".into();
            found["spec"]["requiresRepublish"] = false.into();
            assert_eq!(plan(&object, Some(&found)), Step::Keep);
        }
    }

    #[test]
    fn a_changed_field_is_applied() {
        let role = named("ClusterRole");
        assert_eq!(plan(&role, Some(&changed(&role, "/rules/0/verbs", json!(["get"])))), Step::Apply);
        assert_eq!(plan(&role, Some(&changed(&role, "/rules", json!([])))), Step::Apply);
        let driver = named("CSIDriver");
        assert_eq!(plan(&driver, Some(&changed(&driver, "/spec/fsGroupPolicy", json!("None")))), Step::Apply);
        let class = named("StorageClass");
        assert_eq!(plan(&class, Some(&changed(&class, "/metadata/annotations", json!({})))), Step::Apply);
        let mut found = role.want.clone();
        found["rules"].as_array_mut().unwrap().push(json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}));
        assert_eq!(plan(&role, Some(&found)), Step::Apply);
    }

    #[test]
    fn a_class_that_is_not_the_default_any_more_is_correct() {
        let default = format!("storageclass.kubernetes.io/{DEFAULT_CLASS}");
        let class = named("StorageClass");
        let changed = |chosen: Option<&str>| {
            let mut found = class.want.clone();
            let annotations = found["metadata"]["annotations"].as_object_mut().unwrap();
            match chosen {
                Some(chosen) => annotations.insert(default.clone(), chosen.into()),
                None => annotations.remove(&default),
            };
            found
        };
        for chosen in [Some("false"), Some("true"), None] {
            let mut found = changed(chosen);
            assert_eq!(plan(&class, Some(&found)), Step::Keep, "{chosen:?}");
            found["allowVolumeExpansion"] = false.into();
            assert_eq!(plan(&class, Some(&found)), Step::Apply, "{chosen:?}");
            assert_eq!(wanted(&class, Some(&found)), changed(chosen));
        }
        assert_eq!(wanted(&class, None), class.want);
        let foreign = json!({"metadata": {"annotations": {&default: "false"}}});
        assert_eq!(wanted(&class, Some(&foreign)), class.want, "not created by the reconciler");
    }

    #[test]
    fn a_changed_immutable_field_recreates_the_object() {
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
    fn only_objects_of_a_newer_release_are_ignored() {
        for object in all() {
            let at = |revision: &str| {
                let mut found = json!({"metadata": {"annotations": {}}, "provisioner": "another"});
                found["metadata"]["annotations"][REVISION_ANNOTATION] = revision.into();
                plan(&object, Some(&found))
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

    /// The result of a server-side apply.
    fn applied(want: &Value, found: &Value) -> Value {
        match (want, found) {
            (Value::Object(want), Value::Object(found)) => {
                let mut all = found.clone();
                for (key, want) in want {
                    let merged = found.get(key).map_or_else(|| want.clone(), |found| applied(want, found));
                    all.insert(key.clone(), merged);
                }
                Value::Object(all)
            }
            (want, _) => want.clone(),
        }
    }

    proptest! {
        #[test]
        fn an_applied_object_is_correct(want in any_json(), found in any_json()) {
            prop_assert!(holds(&want, &want));
            prop_assert!(holds(&want, &applied(&want, &found)));
        }

        #[test]
        fn any_object_is_accepted(found in any_json()) {
            for object in all() {
                let _ = plan(&object, Some(&found));
            }
        }
    }
}
