//! Writes what of the chart is made from Rust, and the plain manifests: `bazel run //node/kubernetes/standalone:chart`. A test
//! of this program, and the suite that renders the chart, tell when the files are not what it would write.
#![forbid(unsafe_code)]

use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use reconciler::agents::{Accounts, objects};
use serde_json::Value;

const ACCESS: &str = "node/kubernetes/standalone/chart/templates/access.yaml";
const MANIFESTS: &str = "node/kubernetes/standalone/manifests.yaml";
const CHART: &str = "node/kubernetes/standalone/chart";

/// Where the objects of the plain manifests are.
const NAMESPACE: &str = "kube-system";

fn main() -> ExitCode {
    match write() {
        Ok(()) => {
            println!("{ACCESS} and {MANIFESTS} are written");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: cannot write the chart: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write() -> Result<(), Box<dyn Error>> {
    // `bazel run` says where the source tree is; without Bazel one starts it there.
    let root = env::var_os("BUILD_WORKSPACE_DIRECTORY").map_or_else(|| PathBuf::from("."), PathBuf::from);
    let render = env::var_os("HELM_RENDER").ok_or("HELM_RENDER is not set; run the program by its Bazel target")?;
    fs::write(root.join(ACCESS), access())?;
    let rendered =
        Command::new(std::path::absolute(Path::new(&render))?).arg(root.join(CHART)).arg(NAMESPACE).output()?;
    if !rendered.status.success() {
        return Err(String::from_utf8_lossy(&rendered.stderr).into_owned().into());
    }
    let manifests = format!("{HEAD_OF_MANIFESTS}{}", String::from_utf8(rendered.stdout)?);
    Ok(fs::write(root.join(MANIFESTS), manifests)?)
}

const HEAD_OF_MANIFESTS: &str = "\
# Written by `bazel run //node/kubernetes/standalone:chart`: the chart beside this file with its default values.
# docs/operations/other-clusters.md tells what to change, the image before all.
";

const HEAD_OF_ACCESS: &str = "\
# Written by `bazel run //node/kubernetes/standalone:chart` from node/kubernetes/reconciler/src/agents.rs: change that file.
# What the pods may not do stands before what they may.
";

/// Policies, roles and the driver.
fn access() -> String {
    let accounts =
        Accounts { namespace: "{{ .Release.Namespace }}", node: "granary-storage", release: "granary-release" };
    let mut text = HEAD_OF_ACCESS.to_owned();
    for (number, object) in objects(accounts).iter().enumerate() {
        if number > 0 {
            text.push_str("---\n");
        }
        block(&mut text, object, 0);
    }
    text
}

/// A value as lines of YAML, which begin where the text ends.
fn block(text: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (number, (key, value)) in ordered(fields).into_iter().enumerate() {
                // In a list the first field stands behind the dash.
                let behind_a_dash = number == 0 && text.ends_with("- ");
                let space = if behind_a_dash { 0 } else { indent };
                // A String takes everything.
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
        // As in JSON, which YAML contains.
        other => {
            let _ = writeln!(text, "{other}");
        }
    }
}

/// The value of a field.
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

/// As people write objects: what it is comes first.
fn ordered(fields: &serde_json::Map<String, Value>) -> Vec<(&String, &Value)> {
    const FIRST: [&str; 5] = ["apiVersion", "kind", "metadata", "name", "expression"];
    let mut ordered: Vec<_> = fields.iter().collect();
    ordered.sort_by_key(|(key, _)| {
        let place = FIRST.iter().position(|first| first == key).unwrap_or(FIRST.len());
        (place, key.as_str())
    });
    ordered
}

/// Plain if it can be nothing but a text, else in quotes.
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

    #[test]
    fn the_chart_has_what_the_reconciler_says() {
        let there = include_str!("../../chart/templates/access.yaml");
        assert!(there == access(), "{ACCESS} is old; write it anew: bazel run //node/kubernetes/standalone:chart");
    }

    #[test]
    fn what_is_written_is_what_was_meant() {
        let accounts =
            Accounts { namespace: "{{ .Release.Namespace }}", node: "granary-storage", release: "granary-release" };
        let body = access().replace(HEAD_OF_ACCESS, "");
        let read: Vec<Value> = serde_saphyr::from_multiple(&body).unwrap();
        assert_eq!(read, objects(accounts));
    }

    #[test]
    fn texts_that_could_be_something_else_are_in_quotes() {
        for text in ["", "yes", "No", "1.0", "-", "a: b", "#", "*", "{a}", "true", "a\"b", " a", "~"] {
            assert!(scalar(text).starts_with('"'), "{text}");
        }
        for text in ["v1", "rbac.authorization.k8s.io/v1", "granary-storage"] {
            assert_eq!(scalar(text), text);
        }
    }
}
