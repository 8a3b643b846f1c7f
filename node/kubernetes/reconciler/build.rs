//! Converts the definitions of the snapshot kinds from YAML to JSON. Bazel passes the paths of the files in
//! `SNAPSHOT_DEFINITIONS`; the files are in the Go module of snapshot-controller's client. Without them, as in `cargo
//! check`, the crate compiles but cannot create the kinds.

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
        // Remove the status, which the API server writes.
        if let Some(fields) = definition.as_object_mut() {
            fields.remove("status");
        }
        definitions.push(definition);
    }
    let out = PathBuf::from(env::var("OUT_DIR")?).join("definitions.json");
    Ok(fs::write(out, serde_json::to_string(&definitions)?)?)
}
