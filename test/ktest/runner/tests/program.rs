//! A program in a guest starts like any other program.

use std::io::{BufRead as _, BufReader};
use std::process::{self, Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The program in `selftest/program.rs`.
fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("PROGRAM").expect("PROGRAM names a guest_program"));
    command.args(arguments);
    command
}

fn run(arguments: &[&str]) -> Output {
    program(arguments).output().unwrap()
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

/// The parent of the next test, which starts this program again.
#[test]
#[ignore = "ends only by a signal"]
fn parent() {
    program(&["wait"]).env("KTEST_PARENT", process::id().to_string()).status().unwrap();
}

/// Killed when it is dropped, so that no guest outlives a failed assertion.
struct Parent(Child);

impl Drop for Parent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_guest_ends_when_a_signal_ends_its_parent() {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "parent", "--ignored", "--nocapture"]).stdout(Stdio::piped());
    let mut guard = Parent(command.spawn().unwrap());
    let parent = &mut guard.0;
    let mut lines = BufReader::new(parent.stdout.take().unwrap()).lines();
    // The harness may print the name of the test on the same line.
    assert!(lines.any(|line| line.unwrap().ends_with(r#"["wait"]"#)), "the program did not run");
    let runners = children(parent.id());
    let guests: Vec<u32> = runners.iter().flat_map(|&runner| children(runner)).collect();
    assert_eq!((runners.len(), guests.len()), (1, 1));
    kill(Pid::from_raw(parent.id().cast_signed()), Signal::SIGTERM).unwrap();
    parent.wait().unwrap();
    let start = Instant::now();
    for process in [runners, guests].concat() {
        // Another process reaps it, so a zombie counts as ended.
        while stat(process).is_some_and(|(state, _)| !state.starts_with(['Z', 'X'])) {
            assert!(start.elapsed() < Duration::from_secs(20), "process {process} still runs");
            thread::yield_now();
        }
    }
}

#[test]
fn without_its_parent_the_guest_does_not_start() {
    // No process has this ID.
    let output = program(&[]).env("KTEST_PARENT", "0").output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(125), String::new()));
    assert!(text(&output.stderr).contains("process 0 is not the parent"), "{}", text(&output.stderr));
}

fn children(parent: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap();
    let processes = processes.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    processes.filter(|&process| stat(process).is_some_and(|(_, of)| of == parent)).collect()
}

/// State and parent of a process, proc_pid_stat(5).
fn stat(process: u32) -> Option<(String, u32)> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}
