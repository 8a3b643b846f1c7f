//! The first boot on a disk of the former release, which a power cut ends at every point.

use std::path::Path;
use std::process::Command;

use ktest_support::replay::{Cut, Recorder, Replay, Tearing};
use ktest_support::unmount;
use localstorage::{DataDisk, LABEL, Tree};
use nix::mount::{MsFlags, mount};
use nix::unistd::syncfs;

use crate::{Node, former, seen};

/// Records the boot. The disk loses nothing that was there before.
fn upgrade() -> Replay {
    let node = Node::new();
    let recorder = Recorder::on_empty_disk();
    let made = Command::new("mkfs.xfs").args(["-q", "-f", "-K", "-L", LABEL]).arg(recorder.device()).status();
    assert!(made.unwrap().success());
    let data = node.data();
    mount(Some(recorder.device()), data.path(), Some("xfs"), MsFlags::empty(), Some("prjquota")).unwrap();
    former::create(&data);
    syncfs(std::fs::File::open(data.path()).unwrap()).unwrap();
    unmount(data.path()).unwrap();
    recorder.mark("former");
    let mounted = boot(&node, recorder.device());
    recorder.mark("upgraded");
    node.shut_down(mounted).unwrap();
    recorder.finish()
}

fn boot(node: &Node, device: &Path) -> localstorage::Mounted<localstorage::Data> {
    DataDisk::choose(&[seen(device).unwrap()]).unwrap().mount(node.data()).unwrap()
}

/// The next boot finishes it: the data are there, nothing has the former projects or their limits, and the IDs are those that
/// were recorded.
#[test]
fn wherever_the_power_fails_in_an_upgrade_the_next_boot_finishes_it() {
    let mut replay = upgrade();
    let mut cuts = replay.every_different_cut();
    let mut lossy = replay.lossy_cuts(4, 48, Tearing::Sectors);
    lossy.retain(Cut::is_lossy);
    cuts.extend(lossy);
    cuts.retain(|cut| cut.has_passed("former"));
    cuts.sort_by_key(Cut::position);
    let (mut before, mut lost) = (0, 0);
    for cut in &cuts {
        before += u32::from(!cut.has_passed("upgraded"));
        lost += u32::from(cut.is_lossy());
        let disk = replay.restore(cut);
        let node = Node::new();
        let mounted = boot(&node, disk.device());
        assert_eq!(former::faults(&mounted), [""; 0]);
        node.shut_down(mounted).unwrap();
    }
    println!("{} cuts, {before} of them in the upgrade; {lost} with losses", cuts.len());
    assert!(before >= 4 && lost >= 4, "{before} {lost}");
}
