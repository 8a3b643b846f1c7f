//! Tests of the project's own documents, texts and files, which read its whole tree.

mod cycles;
mod modules;
mod registries;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use docs::{Alert, Claims, Described, Page};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim, Pod, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::api::storage::v1::{StorageClass, VolumeAttributesClass};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

const METRICS: &str = "docs/metrics.md";
const ALERTS: &str = "docs/operations/alerts.yaml";
const DASHBOARD: &str = "docs/operations/grafana-dashboard.json";
const SECURITY: &str = "docs/operations/security.md";

/// Directory of MODULE.bazel: the working directory in Bazel, and two levels above it in cargo.
fn root() -> PathBuf {
    let file = ["MODULE.bazel", "../../MODULE.bazel"].iter().find_map(|path| fs::canonicalize(path).ok());
    file.expect("MODULE.bazel is found").parent().expect("a file is in a directory").to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn files(endings: &[&str]) -> BTreeMap<PathBuf, String> {
    let root = root();
    let mut found = BTreeMap::new();
    let mut left = vec![root.clone()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).expect("a directory of the project") {
            let entry = entry.expect("an entry");
            let name = entry.file_name().into_string().expect("names are text");
            let kind = entry.file_type().expect("its type");
            // Skip build results and hidden files.
            if name.starts_with('.') || name.starts_with("bazel-") || name == "target" {
                continue;
            }
            if kind.is_dir() {
                left.push(entry.path());
            } else if kind.is_file() && endings.iter().any(|ending| name.ends_with(ending)) {
                let text = fs::read_to_string(entry.path()).expect("a source is text");
                found.insert(entry.path().strip_prefix(&root).expect("below the root").to_owned(), text);
            }
        }
    }
    found
}

fn pages() -> BTreeMap<PathBuf, Page> {
    files(&[".md"]).into_iter().map(|(path, text)| (path, Page::parse(&text))).collect()
}

/// Problem of a link on a page, if any. External addresses are not checked.
fn problem(root: &Path, pages: &BTreeMap<PathBuf, Page>, from: &Path, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, fragment) = link.split_once('#').map_or((link, None), |(path, fragment)| (path, Some(fragment)));
    let target = if path.is_empty() {
        from.to_owned()
    } else {
        let Some(target) = normal(&from.parent()?.join(path)) else {
            return Some(format!("{}: {link} leads out of the project", from.display()));
        };
        target
    };
    if !root.join(&target).exists() {
        return Some(format!("{}: {link} leads to nothing", from.display()));
    }
    let fragment = fragment?;
    let known = pages.get(&target).is_some_and(|page| page.anchors.contains(fragment));
    (!known).then(|| format!("{}: {link}: no heading #{fragment} in {}", from.display(), target.display()))
}

/// Path without `..`, or `None` if the path leaves the root.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => normal.push(name),
            Component::ParentDir => normal.pop().then_some(())?,
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(normal)
}

fn assert_none(problems: &[String]) {
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

fn alerts() -> Vec<Alert> {
    docs::alerts(&read(ALERTS)).unwrap_or_else(|error| panic!("{ALERTS}: {error}"))
}

fn described() -> Described {
    let described = Described::parse(&read(METRICS));
    assert!(!described.is_empty(), "{METRICS} has its tables");
    described
}

#[test]
fn every_link_leads_to_a_file_or_a_heading() {
    let (root, pages) = (root(), pages());
    assert!(pages.len() > 30, "the pages are found: {:?}", pages.keys());
    let links = pages.iter().flat_map(|(path, page)| page.links.iter().map(move |link| (path, link)));
    let problems: Vec<String> = links.filter_map(|(path, link)| problem(&root, &pages, path, link)).collect();
    assert_none(&problems);
}

#[test]
fn a_link_to_nothing_is_found() {
    let (root, pages) = (root(), pages());
    let from = Path::new("docs/metrics.md");
    for link in ["nowhere.md", "status.md#nowhere", "../README.md#nowhere", "../../outside.md", "#nowhere"] {
        assert!(problem(&root, &pages, from, link).is_some(), "{link}");
    }
    for link in ["status.md", "adr/", "../README.md#crates", "#metrics", "https://example.invalid/x.md"] {
        assert_eq!(problem(&root, &pages, from, link), None);
    }
}

#[test]
fn every_operations_page_is_in_the_index() {
    let pages = pages();
    let directory = Path::new("docs/operations");
    let index = &pages[&directory.join("README.md")];
    let listed = |path: &Path| index.links.iter().any(|link| directory.join(link) == path);
    let all = fs::read_dir(root().join(directory)).expect("the pages").map(|entry| entry.expect("a page").file_name());
    let missing: Vec<_> = all.map(|name| directory.join(name)).filter(|path| !listed(path)).collect();
    assert_eq!(missing, [directory.join("README.md")]);
}

#[test]
fn alerts_ask_for_metrics_that_exist() {
    let (alerts, described) = (alerts(), described());
    assert!(alerts.len() > 5, "the alerts are found");
    let problems = alerts.iter().flat_map(|alert| {
        let named = |problem: String| format!("{}: {problem}", alert.name);
        described.problems(&alert.expression).into_iter().map(named).collect::<Vec<_>>()
    });
    assert_none(&problems.collect::<Vec<_>>());
}

#[test]
fn alerts_lead_to_what_to_do() {
    let (root, pages) = (root(), pages());
    let readme = Path::new("README.md");
    let mut problems = Vec::new();
    for Alert { name, labels, annotations, .. } in alerts() {
        let texts = [&annotations.summary, &annotations.description];
        if texts.iter().any(|text| text.trim().is_empty()) {
            problems.push(format!("{name}: an annotation is empty"));
        }
        if !matches!(labels.get("severity").map(String::as_str), Some("warning" | "critical")) {
            problems.push(format!("{name}: a severity is missing, warning or critical"));
        }
        if !annotations.runbook.contains('#') {
            problems.push(format!("{name}: {} names no heading", annotations.runbook));
        }
        problems.extend(problem(&root, &pages, readme, &annotations.runbook).map(|found| format!("{name}: {found}")));
    }
    assert_none(&problems);
}

#[test]
fn the_dashboard_asks_for_metrics_that_exist() {
    let expressions = docs::expressions(&read(DASHBOARD)).unwrap_or_else(|error| panic!("{DASHBOARD}: {error}"));
    assert!(expressions.len() > 10, "the queries are found");
    let described = described();
    assert_none(&expressions.iter().flat_map(|expression| described.problems(expression)).collect::<Vec<_>>());
}

#[test]
fn manifests_in_the_operations_pages_have_valid_fields() {
    let mut problems = Vec::new();
    let mut seen = 0;
    for (path, page) in pages().iter().filter(|(path, _)| path.starts_with("docs/operations")) {
        for example in page.examples.iter().filter(|example| example.language == "yaml") {
            let documents: Vec<Value> = serde_saphyr::from_multiple(&example.text)
                .unwrap_or_else(|error| panic!("{}: {error}\n{}", path.display(), example.text));
            for document in documents.iter().filter(|document| document.get("kind").is_some()) {
                seen += 1;
                problems.extend(lost(document).map(|field| format!("{}: {field}", path.display())));
            }
        }
    }
    assert!(seen > 5, "manifests are found: {seen}");
    assert_none(&problems);
}

/// First field of a manifest, or of its spec, that is not in these lists.
fn unknown(manifest: &Value, fields: &[&str], spec: &[&str]) -> Option<String> {
    let other =
        |object: &Value, known: &[&str]| object.as_object()?.keys().find(|key| !known.contains(&key.as_str())).cloned();
    let common = [&["apiVersion", "kind", "metadata"][..], fields].concat();
    other(manifest, &common).or_else(|| other(&manifest["spec"], spec))
}

/// First field of a manifest that its kind does not have.
fn lost(manifest: &Value) -> Option<String> {
    let kind = manifest["kind"].as_str().unwrap_or_default();
    let kept = match kind {
        "DaemonSet" => kept::<DaemonSet>(manifest),
        "Namespace" => kept::<Namespace>(manifest),
        "PersistentVolume" => kept::<PersistentVolume>(manifest),
        "PersistentVolumeClaim" => kept::<PersistentVolumeClaim>(manifest),
        "Pod" => kept::<Pod>(manifest),
        "Secret" => kept::<Secret>(manifest),
        "ServiceAccount" => kept::<ServiceAccount>(manifest),
        "StorageClass" => kept::<StorageClass>(manifest),
        "VolumeAttributesClass" => kept::<VolumeAttributesClass>(manifest),
        "ClusterRole" => kept::<ClusterRole>(manifest),
        "ClusterRoleBinding" => kept::<ClusterRoleBinding>(manifest),
        // Kinds of CRDs.
        "VolumeSnapshot" => return unknown(manifest, &["spec"], &["source", "volumeSnapshotClassName"]),
        "VolumeGroupSnapshot" => return unknown(manifest, &["spec"], &["source", "volumeGroupSnapshotClassName"]),
        "VolumeSnapshotClass" => return unknown(manifest, &["driver", "deletionPolicy", "parameters"], &[]),
        "VolumeSnapshotContent" => {
            let spec = ["deletionPolicy", "driver", "source", "sourceVolumeMode", "volumeSnapshotRef"];
            return unknown(manifest, &["spec"], &spec);
        }
        other => return Some(format!("add the kind {other} to this test")),
    };
    match kept {
        Ok(kept) => missing(manifest, &kept, kind),
        Err(error) => Some(format!("{kind}: {error}")),
    }
}

fn kept<T: DeserializeOwned + Serialize>(manifest: &Value) -> Result<Value, serde_json::Error> {
    serde_json::to_value(serde_json::from_value::<T>(manifest.clone())?)
}

fn missing(have: &Value, kept: &Value, place: &str) -> Option<String> {
    match (have, kept) {
        (Value::Object(have), Value::Object(kept)) => have.iter().find_map(|(name, have)| {
            let place = format!("{place}.{name}");
            kept.get(name).map_or_else(|| Some(place.clone()), |kept| missing(have, kept, &place))
        }),
        (Value::Array(have), Value::Array(kept)) => {
            have.iter().zip(kept).find_map(|(have, kept)| missing(have, kept, place))
        }
        (have, kept) => (have != kept).then(|| format!("{place} is {have}")),
    }
}

fn target(label: &str) -> (&str, &str) {
    label.trim_start_matches("//").split_once(':').unwrap_or_else(|| panic!("{label} has a colon"))
}

/// Functions, and string literals of one word, in the sources of a package. A suite names its cases in string literals.
fn words_of(sources: &BTreeMap<PathBuf, String>, package: &str) -> BTreeSet<String> {
    let is_word = |text: &&str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let mut words = BTreeSet::new();
    for (_, text) in sources.iter().filter(|(path, _)| path.starts_with(package)) {
        let functions = text.split("fn ").skip(1).filter_map(|rest| rest.split(['(', '<']).next());
        words.extend(functions.chain(text.split('"')).filter(is_word).map(str::to_owned));
    }
    words
}

fn matches(name: &str, word: &str) -> bool {
    match name.split_once('*') {
        None => name == word,
        Some((start, rest)) => word.strip_prefix(start).is_some_and(|word| {
            word.char_indices().map(|(at, _)| at).chain([word.len()]).any(|at| matches(rest, &word[at..]))
        }),
    }
}

/// Whether a test has this name. A suite of attacks has one case per attack and pod.
fn exists(name: &str, words: &BTreeSet<String>) -> bool {
    let of_pods = ["restricted_", "root_", "*_"].iter().filter_map(|pod| name.strip_prefix(pod));
    let mut names = of_pods.chain([name]);
    names.any(|name| words.iter().any(|word| matches(name, word)))
}

#[test]
fn every_test_that_the_security_page_names_exists() {
    // System calls whose names have as many words as a case.
    const CALLS: [&str; 1] = ["open_by_handle_at"];
    let claims = Claims::parse(&read(SECURITY));
    assert!(claims.labels.len() > 20 && claims.cases.len() > 100, "the tests are found: {claims:?}");
    let mut problems: Vec<String> = claims.untested.iter().map(|row| format!("no test: {row}")).collect();
    let (sources, mut packages) = (files(&[".rs"]), BTreeMap::new());
    for label in &claims.labels {
        let (package, name) = target(label);
        let build = read(&format!("{package}/BUILD.bazel"));
        // The macros of //tools/rust create the unit test of a crate.
        let crate_name = name.strip_suffix("_test").unwrap_or(name);
        if ![name, crate_name].iter().any(|name| build.contains(&format!("\"{name}\""))) {
            problems.push(format!("{label}: no such target"));
        }
        packages.entry(package).or_insert_with(|| words_of(&sources, package));
    }
    for case in claims.cases.iter().filter(|case| !CALLS.contains(&case.name.as_str())) {
        let mut words = case.labels.iter().map(|label| &packages[target(label).0]);
        if !words.any(|words| exists(&case.name, words)) {
            problems.push(format!("{}: no such case in {:?}", case.name, case.labels));
        }
    }
    assert_none(&problems);
}

#[test]
fn a_case_that_is_not_there_is_found() {
    let words = words_of(&files(&[".rs"]), "test/attack");
    for name in
        ["restricted_fork_bomb", "*_set_project_*", "root_open_data_disk", "the_node_is_ready_after_the_attacks"]
    {
        assert!(exists(name, &words), "{name}");
    }
    for name in ["restricted_fork_bombs", "*_set_projects_*", "open_data"] {
        assert!(!exists(name, &words), "{name}");
    }
}
