//! `allowedTopologies` of a class. Pure.
//!
//! The scheduler selects nodes by these topologies, but users can write the annotation with the selected node
//! themselves.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{TopologySelectorLabelRequirement, TopologySelectorTerm};
use k8s_openapi::api::storage::v1::StorageClass;

/// Terms of a class, at least one. One of them has to match the labels of the node.
#[derive(Clone, Copy)]
pub(crate) struct Topologies<'a>(&'a [TopologySelectorTerm]);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OtherTopology {
    pub(crate) allowed: String,
    pub(crate) node: String,
    pub(crate) found: String,
}

impl<'a> Topologies<'a> {
    pub(crate) fn of(class: &'a StorageClass) -> Option<Self> {
        class.allowed_topologies.as_deref().filter(|terms| !terms.is_empty()).map(Self)
    }

    /// Matches like the scheduler (`MatchTopologySelectorTerms`): a term without expressions matches no node.
    pub(crate) fn check(self, node: &str, labels: &BTreeMap<String, String>) -> Result<(), OtherTopology> {
        let matches = |expression: &TopologySelectorLabelRequirement| {
            labels.get(&expression.key).is_some_and(|value| expression.values.contains(value))
        };
        let allowed = self.0.iter().map(expressions).any(|term| !term.is_empty() && term.iter().all(matches));
        if allowed {
            return Ok(());
        }
        let keys: BTreeSet<_> = self.0.iter().flat_map(expressions).map(|expression| &expression.key).collect();
        let found = keys.into_iter().map(|key| match labels.get(key) {
            Some(value) => format!("{key}={value}"),
            None => format!("no label {key}"),
        });
        let found = found.collect::<Vec<_>>().join(", ");
        Err(OtherTopology { allowed: self.text(), node: node.to_owned(), found })
    }

    fn text(self) -> String {
        let term = |term: &TopologySelectorTerm| {
            let expressions = expressions(term).iter();
            let texts =
                expressions.map(|expression| format!("{} in ({})", expression.key, expression.values.join(", ")));
            texts.collect::<Vec<_>>().join(" and ")
        };
        self.0.iter().map(term).filter(|term| !term.is_empty()).collect::<Vec<_>>().join(" or ")
    }
}

fn expressions(term: &TopologySelectorTerm) -> &[TopologySelectorLabelRequirement] {
    term.match_label_expressions.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const ZONE: &str = "topology.kubernetes.io/zone";

    fn class(terms: Value) -> StorageClass {
        let class = json!({"provisioner": volume::DRIVER_NAME, "allowedTopologies": terms});
        serde_json::from_value(class).expect("a class")
    }

    fn checked(terms: Value, labels: &[(&str, &str)]) -> Result<(), OtherTopology> {
        let class = class(terms);
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Topologies::of(&class).expect("terms").check("granary", &labels)
    }

    fn of(key: &str, values: &[&str]) -> Value {
        json!({"key": key, "values": values})
    }

    #[test]
    fn a_class_without_terms_allows_all_nodes() {
        assert!(Topologies::of(&StorageClass::default()).is_none());
        assert!(Topologies::of(&class(json!([]))).is_none());
    }

    #[test]
    fn one_term_must_match_with_all_its_expressions() {
        let both = json!({"matchLabelExpressions": [of(ZONE, &["a", "b"]), of("disk", &["fast"])]});
        let other = json!({"matchLabelExpressions": [of(ZONE, &["c"])]});
        let terms = json!([both, other]);
        assert_eq!(checked(terms.clone(), &[(ZONE, "b"), ("disk", "fast")]), Ok(()));
        assert_eq!(checked(terms.clone(), &[(ZONE, "c")]), Ok(()));
        for labels in [&[(ZONE, "a")][..], &[("disk", "fast")], &[(ZONE, "d"), ("disk", "fast")], &[]] {
            assert!(checked(terms.clone(), labels).is_err(), "{labels:?}");
        }
    }

    #[test]
    fn a_term_without_expressions_matches_no_node() {
        for terms in [json!([{}]), json!([{"matchLabelExpressions": []}])] {
            assert!(checked(terms, &[(ZONE, "a")]).is_err());
        }
    }

    #[test]
    fn an_error_has_the_terms_and_the_labels() {
        let terms = json!([
            {"matchLabelExpressions": [of(ZONE, &["a", "b"]), of("disk", &["fast"])]},
            {"matchLabelExpressions": [of(ZONE, &["c"])]},
        ]);
        let expected = OtherTopology {
            allowed: format!("{ZONE} in (a, b) and disk in (fast) or {ZONE} in (c)"),
            node: "granary".into(),
            found: format!("no label disk, {ZONE}=d"),
        };
        assert_eq!(checked(terms, &[(ZONE, "d")]), Err(expected));
    }
}
