//! Comparison of the DaemonSet for registries, which no test runs, with the DaemonSet of an end-to-end test.

use docs::Page;
use serde_json::Value;

use crate::read;

const INSTALL: &str = "docs/operations/install.md";
const TESTED: &str = "test/e2e/tests/firmware/plugin.rs";
const IMAGE: &str = "node/image/BUILD.bazel";

/// The manifest of the page, which copies files for containerd to each node.
fn printed() -> Value {
    let page = Page::parse(&read(INSTALL));
    let examples = page.examples.iter().filter(|example| example.language == "yaml");
    let mut documents = examples.flat_map(|example| -> Vec<Value> {
        serde_saphyr::from_multiple(&example.text).unwrap_or_else(|error| panic!("{INSTALL}: {error}"))
    });
    let found =
        documents.find(|document| document["kind"] == "DaemonSet" && document["metadata"]["name"] == "registries");
    found.unwrap_or_else(|| panic!("{INSTALL} has no DaemonSet registries"))
}

fn named<'a>(list: &'a Value, name: &str) -> &'a Value {
    let mut all = list.as_array().into_iter().flatten();
    all.find(|one| one["name"] == name).unwrap_or_else(|| panic!("no {name} in {list}"))
}

#[test]
fn the_daemon_set_of_registries_has_the_fields_of_a_tested_one() {
    let printed = printed();
    let spec = &printed["spec"]["template"]["spec"];
    let path = &named(&spec["volumes"], "registries")["hostPath"]["path"];
    let pause = named(&spec["containers"], "pause");
    let fields = ["automountServiceAccountToken", "tolerations"].map(|field| format!("{field:?}:{}", spec[field]));
    let image = format!("\"image\":{},\"imagePullPolicy\":{}", pause["image"], pause["imagePullPolicy"]);
    let volume = format!("volume(\"registries\",{path})");
    // The source without spaces has the fields as JSON without spaces.
    let tested: String = read(TESTED).split_whitespace().collect();
    for text in fields.into_iter().chain([image, volume]) {
        assert!(tested.contains(&text), "{INSTALL} has {text}; {TESTED} does not");
    }
    let link = format!("{path}: \"/data/registries\"");
    assert!(read(IMAGE).contains(&link), "{IMAGE} does not have {link}");
}
