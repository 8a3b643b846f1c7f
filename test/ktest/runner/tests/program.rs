//! A program in a guest starts like any other program.

use std::env;
use std::process::{Command, Output};

/// Runs the program in `selftest/program.rs`.
fn run(arguments: &[&str]) -> Output {
    let program = env::var_os("PROGRAM").expect("PROGRAM names a guest_program");
    Command::new(program).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn arguments_and_output_and_status_pass_through() {
    let output = run(&["one", "two words", "--three"]);
    assert_eq!(text(&output.stdout), "[\"one\", \"two words\", \"--three\"]\n");
    let stderr = text(&output.stderr);
    assert!(stderr.starts_with("boot 1 of process ") && stderr.lines().count() == 1, "{stderr}");
    assert_eq!(output.status.code(), Some(7));
}

#[test]
fn a_signal_is_reported_as_by_a_shell() {
    assert_eq!(run(&["abort"]).status.code(), Some(128 + 6));
}

#[test]
fn a_power_cut_runs_it_again() {
    let output = run(&["power"]);
    assert_eq!(text(&output.stdout), "[\"power\"]\n[\"power\"]\n");
    assert!(text(&output.stderr).contains("boot 2 of process "), "{}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(7));
}
