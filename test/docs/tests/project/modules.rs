//! Comparison of the kernel modules that the pages name for network plugins with those of the image.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{assert_none, pages, read};

const IMAGE: &str = "node/image/BUILD.bazel";
const PLUGINS: &str = "docs/operations/network-plugin.md";

/// `optional_modules` of the image. `kernelModules` of a configuration accepts no other names.
fn optional() -> BTreeSet<String> {
    let build = read(IMAGE);
    let (_, rule) = build.split_once("name = \"optional_modules\",").expect("the rule of the modules");
    let (list, _) = rule.split_once(']').expect("the end of the list");
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Names in backticks of the sentences that begin with `Modules:`. A star at the end stands for any text.
fn listed(page: &str) -> Vec<&str> {
    let sentences = page.split("Modules: ").skip(1).map(|text| {
        let end = [". ", ".\n"].into_iter().filter_map(|end| text.find(end)).min();
        end.map_or(text, |end| &text[..end])
    });
    sentences.flat_map(|sentence| sentence.split('`').skip(1).step_by(2)).collect()
}

fn contains(modules: &BTreeSet<String>, name: &str) -> bool {
    match name.strip_suffix('*') {
        Some(start) => modules.iter().any(|module| module.starts_with(start)),
        None => modules.contains(name),
    }
}

#[test]
fn modules_of_network_plugins_are_in_the_image() {
    let modules = optional();
    assert!(modules.len() > 50, "the modules of {IMAGE} are found: {modules:?}");
    let plugins = read(PLUGINS);
    let names = listed(&plugins);
    assert!(names.len() > 10, "the modules of {PLUGINS} are found: {names:?}");
    let missing = names.into_iter().filter(|name| !contains(&modules, name));
    let mut problems: Vec<String> = missing.map(|name| format!("{PLUGINS}: {IMAGE} has no module {name}")).collect();
    let mut seen = 0;
    for (path, page) in pages() {
        for example in page.examples.iter().filter(|example| example.language == "json") {
            let configuration: Value = serde_json::from_str(&example.text).unwrap_or_default();
            for name in configuration["kernelModules"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                seen += 1;
                if !modules.contains(name) {
                    problems.push(format!("{}: {IMAGE} has no module {name}", path.display()));
                }
            }
        }
    }
    assert!(seen > 3, "the modules of the examples are found: {seen}");
    assert_none(&problems);
}

#[test]
fn a_module_that_the_image_does_not_have_is_found() {
    let page = "Modules: `a`, `b_*` of [c](https://d.invalid/e.f). Remove `g`.\n\nModules: `h`.\n";
    assert_eq!(listed(page), ["a", "b_*", "h"]);
    let modules = BTreeSet::from(["b_1".to_owned(), "h".to_owned()]);
    for (name, has) in [("h", true), ("b_*", true), ("a", false), ("b_", false), ("b_1*2", false), ("c_*", false)] {
        assert_eq!(contains(&modules, name), has, "{name}");
    }
}
