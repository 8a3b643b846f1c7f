//! Failures of guests and programs are reported, with their reason.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use tempfile::TempDir;

struct Run {
    output: Output,
    xml: String,
}

impl Run {
    /// Runs one test, as Bazel would start it with this timeout in seconds.
    fn of(test: &str, timeout: &str) -> Self {
        Self::with(timeout, |command| command.args(["--exact", test]))
    }

    fn with(timeout: &str, more: impl FnOnce(&mut Command) -> &mut Command) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let output = more(&mut command(&dir, timeout)).output().unwrap();
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

    #[track_caller]
    fn assert_failure_of(&self, test: &str) {
        let case = format!("<testcase name=\"{test}\"");
        let (_, case) = self.xml.split_once(&case).unwrap_or_else(|| panic!("no {test} in {}", self.xml));
        let case = case.split("</testcase>").next().unwrap_or_default();
        assert!(case.contains("<failure"), "{}", self.xml);
    }
}

fn command(dir: &TempDir, timeout: &str) -> Command {
    let mut command = Command::new(env::var_os("MISBEHAVING").expect("MISBEHAVING names a ktest"));
    command
        .env("TEST_TIMEOUT", timeout)
        .env("TEST_TMPDIR", dir.path())
        .env("XML_OUTPUT_FILE", dir.path().join("test.xml"))
        .env_remove("TESTBRIDGE_TEST_ONLY");
    command
}

#[test]
fn a_test_that_fails_is_reported_with_its_message_and_its_time() {
    let run = Run::of("fails", "120");
    run.assert_refused("a test failed");
    assert!(run.xml.contains("failures=\"1\"") && run.xml.contains("arithmetic still holds"), "{}", run.xml);
    assert!(run.xml.contains("<testcase name=\"fails\" time=\"0."), "{}", run.xml);
}

#[test]
fn a_kernel_panic_is_reported_with_the_console_and_the_test() {
    let run = Run::of("panics_the_kernel", "120");
    run.assert_refused("the guest's kernel panicked; it ran panics_the_kernel");
    run.assert_refused("sysrq triggered crash");
    run.assert_failure_of("panics_the_kernel");
    assert!(run.xml.contains("errors=\"1\""), "{}", run.xml);
}

#[test]
fn a_machine_that_powers_off_fails() {
    let run = Run::of("ends_the_machine", "120");
    run.assert_refused("the VM ended without a status of the program");
    run.assert_failure_of("ends_the_machine");
}

#[test]
fn a_program_that_is_killed_fails() {
    let run = Run::of("aborts", "120");
    run.assert_refused("the test program was killed by signal 6 in the middle of aborts");
    run.assert_failure_of("aborts");
}

#[test]
fn a_program_that_exits_in_the_middle_of_a_test_fails() {
    let run = Run::of("leaves_without_a_word", "120");
    run.assert_refused("the test program ended with status 0 in the middle of leaves_without_a_word");
}

#[test]
fn a_program_without_tests_fails() {
    // The name of each test contains an `a`.
    Run::with("120", |command| command.arg("--skip=a")).assert_refused("the test program ran no test");
}

#[test]
fn a_test_that_hangs_is_named_and_shows_what_it_waits_for() {
    let run = Run::of("hangs", "20");
    run.assert_refused("the test did not end within");
    run.assert_refused("; it ran hangs");
    run.assert_refused("task:hangs");
    run.assert_failure_of("hangs");
}

#[test]
fn bazels_filter_chooses_tests() {
    let run = Run::with("120", |command| command.env("TESTBRIDGE_TEST_ONLY", "flush_fails"));
    assert!(run.output.status.success(), "{}", run.stderr());
    assert!(run.xml.contains("tests=\"1\"") && run.xml.contains("a_flush_fails"), "{}", run.xml);
}

#[test]
fn arguments_reach_the_harness() {
    let run = Run::with("120", |command| command.args(["--list", "--skip", "flush"]));
    assert!(run.output.status.success(), "{}", run.stderr());
    let stdout = String::from_utf8_lossy(&run.output.stdout);
    assert!(stdout.contains("panics_the_kernel: test\n") && !stdout.contains("flush"), "{stdout}");
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
    let output = command(&dir, "120").env("KTEST_CONFIG", "absent.json").output().unwrap();
    let run = Run::new(output, &dir);
    assert_eq!(run.output.status.code(), Some(125));
    assert!(run.stderr().contains("cannot read absent.json"), "{}", run.stderr());
}
