//! Alert rules of Prometheus.

use std::collections::BTreeMap;

use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    #[serde(rename = "name")]
    _name: String,
    rules: Vec<Alert>,
}

/// An alert rule. A missing or unknown field is an error.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alert {
    #[serde(rename = "alert")]
    pub name: String,
    #[serde(rename = "expr")]
    pub expression: String,
    #[serde(rename = "for", default)]
    pub lasts: Option<String>,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    pub annotations: Annotations,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Annotations {
    pub summary: String,
    pub description: String,
    /// Link to the remedy: path below the project's root, with the heading as the fragment.
    pub runbook: String,
}

pub fn alerts(yaml: &str) -> Result<Vec<Alert>, serde_saphyr::Error> {
    let Rules { groups } = serde_saphyr::from_str(yaml)?;
    Ok(groups.into_iter().flat_map(|group| group.rules).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = "
groups:
  - name: granary
    rules:
      - alert: Full
        expr: granary_free_bytes == 0
        for: 5m
        labels: {severity: warning}
        annotations:
          summary: The disk is full.
          description: >-
            Nothing
            fits.
          runbook: docs/operations/disks.md#full
";

    #[test]
    fn an_alert_is_read_with_all_of_its_fields() {
        let found = alerts(RULES).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].name.as_str(), found[0].lasts.as_deref()), ("Full", Some("5m")));
        assert_eq!(found[0].annotations.description, "Nothing fits.");
    }

    #[test]
    fn an_alert_that_does_not_say_what_to_do_is_refused() {
        let without = RULES.replace("          runbook: docs/operations/disks.md#full\n", "");
        assert!(alerts(&without).unwrap_err().to_string().contains("runbook"));
    }

    #[test]
    fn a_misspelt_field_is_refused() {
        assert!(alerts(&RULES.replace("for: 5m", "fore: 5m")).is_err());
    }
}
