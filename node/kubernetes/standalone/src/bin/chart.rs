//! Writes the generated files of the chart: `bazel run //node/kubernetes/standalone:chart`. A test checks that the files
//! are current.
#![forbid(unsafe_code)]

use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use reconciler::agents::{Accounts, objects};
use serde_json::Value;

const CHART: &str = "node/kubernetes/standalone/chart";
const ALERTS: &str = "docs/operations/alerts.yaml";

const ACCOUNTS: Accounts<'_> =
    Accounts { namespace: "{{ .Release.Namespace }}", node: "granary-storage", reclaimer: "granary-reclaimer" };

/// Labels of an object before the template of labels replaces them.
const PLACEHOLDER: &str = "labels: LABELS";
const LABELS: &str = r#"labels: {{- include "granary.labels" (list . "granary-storage" "access") | nindent 4 }}"#;

/// Group of alerts about metrics that the pods have.
const GROUP: &str = "  - name: granary-storage\n";

fn main() -> ExitCode {
    match write() {
        Ok(()) => {
            println!("generated files of {CHART} written");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: cannot write the chart: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write() -> Result<(), Box<dyn Error>> {
    let root = env::var_os("BUILD_WORKSPACE_DIRECTORY").map_or_else(|| PathBuf::from("."), PathBuf::from);
    let chart = root.join(CHART);
    fs::write(chart.join("templates/access.yaml"), access())?;
    fs::write(chart.join("alerts.yaml"), alerts(&fs::read_to_string(root.join(ALERTS))?))?;
    Ok(fs::write(chart.join("README.md"), readme(&fs::read_to_string(chart.join("values.yaml"))?))?)
}

const HEAD_OF_ACCESS: &str = "\
# Written by `bazel run //node/kubernetes/standalone:chart` from node/kubernetes/reconciler/src/agents.rs: change that file.
# The policies that restrict the pods precede their roles.
";

const HEAD_OF_ALERTS: &str = "\
# Written by `bazel run //node/kubernetes/standalone:chart` from docs/operations/alerts.yaml: change that file.
groups:
";

const HEAD_OF_README: &str = "\
<!-- Written by `bazel run //node/kubernetes/standalone:chart` from values.yaml: change that file. -->
# granary-storage

Local volumes with enforced sizes, on nodes that have an XFS directory with project quotas. Each volume is a directory with a project
quota, or an image of a block device; writes beyond its size fail with `ENOSPC`.

```
helm install granary . --namespace kube-system --set image.repository=registry.example/granary/storage
```

[Other clusters](../../../../docs/operations/other-clusters.md) has the requirements, recipes for the directory, the upgrade from former
values, and the removal.

## Values

Unknown and invalid values are rejected.

| value | default | meaning |
|---|---|---|
";

/// Policies, roles, the Lease and the driver.
fn access() -> String {
    let mut text = HEAD_OF_ACCESS.to_owned();
    for (number, object) in labelled().iter().enumerate() {
        if number > 0 {
            text.push_str("---\n");
        }
        block(&mut text, object, 0);
    }
    text.replace(PLACEHOLDER, LABELS)
}

fn labelled() -> Vec<Value> {
    let mut objects = objects(ACCOUNTS);
    for object in &mut objects {
        object["metadata"]["labels"] = "LABELS".into();
    }
    objects
}

fn alerts(source: &str) -> String {
    let group = source.split_once(GROUP).map_or("", |(_, rest)| rest);
    let group = group.split("\n  - name: ").next().unwrap_or_default();
    format!("{HEAD_OF_ALERTS}{GROUP}{}\n", group.trim_end())
}

fn readme(values: &str) -> String {
    let rows = rows(values).into_iter().map(|Row { path, default, meaning }| {
        let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
        format!("| `{path}` | {default} | {} |\n", meaning.replace('|', "\\|"))
    });
    rows.fold(HEAD_OF_README.to_owned(), |text, row| text + &row)
}

/// A value of the chart, or a group of values without a default.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    path: String,
    default: String,
    meaning: String,
}

/// Parses the rows of values.yaml, which has one value on each line, after its comment.
fn rows(values: &str) -> Vec<Row> {
    let (mut rows, mut path, mut comment) = (Vec::new(), Vec::new(), Vec::new());
    for line in values.lines() {
        let text = line.trim_start();
        if let Some(words) = text.strip_prefix("# ") {
            comment.push(words);
        } else if let Some((key, default)) = text.split_once(':') {
            path.truncate((line.len() - text.len()) / 2);
            path.push(key);
            let meaning = std::mem::take(&mut comment).join(" ");
            rows.push(Row { path: path.join("."), default: default.trim().to_owned(), meaning });
        } else {
            comment.clear();
        }
    }
    rows.retain(|row| !(row.default.is_empty() && row.meaning.is_empty()));
    rows
}

/// Appends a value as lines of YAML.
fn block(text: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (number, (key, value)) in ordered(fields).into_iter().enumerate() {
                // The first field of a list item is on the line of the dash.
                let behind_a_dash = number == 0 && text.ends_with("- ");
                let space = if behind_a_dash { 0 } else { indent };
                // Writing to a `String` does not fail.
                let _ = write!(text, "{:space$}{}:", "", scalar(key));
                below(text, value, indent);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                let _ = write!(text, "{:indent$}- ", "");
                block(text, item, indent + 2);
            }
        }
        Value::String(string) => {
            let _ = writeln!(text, "{}", scalar(string));
        }
        // Write the value as JSON, which is a subset of YAML.
        other => {
            let _ = writeln!(text, "{other}");
        }
    }
}

fn below(text: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Array(items) if items.iter().all(Value::is_string) => {
            let items: Vec<String> = items.iter().filter_map(Value::as_str).map(scalar).collect();
            let _ = writeln!(text, " [{}]", items.join(", "));
        }
        Value::Object(fields) if !fields.is_empty() => {
            text.push('\n');
            block(text, value, indent + 2);
        }
        Value::Array(items) if !items.is_empty() => {
            text.push('\n');
            block(text, value, indent + 2);
        }
        _ => {
            text.push(' ');
            block(text, value, indent);
        }
    }
}

/// Fields in the conventional order of Kubernetes objects.
fn ordered(fields: &serde_json::Map<String, Value>) -> Vec<(&String, &Value)> {
    const FIRST: [&str; 5] = ["apiVersion", "kind", "metadata", "name", "expression"];
    let mut ordered: Vec<_> = fields.iter().collect();
    ordered.sort_by_key(|(key, _)| {
        let place = FIRST.iter().position(|first| first == key).unwrap_or(FIRST.len());
        (place, key.as_str())
    });
    ordered
}

/// Quotes the text, unless YAML reads the plain text as a string.
fn scalar(text: &str) -> String {
    let letter = text.starts_with(|first: char| first.is_ascii_alphabetic());
    let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "-./_".contains(c));
    let word = !matches!(
        text.to_ascii_lowercase().as_str(),
        "true" | "false" | "null" | "yes" | "no" | "on" | "off" | "y" | "n"
    );
    if letter && plain && word { text.to_owned() } else { Value::from(text).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUES: &str = include_str!("../../chart/values.yaml");

    #[test]
    fn the_generated_files_are_current() {
        let alerts = alerts(include_str!("../../../../../docs/operations/alerts.yaml"));
        for (file, found, current) in [
            ("templates/access.yaml", include_str!("../../chart/templates/access.yaml"), access()),
            ("alerts.yaml", include_str!("../../chart/alerts.yaml"), alerts),
            ("README.md", include_str!("../../chart/README.md"), readme(VALUES)),
        ] {
            assert!(found == current, "{file} is old; run: bazel run //node/kubernetes/standalone:chart");
        }
    }

    #[test]
    fn access_yaml_contains_the_objects_of_the_reconciler() {
        let text = access().replace(HEAD_OF_ACCESS, "").replace(LABELS, PLACEHOLDER);
        let read: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        assert_eq!(read, labelled());
        assert_eq!(access().matches(LABELS).count(), read.len());
    }

    #[test]
    fn alerts_yaml_contains_the_rules_of_one_group() {
        let read = |text: &str| serde_saphyr::from_str::<Value>(text).unwrap();
        let all = read(include_str!("../../../../../docs/operations/alerts.yaml"));
        let of_group = all["groups"].as_array().unwrap().iter().find(|group| group["name"] == "granary-storage");
        let chart = read(include_str!("../../chart/alerts.yaml"));
        assert_eq!(chart["groups"].as_array().unwrap().iter().collect::<Vec<_>>(), [of_group.unwrap()]);
    }

    #[test]
    fn every_value_has_a_description() {
        let rows = rows(VALUES);
        assert!(rows.iter().all(|row| !row.meaning.is_empty()), "{rows:?}");
        let values: Value = serde_saphyr::from_str(VALUES).unwrap();
        for row in rows.iter().filter(|row| !row.default.is_empty()) {
            let value = row.path.split('.').fold(&values, |value, key| &value[key]);
            assert_eq!(serde_saphyr::from_str::<Value>(&row.default).unwrap(), *value, "{}", row.path);
        }
        let count = |value: &Value| value.as_object().map_or(0, serde_json::Map::len);
        let limits = count(&values["node"]["limits"]);
        let leaves: usize = values.as_object().unwrap().values().map(|value| count(value).max(1)).sum();
        assert_eq!(rows.iter().filter(|row| !row.default.is_empty()).count(), leaves + limits - 1);
    }

    /// With `--set` alone, Helm resets all other values: the pods would get an image that does not exist.
    #[test]
    fn upgrades_in_the_notes_keep_the_other_values() {
        let notes = include_str!("../../chart/templates/NOTES.txt");
        let lines: Vec<_> = notes.lines().filter(|line| line.contains("--set ")).collect();
        assert!(!lines.is_empty(), "the notes have no upgrade");
        for line in lines {
            assert!(line.contains("helm upgrade ") && line.contains(" --reuse-values "), "{line}");
        }
    }

    #[test]
    fn ambiguous_texts_are_quoted() {
        for text in ["", "yes", "No", "1.0", "-", "a: b", "#", "*", "{a}", "true", "a\"b", " a", "~"] {
            assert!(scalar(text).starts_with('"'), "{text}");
        }
        for text in ["v1", "rbac.authorization.k8s.io/v1", "granary-storage"] {
            assert_eq!(scalar(text), text);
        }
    }
}
