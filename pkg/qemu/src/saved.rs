//! Saved guests: the memory, the state of the devices, and the machine that both need. A restore copies the memory into
//! the new QEMU. With a private mapping of a file, which has small pages only, an emulated node took 40 % more CPU time
//! to boot.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::program::Program;
use crate::qmp::QmpError;
use crate::vm::{StartError, Vm};

const STATE: &str = "state";
const MACHINE: &str = "machine.json";

/// Deadline of a save or a load. QEMU writes the memory that the guest has used to the page cache, or reads it from
/// there: below 2 GiB for a node.
const TRANSFER_LIMIT: Duration = Duration::from_secs(60);
/// Bytes per second. QEMU's default limit is that of a network.
const BANDWIDTH: u64 = 1 << 40;
const STEP: Duration = Duration::from_millis(2);

/// The directory of a saved guest. Any number of VMs can be restored from it, also at the same time.
///
/// The caller keeps the content that the disks had, for example below an [`overlay`](crate::overlay()), and chooses a
/// directory whose name depends on the disks, the kernel and the host's CPU. [`Vm::restore`] compares QEMU, machine and
/// devices.
///
/// A restored guest's clock continues from the time of the save. Its kernel gets a new generation ID (vmgenid) and
/// reseeds its random number generator; machine ID, keys and connections are the same in all VMs of one state.
#[derive(Clone, Debug)]
pub struct Saved {
    dir: PathBuf,
    machine: Machine,
}

/// Description of the machine of a saved guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    qemu: String,
    arguments: Vec<(String, String)>,
}

/// Reason why a guest was not saved.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors describe the fields")]
pub enum SaveError {
    /// The VM was not started by [`Vm::start_savable`].
    #[error("the machine has no generation ID; start a VM that is to be saved with start_savable")]
    NotSavable,
    /// QEMU rejects a command or has ended.
    #[error("cannot control QEMU")]
    Control(#[from] QmpError),
    /// QEMU could not write the state.
    #[error("QEMU could not save the guest: {0}")]
    Failed(String),
    /// The description could not be written.
    #[error("cannot write {path}")]
    Write { path: PathBuf, source: io::Error },
}

/// Reason why no VM was restored.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors describe the fields")]
pub enum RestoreError {
    /// There is no complete saved guest in the directory.
    #[error("cannot read the saved guest in {}; delete the directory", dir.display())]
    Read { dir: PathBuf, source: io::Error },
    /// Another version of QEMU saved the guest.
    #[error("the guest in {} was saved by QEMU {saved}, not by QEMU {current}; delete the directory", dir.display())]
    Program { dir: PathBuf, saved: String, current: String },
    /// The guest was saved on another machine.
    #[error("the guest in {} was saved with {saved}, not with {current}; delete the directory", dir.display())]
    Machine {
        dir: PathBuf,
        /// The first argument of QEMU that differs.
        saved: String,
        current: String,
    },
    /// QEMU does not start.
    #[error("cannot start the VM of a saved guest")]
    Start(#[from] StartError),
    /// QEMU does not accept the state.
    #[error("QEMU did not load the saved guest")]
    Load(#[source] QmpError),
    /// QEMU ended or reported a failure while it loaded the state.
    #[error("QEMU did not load the saved guest: {0}")]
    Failed(String),
}

impl Saved {
    /// Opens a saved guest.
    ///
    /// # Errors
    /// [`RestoreError::Read`] if a file is missing or damaged, for example because the save did not complete.
    pub fn open(dir: &Path) -> Result<Self, RestoreError> {
        let wrong = |source| RestoreError::Read { dir: dir.to_owned(), source };
        let text = fs::read(dir.join(MACHINE)).map_err(wrong)?;
        let machine = serde_json::from_slice(&text).map_err(|error| wrong(error.into()))?;
        fs::metadata(dir.join(STATE)).map_err(wrong)?;
        Ok(Self { dir: dir.to_owned(), machine })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Compares the values that QEMU compares incompletely or not at all.
    pub(crate) fn check(&self, current: &Machine) -> Result<(), RestoreError> {
        if self.machine.qemu != current.qemu {
            let (saved, current) = (self.machine.qemu.clone(), current.qemu.clone());
            return Err(RestoreError::Program { dir: self.dir.clone(), saved, current });
        }
        let count = self.machine.arguments.len().max(current.arguments.len());
        let at = |all: &[(String, String)], index: usize| {
            all.get(index).map_or_else(|| "no further device".to_owned(), |(option, value)| format!("{option} {value}"))
        };
        let pairs = (0..count).map(|index| (at(&self.machine.arguments, index), at(&current.arguments, index)));
        match pairs.into_iter().find(|(saved, current)| saved != current) {
            Some((saved, current)) => Err(RestoreError::Machine { dir: self.dir.clone(), saved, current }),
            None => Ok(()),
        }
    }

    /// Loads the state into a VM that waits for it. The guest is paused afterwards.
    pub(crate) fn load(&self, vm: &Vm) -> Result<(), RestoreError> {
        vm.execute("migrate-incoming", json!({"uri": uri(&self.dir)})).map_err(RestoreError::Load)?;
        let ended = transferred(vm, "query-status", |status| !matches!(status, "inmigrate" | "prelaunch"));
        match ended {
            Ok(status) if status == "paused" => Ok(()),
            Ok(status) => Err(RestoreError::Failed(format!("the VM is {status}"))),
            // QEMU prints the reason and exits.
            Err(QmpError::Closed) => {
                let exit = vm.wait(Duration::from_secs(5));
                Err(RestoreError::Failed(
                    exit.map_or_else(|| "QEMU does not answer".to_owned(), |exit| exit.to_string()),
                ))
            }
            Err(error) => Err(RestoreError::Load(error)),
        }
    }
}

impl Machine {
    pub(crate) fn new(program: &Program, arguments: Vec<(String, String)>) -> Self {
        Self { qemu: program.version().to_string(), arguments }
    }
}

/// Stops the guest and writes its state.
pub(crate) fn save(vm: &Vm, dir: &Path, machine: Machine) -> Result<Saved, SaveError> {
    // `stop` returns after all requests to disks are complete.
    vm.execute("stop", json!({}))?;
    vm.execute("migrate-set-parameters", json!({"max-bandwidth": BANDWIDTH}))?;
    vm.execute("migrate", json!({"uri": uri(dir)}))?;
    let status = transferred(vm, "query-migrate", |status| matches!(status, "completed" | "failed" | "cancelled"))?;
    if status != "completed" {
        let answer = vm.execute("query-migrate", json!({}))?;
        return Err(SaveError::Failed(answer["error-desc"].as_str().unwrap_or(&status).to_owned()));
    }
    vm.quit()?;
    // The saved guest is complete only with this file.
    let path = dir.join(MACHINE);
    let text = serde_json::to_vec(&machine).map_err(io::Error::from);
    text.and_then(|text| fs::write(&path, text)).map_err(|source| SaveError::Write { path, source })?;
    Ok(Saved { dir: dir.to_owned(), machine })
}

/// URI of the state, docs/devel/migration/main.rst of QEMU.
fn uri(dir: &Path) -> String {
    format!("file:{}", dir.join(STATE).display())
}

/// Repeats the command until `is_end` accepts the status that it returns.
fn transferred(vm: &Vm, command: &str, is_end: impl Fn(&str) -> bool) -> Result<String, QmpError> {
    let start = Instant::now();
    loop {
        let answer: Value = vm.execute(command, json!({}))?;
        let status = answer["status"].as_str().unwrap_or_default();
        if is_end(status) {
            return Ok(status.to_owned());
        }
        if start.elapsed() > TRANSFER_LIMIT {
            return Err(QmpError::Silent { command: command.to_owned() });
        }
        thread::sleep(STEP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(qemu: &str, devices: &[&str]) -> Saved {
        let arguments = devices.iter().map(|device| ("-device".to_owned(), (*device).to_owned())).collect();
        Saved { dir: "/absent".into(), machine: Machine { qemu: qemu.into(), arguments } }
    }

    #[test]
    fn another_qemu_is_named() {
        let error = saved("8.2.0", &[]).check(&saved("9.0.0", &[]).machine).unwrap_err();
        assert!(error.to_string().contains("saved by QEMU 8.2.0, not by QEMU 9.0.0"), "{error}");
    }

    #[test]
    fn the_first_device_that_differs_is_named() {
        let guest = saved("8.2.0", &["one", "two"]);
        guest.check(&guest.machine).unwrap();
        let error = guest.check(&saved("8.2.0", &["one", "three"]).machine).unwrap_err();
        assert!(
            matches!(&error, RestoreError::Machine { saved, current, .. }
            if saved == "-device two" && current == "-device three"),
            "{error}"
        );
        let error = guest.check(&saved("8.2.0", &["one"]).machine).unwrap_err();
        assert!(error.to_string().contains("-device two, not with no further device"), "{error}");
    }

    #[test]
    fn an_incomplete_save_is_not_a_saved_guest() {
        let dir = tempfile::tempdir().unwrap();
        let is_incomplete = || matches!(Saved::open(dir.path()), Err(RestoreError::Read { .. }));
        assert!(is_incomplete());
        fs::write(dir.path().join(MACHINE), "{\"qemu\": \"8.2.0\", \"arguments\": []}").unwrap();
        assert!(is_incomplete());
        fs::write(dir.path().join(STATE), "").unwrap();
        Saved::open(dir.path()).unwrap();
    }
}
