//! Objects that the cases of several suites create.

use serde_json::{Value, json};

/// A claim of 1 GiB. `more` contains additional fields of its spec.
pub fn claim(metadata: Value, class: &str, more: Value) -> Value {
    let mut claim = json!({"metadata": metadata, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": class,
    }});
    for (key, value) in more.as_object().into_iter().flatten() {
        claim["spec"][key] = value.clone();
    }
    claim
}
