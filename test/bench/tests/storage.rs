//! Verifies the limits of the benchmark in every test run.

use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

fn program(variable: &str) -> PathBuf {
    PathBuf::from(env::var_os(variable).unwrap_or_else(|| panic!("{variable} names no program")))
}

/// Other files that the build passes to the program.
const UNUSED: &str = "io-guest io-program pause-guest soak-guest claims-program kernel initramfs system cmdline";

#[test]
fn slopes_and_limits_of_storage_hold() {
    let output = Command::new(program("BENCH"))
        .arg(format!("--storage-guest={}", program("STORAGE_GUEST").display()))
        .args(UNUSED.split(' ').map(|file| format!("--{file}=none")))
        .args(["storage", "--counts", "--runs=1", "--json"])
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["violations"], Value::Array(vec![]), "{report:#}");
    assert!(output.status.success(), "{}", output.status);

    let syscalls = |operation: &str| {
        let figure = report["figures"].as_array().unwrap().iter().find(|figure| figure["operation"] == operation);
        figure.unwrap()["counts"][1]["syscalls"]["median"].as_f64().unwrap()
    };
    // The node does not walk over the quotas, so a walk has no limit.
    assert!(syscalls("walk-for-id") > 1000.0);
    assert!(syscalls("next") < 1.0);
}
