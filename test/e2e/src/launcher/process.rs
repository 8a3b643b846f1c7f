//! Processes, read from /proc.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub id: i32,
    pub words: Vec<String>,
}

impl Process {
    /// All processes that a program with this unique environment variable has started, directly or indirectly, because
    /// children inherit the variable. Zombies have no environment, proc_pid_environ(5).
    pub fn with_variable(name: &str, value: &OsStr) -> Vec<Self> {
        let wanted = [name.as_bytes(), b"=", value.as_bytes()].concat();
        let entries = fs::read_dir("/proc").expect("/proc is mounted");
        let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        ids.filter(|id| has(*id, &wanted)).filter_map(Self::of).collect()
    }

    fn of(id: i32) -> Option<Self> {
        let line = fs::read(format!("/proc/{id}/cmdline")).ok()?;
        let words = line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        Some(Self { id, words })
    }
}

fn has(id: i32, variable: &[u8]) -> bool {
    let environment = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|found| found == variable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launcher::launched::until;
    use std::process::{Command, Stdio, id};

    const NAME: &str = "LAUNCH_TEST_MARK";

    #[test]
    fn a_process_whose_parent_has_ended_is_found_until_it_ends() {
        let mark = format!("orphan of {}", id());
        let find = || Process::with_variable(NAME, OsStr::new(&mark));
        let mut shell = Command::new("/bin/sh");
        // A shell redirects the standard input of background commands, so `cat` reads descriptor 3. The orphan ends
        // when its input is closed.
        shell.args(["-c", "exec 3<&0; cat <&3 &"]).env(NAME, &mark).stdin(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let input = shell.stdin.take();
        assert!(shell.wait().unwrap().success());
        until("the orphan is found", || find().iter().any(|process| process.words[0] == "cat"));
        drop(input);
        until("the orphan has ended", || find().is_empty());
    }
}
