//! The first boot on a disk of the previous release, with a power cut at every point.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use ktest_support::replay::{Cut, Recorder, Replay, Tearing};
use ktest_support::{run, unmount};
use localstorage::{Data, DataDisk, LABEL, Mounted, Tree};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::unistd::syncfs;

use crate::{Node, former, nothing, seen};

/// Records the boot. The disk keeps all data from before the recording.
fn upgrade(before: impl FnOnce(&Recorder)) -> Replay {
    let node = Node::new();
    let recorder = Recorder::on_empty_disk();
    run(Command::new("mkfs.xfs").args(["-q", "-f", "-K", "-L", LABEL]).arg(recorder.device()));
    mount_by_hand(&node, recorder.device()).unwrap();
    former::create(&node.data());
    syncfs(File::open(node.data().path()).unwrap()).unwrap();
    unmount(node.data().path()).unwrap();
    recorder.mark("former");
    before(&recorder);
    let data = boot(&node, recorder.device());
    recorder.mark("upgraded");
    node.shut_down(data).unwrap();
    recorder.finish()
}

fn mount_by_hand(node: &Node, device: &Path) -> Result<(), Errno> {
    mount(Some(device), node.data().path(), Some("xfs"), MsFlags::empty(), Some("prjquota"))
}

fn boot(node: &Node, device: &Path) -> Mounted<Data> {
    DataDisk::choose(&[seen(device).unwrap()]).unwrap().mount(node.data()).unwrap()
}

fn lost(node: &Node, device: &Path) -> Result<Vec<String>, Errno> {
    mount_by_hand(node, device)?;
    let faults = former::faults(&node.data());
    unmount(node.data().path()).unwrap();
    Ok(faults)
}

fn lossy_cuts(replay: &Replay, count: usize) -> Vec<Cut> {
    let mut cuts = replay.lossy_cuts(4, count, Tearing::Sectors);
    cuts.retain(|cut| cut.is_lossy() && cut.has_passed("former"));
    cuts
}

/// The next boot completes the upgrade: the data exist, no file has the former projects or their limits, and the IDs
/// are the recorded ones.
#[test]
fn the_next_boot_finishes_an_upgrade_cut_anywhere() {
    let mut replay = upgrade(nothing);
    let mut cuts = replay.every_different_cut();
    cuts.retain(|cut| cut.has_passed("former"));
    let lossy = lossy_cuts(&replay, 48);
    let (whole, lossy_count) = (cuts.len(), lossy.len());
    cuts.extend(lossy);
    cuts.sort_by_key(Cut::position);
    let mut unfinished = 0;
    for cut in &cuts {
        let disk = replay.restore(cut);
        let node = Node::new();
        if cut.has_passed("upgraded") {
            assert_eq!(lost(&node, disk.device()).unwrap(), [""; 0]);
        } else {
            unfinished += 1;
        }
        let data = boot(&node, disk.device());
        assert_eq!(former::faults(&data), [""; 0]);
        node.shut_down(data).unwrap();
    }
    println!("{whole} cuts, and {lossy_count} with losses; {unfinished} of both before the end of the upgrade");
    assert!(unfinished >= 4, "{unfinished}");
}

/// Shows that the check above can fail.
#[test]
fn a_disk_that_drops_flushes_loses_an_upgrade() {
    let mut replay = upgrade(Recorder::drop_flushes);
    let mut cuts = lossy_cuts(&replay, 64);
    cuts.retain(|cut| cut.has_passed("upgraded"));
    let found = cuts.iter().find_map(|cut| {
        let disk = replay.restore(cut);
        let node = Node::new();
        lost(&node, disk.device()).ok().filter(|faults| !faults.is_empty())
    });
    println!("after {} cuts: {found:?}", cuts.len());
    assert!(found.is_some());
}
