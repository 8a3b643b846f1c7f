//! Commands for clusters that are kept.

use crate::contexts::{self, Contexts};
use crate::error::LaunchError;
use crate::output::Output;
use crate::place::{Place, Root};
use crate::record::{Phase, ProcessId, Record, Shown};
use crate::table;
use launch::SHUTDOWN_LIMIT;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use units::Bytes;

/// Time limit of `stop`: workers shut down first, then the control plane. The launcher itself has 30 s.
const STOP_LIMIT: Duration = Duration::from_secs(2 * SHUTDOWN_LIMIT.as_secs() + 30);
const INTERVAL: Duration = Duration::from_millis(100);

pub(crate) fn status(root: &Root, output: &Output) -> Result<(), LaunchError> {
    let places = root.places()?;
    if places.is_empty() {
        output.print("No cluster exists. `start` creates one.");
    } else {
        let rows: Vec<_> = places.iter().map(|place| (place, Record::read(&place.record()))).collect();
        output.print(table::lines(&columns(&rows)).trim_end());
    }
    // `status` only prints. Other commands have done their work even if the output is closed.
    if output.is_lost() { Err(LaunchError::OutputClosed) } else { Ok(()) }
}

fn columns(rows: &[(&Place, Record)]) -> Vec<Vec<String>> {
    let column = |title: &str, cell: &dyn Fn(&Place, &Record) -> String| {
        std::iter::once(title.to_owned()).chain(rows.iter().map(|(place, record)| cell(place, record))).collect()
    };
    let process = |record: &Record| match record.shown() {
        Shown::Running { process, .. } => Some(process.pid),
        Shown::Stopped | Shown::Failed | Shown::Killed => None,
    };
    vec![
        column("NAME", &|place, _| place.name.to_string()),
        column("STATE", &|_, record| state(&record.shown()).to_owned()),
        column("NODES", &|_, record| or_none(record.nodes)),
        column("API SERVER", &|_, record| {
            let port = record.port.filter(|_| process(record).is_some());
            or_none(port.map(|port| format!("https://127.0.0.1:{port}")))
        }),
        column("PROCESS", &|_, record| or_none(process(record))),
        column("DATA DISKS", &|place, _| rounded(disks(place).iter().map(|disk| disk.1).sum())),
        column("DIRECTORY", &|place, _| place.directory.display().to_string()),
    ]
}

fn state(shown: &Shown) -> &'static str {
    match shown {
        Shown::Running { phase: Phase::Starting, .. } => "starting",
        Shown::Running { phase: Phase::Stopping, .. } => "stopping",
        Shown::Running { phase: Phase::Ready | Phase::Stopped | Phase::Failed, .. } => "ready",
        Shown::Stopped => "stopped",
        Shown::Failed => "failed",
        Shown::Killed => "killed",
    }
}

fn or_none(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Shuts the nodes down in order. Leaves a cluster that does not run unchanged.
pub(crate) fn stop(place: &Place, output: &Output) -> Result<(), LaunchError> {
    if !place.exists() {
        return Err(LaunchError::Unknown { name: place.name.clone() });
    }
    let Shown::Running { process, .. } = Record::read(&place.record()).shown() else {
        output.print(&format!("Cluster {} does not run.", place.name));
        return Ok(());
    };
    output.print(&format!("Shutting cluster {} down.", place.name));
    terminate(&process);
    let start = Instant::now();
    while process.is_alive() {
        if start.elapsed() > STOP_LIMIT {
            return Err(LaunchError::StillRuns { name: place.name.clone(), pid: process.pid, limit: STOP_LIMIT });
        }
        thread::sleep(INTERVAL);
    }
    outcome(place, &Record::read(&place.record()).shown())?;
    output.print(&format!("Cluster {} is stopped.", place.name));
    Ok(())
}

/// Result of a shutdown, from the record of the launcher that has ended.
fn outcome(place: &Place, shown: &Shown) -> Result<(), LaunchError> {
    let name = place.name.clone();
    match shown {
        Shown::Stopped => Ok(()),
        Shown::Killed => Err(LaunchError::Killed { name }),
        Shown::Running { .. } | Shown::Failed => Err(LaunchError::NotInOrder { name, log: place.log() }),
    }
}

/// Sends SIGTERM. A repeated SIGTERM has no effect ([`Source`](crate::interrupts::Source)). The kernel assigns PIDs in
/// turn, so no other process has the PID of one that was alive a moment ago.
fn terminate(process: &ProcessId) {
    if process.is_alive() {
        // The signal fails if the process has ended.
        _ = kill(Pid::from_raw(process.pid.cast_signed()), Signal::SIGTERM);
    }
}

/// Stops the cluster if it runs, and removes its contexts and its directory.
pub(crate) fn delete(place: &Place, output: &Output) -> Result<(), LaunchError> {
    if !place.exists() {
        return Err(LaunchError::Unknown { name: place.name.clone() });
    }
    if let Shown::Running { .. } = Record::read(&place.record()).shown()
        && let Err(error) = stop(place, output)
    {
        // Continue after other errors: the disks are deleted anyway.
        if matches!(error, LaunchError::StillRuns { .. }) {
            return Err(error);
        }
        output.print_error(&causes::lines(&error).to_string());
    }
    // Hold the lock until the directory is removed, so that no `start` uses the directory.
    let _lock = place.lock()?;
    let contexts = Contexts { name: &place.name, directory: &place.directory };
    for path in Record::read(&place.record()).kubeconfigs {
        match contexts::remove(&path, &contexts) {
            Ok(true) => output.print(&format!("Removed context {} from {}.", place.name, path.display())),
            Ok(false) => {}
            Err(error) => output.print_error(&causes::lines(&error).to_string()),
        }
    }
    let file = |path: PathBuf| fs::canonicalize(&path).unwrap_or(path);
    let directory = file(place.directory.clone());
    let disks: Vec<_> = disks(place).into_iter().map(|(path, size)| (path.clone(), file(path), size)).collect();
    let removed = fs::remove_dir_all(&place.directory);
    removed.map_err(LaunchError::prepare(format!("remove {}", place.directory.display())))?;
    for (path, file, size) in disks {
        output.print(&deleted(&path, &file, size));
    }
    output.print(&match fs::exists(&directory) {
        Ok(false) => format!("Removed cluster {} and its directory {}.", place.name, place.directory.display()),
        _ => format!(
            "Removed cluster {}. Its directory {}, to which a link led, stays.",
            place.name,
            directory.display()
        ),
    });
    Ok(())
}

/// Text about a data disk of a deleted cluster. The file behind a link stays, because it may belong to another program.
fn deleted(path: &Path, file: &Path, size: Bytes) -> String {
    let size = rounded(size);
    match file.exists() {
        true => format!("Data disk {} ({size}) stays: {} led to it by a link.", file.display(), path.display()),
        false => format!("Removed data disk {} ({size}).", path.display()),
    }
}

/// Data disks of a cluster with their allocated sizes.
fn disks(place: &Place) -> Vec<(PathBuf, Bytes)> {
    let is_disk = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("data.img"))
    };
    let entries = fs::read_dir(&place.directory).into_iter().flatten().flatten();
    let size = |path: PathBuf| -> io::Result<(PathBuf, Bytes)> {
        // stat(2) counts blocks of 512 bytes.
        let size = Bytes::new(fs::metadata(&path)?.blocks().saturating_mul(512));
        Ok((path, size))
    };
    let mut disks: Vec<_> = entries.map(|entry| entry.path()).filter(is_disk).flat_map(size).collect();
    disks.sort();
    disks
}

/// Size in whole mebibytes, rounded up.
fn rounded(size: Bytes) -> String {
    format!("{} MiB", size.div_ceil::<{ Bytes::MIB.get() }>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::ClusterName;
    use crate::place::create_private;
    use std::num::NonZeroU16;

    fn place(root: &Path) -> Place {
        let place = Place { name: ClusterName::default(), directory: root.join("granary") };
        create_private(&place.directory).unwrap();
        place
    }

    #[test]
    fn the_status_lists_states_and_disks() {
        let directory = tempfile::tempdir().unwrap();
        let place = place(directory.path());
        fs::File::create(place.data()).unwrap().set_len(1 << 30).unwrap();
        let record = |phase, process| Record {
            phase,
            process,
            port: NonZeroU16::new(6443),
            nodes: Some(2),
            ..Record::default()
        };
        let own = ProcessId::own().unwrap();
        let rows = [
            (&place, record(Phase::Ready, Some(own.clone()))),
            (&place, record(Phase::Starting, None)),
            (&place, record(Phase::Stopped, Some(own.clone()))),
            (&place, Record::default()),
        ];
        let text = table::lines(&columns(&rows));
        let cells: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        let pid = own.pid.to_string();
        assert_eq!(cells[1][..5], ["granary", "ready", "2", "https://127.0.0.1:6443", &pid]);
        assert_eq!(cells[1][5..7], ["0", "MiB"]);
        assert_eq!(cells[2][..5], ["granary", "killed", "2", "-", "-"]);
        assert_eq!(cells[3][..5], ["granary", "stopped", "2", "-", "-"]);
        assert_eq!(cells[4][..5], ["granary", "stopped", "-", "-", "-"]);
    }

    /// Regression test: the exit status of `status > FILE` was 0 on a full disk.
    #[test]
    fn a_status_that_cannot_be_written_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::find(|_| Some(directory.path().into())).unwrap();
        let output = Output::new();
        status(&root, &output).unwrap();
        output.write(&mut fs::File::options().write(true).open("/dev/full").unwrap(), "text");
        assert!(matches!(status(&root, &output), Err(LaunchError::OutputClosed)));
    }

    /// Regression test: the error named a log, which a cluster in the foreground does not have.
    #[test]
    fn a_power_cut_is_reported_without_a_log() {
        let directory = tempfile::tempdir().unwrap();
        let place = place(directory.path());
        outcome(&place, &Shown::Stopped).unwrap();
        let text = |shown| outcome(&place, &shown).unwrap_err().to_string();
        let killed = text(Shown::Killed);
        assert!(killed.contains("Ctrl-C cut the power") && !killed.contains("launcher.log"), "{killed}");
        assert!(killed.ends_with("`start --name=granary` boots them again"), "{killed}");
        let failed = text(Shown::Failed);
        assert!(failed.contains("granary/launcher.log, or the terminal "), "{failed}");
    }

    /// Regression test: `delete` printed that it had removed the disk behind a link.
    #[test]
    fn a_disk_behind_a_link_stays_and_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let (place, file) = (place(directory.path()), directory.path().join("large.img"));
        fs::write(&file, "content").unwrap();
        std::os::unix::fs::symlink(&file, place.data()).unwrap();
        delete(&place, &Output::new()).unwrap();
        assert!(!place.exists());
        let text = deleted(&place.data(), &file, Bytes::MIB);
        assert!(text.starts_with(&format!("Data disk {} (1 MiB) stays: ", file.display())), "{text}");
        fs::remove_file(&file).unwrap();
        let text = deleted(&place.data(), &file, Bytes::MIB);
        assert_eq!(text, format!("Removed data disk {} (1 MiB).", place.data().display()));
    }

    #[test]
    fn a_cluster_that_was_killed_is_deleted_and_not_signalled() {
        let directory = tempfile::tempdir().unwrap();
        let (place, output) = (place(directory.path()), Output::new());
        let unknown = Place { name: place.name.clone(), directory: directory.path().join("unknown") };
        for command in [stop, delete] {
            assert!(matches!(command(&unknown, &output), Err(LaunchError::Unknown { .. })));
        }
        // The record has the PID of this test: a signal would end the test.
        let process = ProcessId::own().unwrap();
        let text = serde_json::to_string(&process).unwrap().replace("\"start\":", "\"start\":1");
        let stale: ProcessId = serde_json::from_str(&text).unwrap();
        Record { phase: Phase::Ready, process: Some(stale), ..Record::default() }.write(&place.record()).unwrap();
        stop(&place, &output).unwrap();
        let lock = place.lock().unwrap();
        assert!(matches!(delete(&place, &output), Err(LaunchError::InUse { .. })));
        drop(lock);
        delete(&place, &output).unwrap();
        assert!(!place.exists());
    }
}
