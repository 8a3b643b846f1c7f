//! Launcher commands for clusters in the background.

use crate::launcher::launched::{MARK, launcher, send, stub_command_line, until};
use crate::launcher::{Process, Stub, directory};
use nix::sys::signal::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Home directory of commands that run one after the other. Dropping the value kills all processes that the commands
/// have started.
#[derive(Debug)]
pub struct Commands {
    home: TempDir,
    command_line: PathBuf,
}

#[derive(Debug)]
pub struct Outcome {
    pub status: Option<i32>,
    /// Standard output, then standard error.
    pub text: String,
}

impl Commands {
    pub fn new(stub: Stub) -> Self {
        let home = directory();
        fs::create_dir(home.path().join("tmp")).expect("a directory can be created");
        let command_line = stub_command_line(home.path(), stub);
        Self { home, command_line }
    }

    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// Runs the launcher until it ends and all of its descendants have closed its output.
    pub fn run(&self, words: &[&str]) -> Outcome {
        let mut command = launcher(self.command_line.clone().into());
        command.args(words).env(MARK, self.mark()).env("HOME", self.home());
        command.env_remove("XDG_STATE_HOME").env_remove("KUBECONFIG");
        let output = command.output().expect("the launcher can be started");
        let text = [output.stdout, output.stderr].concat();
        Outcome { status: output.status.code(), text: String::from_utf8_lossy(&text).into_owned() }
    }

    pub fn start(&self, more: &[&str]) -> Outcome {
        self.run(&[&["start", "--memory=1280M", "--cpus=1"], more].concat())
    }

    /// Running processes that the commands have started.
    pub fn processes(&self) -> Vec<Process> {
        Process::with_variable(MARK, self.mark().as_os_str())
    }

    /// Kills the launcher in the background, and waits until all processes that it started have ended.
    pub fn kill_launcher(&self) {
        let all = self.processes();
        let launcher = all.iter().find(|process| process.words.iter().any(|word| word == "--detached"));
        send(launcher.unwrap_or_else(|| panic!("no launcher among {all:?}")).id, Signal::SIGKILL);
        until("no process is left", || self.processes().is_empty());
    }

    fn mark(&self) -> PathBuf {
        self.home().join("tmp")
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        for process in self.processes() {
            // The process may have ended.
            _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(process.id), Signal::SIGKILL);
        }
    }
}
