//! What must not count as success does not, and says why.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// A run of the tests in `misbehaving.rs`.
struct Run {
    output: Output,
    xml: String,
}

impl Run {
    /// Of this one test, as Bazel would start it with these seconds to spend.
    fn of(test: &str, timeout: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let output = command(&dir, timeout).args(["--exact", test]).output().unwrap();
        Self::new(output, &dir)
    }

    fn new(output: Output, dir: &TempDir) -> Self {
        let xml = fs::read_to_string(dir.path().join("test.xml")).unwrap_or_default();
        Self { output, xml }
    }

    fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    #[track_caller]
    fn assert_refused(&self, reason: &str) {
        let stderr = self.stderr();
        assert_eq!(self.output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(reason), "no {reason:?} in:\n{stderr}");
    }
}

fn command(dir: &TempDir, timeout: &str) -> Command {
    let program = PathBuf::from(env::var_os("MISBEHAVING").expect("MISBEHAVING names a ktest"));
    let mut command = Command::new(&program);
    command
        .env("KTEST_CONFIG", program.with_extension("json"))
        .env("TEST_TIMEOUT", timeout)
        .env("TEST_TMPDIR", dir.path())
        .env("XML_OUTPUT_FILE", dir.path().join("test.xml"))
        .env_remove("TESTBRIDGE_TEST_ONLY");
    command
}

#[test]
fn a_test_that_fails_is_reported_with_its_message() {
    let run = Run::of("fails", "120");
    run.assert_refused("a test failed");
    assert!(run.xml.contains("failures=\"1\"") && run.xml.contains("arithmetic still holds"), "{}", run.xml);
}

#[test]
fn a_panic_of_the_kernel_is_reported_with_the_console() {
    let run = Run::of("panics_the_kernel", "120");
    run.assert_refused("the guest's kernel panicked");
    run.assert_refused("sysrq triggered crash");
    assert!(run.xml.contains("errors=\"1\""), "{}", run.xml);
}

#[test]
fn a_machine_that_goes_off_is_no_success() {
    Run::of("ends_the_machine", "120").assert_refused("the VM ended without a status of the test");
}

#[test]
fn a_program_that_is_killed_is_no_success() {
    Run::of("aborts", "120").assert_refused("the test program was killed by signal 6");
}

#[test]
fn a_program_that_leaves_without_a_result_is_no_success() {
    let dir = tempfile::tempdir().unwrap();
    let output = command(&dir, "120").args(["--test-threads=1", "--skip=a", "--skip=i", "--skip=k"]).output().unwrap();
    Run::new(output, &dir).assert_refused("the test program ran no test");
}

#[test]
fn a_test_that_hangs_shows_what_it_waits_for() {
    let run = Run::of("hangs", "30");
    run.assert_refused("the test did not end within");
    run.assert_refused("task:hangs");
}

#[test]
fn a_disk_fails_as_it_was_told_to() {
    let run = Run::of("is_told_that_a_flush_failed", "120");
    assert!(run.output.status.success(), "{}", run.stderr());
}

#[test]
fn a_tool_that_is_missing_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let program = PathBuf::from(env::var_os("MISBEHAVING").unwrap());
    let text = fs::read_to_string(program.with_extension("json")).unwrap();
    let config = dir.path().join("config.json");
    assert!(text.contains("\"tools\":[]"), "{text}");
    fs::write(&config, text.replace("\"tools\":[]", "\"tools\":[\"mkfs.none\"]")).unwrap();
    let output = command(&dir, "120").env("KTEST_CONFIG", &config).output().unwrap();
    Run::new(output, &dir).assert_refused("there is no program mkfs.none");
}

#[test]
fn a_configuration_that_is_missing_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let output = command(&dir, "120").env("KTEST_CONFIG", Path::new("absent.json")).output().unwrap();
    Run::new(output, &dir).assert_refused("cannot read absent.json");
}
