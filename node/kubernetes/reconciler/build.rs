//! Converts the definitions of the snapshot kinds from YAML to JSON. Bazel names the files, of the Go module that has
//! snapshot-controller's client, in `SNAPSHOT_DEFINITIONS`. Without them, as in `cargo check`, the crate compiles and cannot
//! create the kinds.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use serde_json::Value;

const VARIABLE: &str = "SNAPSHOT_DEFINITIONS";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-env-changed={VARIABLE}");
    let sources = env::var(VARIABLE).unwrap_or_else(|_| {
        println!("cargo:warning={VARIABLE} is not set: only a build by Bazel has the kinds of snapshots");
        String::new()
    });
    let mut definitions = Vec::new();
    for source in sources.split_ascii_whitespace() {
        println!("cargo:rerun-if-changed={source}");
        let text = fs::read_to_string(source).map_err(|error| format!("{source}: {error}"))?;
        let mut definition: Value = serde_saphyr::from_str(&text).map_err(|error| format!("{source}: {error}"))?;
        // The API server writes it.
        if let Some(fields) = definition.as_object_mut() {
            fields.remove("status");
        }
        definitions.push(definition);
    }
    let out = PathBuf::from(env::var("OUT_DIR")?).join("definitions.json");
    Ok(fs::write(out, serde_json::to_string(&definitions)?)?)
}
