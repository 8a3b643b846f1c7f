//! A maintained object, as data.

use kube::api::ApiResource;
use serde_json::{Value, json};

/// Incremented with each change of a maintained object. An older release ignores objects of a newer one.
pub const REVISION: u32 = 13;

pub(crate) const REVISION_ANNOTATION: &str = "local.granary.dev/revision";

/// The name of the annotation of a default class, in the domain of its kind.
pub(crate) const DEFAULT_CLASS: &str = "is-default-class";

#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) resource: ApiResource,
    pub(crate) name: &'static str,
    /// All wanted fields. The API server and other clients may add others. Without the annotation of the revision, the object is
    /// also maintained if a newer release has written it.
    pub(crate) want: Value,
    /// Fields that cannot be changed: an object with other values is deleted and created again. Those that are not in `want`
    /// must be missing.
    pub(crate) immutable: &'static [&'static str],
}

impl Object {
    /// Whether it defines a kind. Other projects install the same definitions.
    pub(crate) fn is_definition(&self) -> bool {
        self.resource.kind == "CustomResourceDefinition"
    }
}

pub(crate) fn metadata(name: &str) -> Value {
    json!({"name": name, "annotations": {REVISION_ANNOTATION: REVISION.to_string()}})
}
