//! The source of a claim whose volume is a clone. Pure.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;

/// The claim of the same namespace whose content the new volume begins with. The API server copies `dataSourceRef` into
/// `dataSource`, unless it names a namespace.
pub(crate) fn source(claim: &PersistentVolumeClaim) -> Option<&str> {
    let source = claim.spec.as_ref()?.data_source.as_ref()?;
    let is_claim = source.api_group.as_deref().unwrap_or_default().is_empty() && source.kind == CLAIM;
    is_claim.then_some(source.name.as_str())
}

/// The kind of the source.
pub(crate) const CLAIM: &str = "PersistentVolumeClaim";

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn only_claims_are_sources() {
        let claim = |source: Value| -> PersistentVolumeClaim {
            serde_json::from_value(json!({"spec": {"dataSource": source}})).unwrap()
        };
        let named = |group: Value, kind: &str| claim(json!({"apiGroup": group, "kind": kind, "name": "data"}));
        assert_eq!(source(&named(Value::Null, CLAIM)), Some("data"));
        assert_eq!(source(&named("".into(), CLAIM)), Some("data"));
        assert_eq!(source(&named("example.com".into(), CLAIM)), None);
        assert_eq!(source(&named("snapshot.storage.k8s.io".into(), "VolumeSnapshot")), None);
        assert_eq!(source(&claim(Value::Null)), None);
    }
}
