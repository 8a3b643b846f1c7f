//! A maintained object, as data.

use kube::api::ApiResource;
use serde_json::{Value, json};

/// Revision of the maintained objects, incremented with each change. An older release ignores objects of a newer one.
pub const REVISION: u32 = 15;

pub(crate) const REVISION_ANNOTATION: &str = "local.granary.dev/revision";

/// Name of the annotation of a default class, without the domain of its kind.
pub(crate) const DEFAULT_CLASS: &str = "is-default-class";

#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) resource: ApiResource,
    pub(crate) name: &'static str,
    /// All wanted fields. The API server and other clients may add others. An object without the revision annotation is
    /// also maintained if a newer release has written it.
    pub(crate) want: Value,
    /// Immutable fields: an object with other values is deleted and created again. Fields of this list that are not in
    /// `want` must be missing.
    pub(crate) immutable: &'static [&'static str],
}

impl Object {
    /// Whether the object defines a kind. Other projects install the same definitions.
    pub(crate) fn is_definition(&self) -> bool {
        self.resource.kind == "CustomResourceDefinition"
    }
}

pub(crate) fn metadata(name: &str) -> Value {
    json!({"name": name, "annotations": {REVISION_ANNOTATION: REVISION.to_string()}})
}
