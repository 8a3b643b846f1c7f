//! A first boot and a boot after an upgrade, with a power cut at every point. Needs root and three scratch disks: one
//! is recorded on another, and the state after the cut is restored on the third.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use ktest_support::replay::{Cut, Recorder, Replay, Tearing};
use ktest_support::unmount;
use localstorage::{
    Content, Data, DataDisk, FindError, FoundDisk, Mounted, NoDataDisk, Programs, Role, Root, Tree, examine,
};
use nix::mount::{MntFlags, umount2};
use tempfile::TempDir;
use units::Bytes;

mod former;
#[path = "interrupted/upgrade.rs"]
mod upgrade;

/// Directory of a node that has only the mount point of the data disk.
struct Node {
    place: TempDir,
}

impl Node {
    fn new() -> Self {
        let node = Self { place: tempfile::tempdir().unwrap() };
        fs::create_dir(node.data().path()).unwrap();
        node
    }

    fn data(&self) -> Data {
        Root::at(self.place.path()).data
    }

    fn shut_down(&self, data: Mounted<Data>) -> nix::Result<()> {
        drop(data);
        unmount(self.data().path())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = umount2(self.data().path(), MntFlags::MNT_DETACH);
    }
}

/// The only disk of a machine, on this device.
fn seen(device: &Path) -> Result<FoundDisk, FindError> {
    let name = fs::canonicalize(device).unwrap().file_name().unwrap().to_str().unwrap().to_owned();
    let sectors = fs::read_to_string(Path::new("/sys/block").join(&name).join("size")).unwrap();
    let size = Bytes::new(localstorage::sysfs::number(&sectors).unwrap() * 512);
    let content = examine(device, size, &Programs::default())?;
    Ok(FoundDisk { name, device: device.to_owned(), role: Role::Unnamed, read_only: false, size, content })
}

fn kept(data: &Mounted<Data>) -> PathBuf {
    data.pki.path().join("kept")
}

/// Records a first boot, after which a file is written and synced.
fn first_boot(before: impl FnOnce(&Recorder)) -> Replay {
    let node = Node::new();
    let recorder = Recorder::on_empty_disk();
    before(&recorder);
    let disk = DataDisk::choose(&[seen(recorder.device()).unwrap()]).unwrap();
    let data = disk.mount(node.data()).unwrap();
    recorder.mark("booted");
    fs::write(kept(&data), "kept").unwrap();
    data.root().syncfs().unwrap();
    recorder.mark("kept");
    node.shut_down(data).unwrap();
    recorder.finish()
}

fn nothing(_: &Recorder) {}

fn kind(content: &Content) -> &'static str {
    match content {
        Content::Empty => "empty",
        Content::Data(_) => "data",
        Content::Unfinished => "unfinished",
        Content::Foreign(_) => "foreign",
        Content::Unexamined => "unexamined",
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Boot {
    /// The node works, from a disk in this state.
    Works(&'static str),
    /// The disk was rejected because of this content, and nothing was written to it.
    Rejected(String),
}

/// Lost data of the first boot, or an unrelated error.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("the disk is {0}, though the first boot was over")]
    Unformatted(&'static str),
    #[error("the file that was kept has {0:?}")]
    Kept(Option<Vec<u8>>),
    #[error("the boot after the next would find {0:?}")]
    Second(Content),
    #[error(transparent)]
    Other(Box<dyn Error>),
}

impl Broken {
    fn other(error: impl Into<Box<dyn Error>>) -> Self {
        Self::Other(error.into())
    }
}

/// Boots again: the node works and no data is missing, or the node rejects the disk. A disk may lose any unsynced
/// write, so it can lose the superblock and keep the rest of the file system. This state looks like a damaged foreign
/// file system, and can be one.
fn boots_again(disk: FoundDisk, cut: &Cut) -> Result<Boot, Broken> {
    let node = Node::new();
    let (device, found) = (disk.device.clone(), kind(&disk.content));
    if cut.has_passed("booted") && found != "data" {
        return Err(Broken::Unformatted(found));
    }
    let disk = match DataDisk::choose(&[disk]) {
        Err(FindError::Refused(NoDataDisk::Foreign { what, .. })) if superblock(&device) == [0; 4] => {
            return Ok(Boot::Rejected(what.to_string()));
        }
        chosen => chosen.map_err(Broken::other)?,
    };
    let data = disk.mount(node.data()).map_err(Broken::other)?;
    if cut.has_passed("kept") {
        let content = fs::read(kept(&data)).ok();
        if content.as_deref() != Some(b"kept") {
            return Err(Broken::Kept(content));
        }
    }
    // The file system is intact: files can be written.
    fs::write(data.volumes.path().join("written"), vec![1; 1 << 20]).map_err(Broken::other)?;
    data.root().syncfs().map_err(Broken::other)?;
    node.shut_down(data).map_err(Broken::other)?;
    match seen(&device).map_err(Broken::other)?.content {
        Content::Data(_) => Ok(Boot::Works(found)),
        other => Err(Broken::Second(other)),
    }
}

/// Cuts with a disk that loses writes. The same log gives the same cuts.
fn lossy_cuts(replay: &Replay) -> Vec<Cut> {
    let mut cuts = replay.lossy_cuts(4, 16, Tearing::Sectors);
    cuts.retain(Cut::is_lossy);
    cuts
}

/// Number of times that each result of the next boot occurred.
type Ends = BTreeMap<Boot, u32>;

/// Maximum number of unfinished disks from which a node boots: it formats each of them, which takes seconds.
const FORMATTED_AGAIN: usize = 4;

/// Checks every state of the disk that XFS or a boot distinguishes, and boots from it. For unfinished disks, which are
/// the majority, boots only from some. Then checks some states with lost writes.
#[test]
fn the_next_boot_finishes_a_first_boot_cut_anywhere() {
    let mut replay = first_boot(nothing);
    let mut cuts = replay.every_different_cut();
    let step = cuts.len().div_ceil(FORMATTED_AGAIN);
    cuts.extend(lossy_cuts(&replay));
    cuts.sort_by_key(Cut::position);
    let (mut whole, mut lossy, mut unfinished) = (Ends::new(), Ends::new(), 0);
    for cut in &cuts {
        let disk = replay.restore(cut);
        let found = seen(disk.device()).unwrap();
        if !cut.is_lossy() && !cut.has_passed("booted") && found.content == Content::Unfinished {
            unfinished += 1;
            if unfinished % step != 0 && unfinished != 1 {
                continue;
            }
        }
        let end = boots_again(found, cut).unwrap_or_else(|broken| panic!("{broken}"));
        let ends = if cut.is_lossy() { &mut lossy } else { &mut whole };
        *ends.entry(end).or_default() += 1;
    }
    println!("{} cuts, {unfinished} unfinished; the next boot: {whole:?}; after losses: {lossy:?}", cuts.len());
    // Without losses, no disk is rejected, and the cuts reach every phase of the first boot.
    assert!(whole.keys().eq(&["data", "empty", "unfinished"].map(Boot::Works)), "{whole:?}");
    // Most losses do no harm. A disk is rejected only if its superblock is missing.
    let (mut works, mut rejected) = (0, 0);
    for (end, number) in &lossy {
        match end {
            Boot::Works(_) => works += number,
            Boot::Rejected(what) if what.starts_with("data of an unknown kind") => rejected += number,
            Boot::Rejected(what) => panic!("rejected as {what}"),
        }
    }
    assert!(works >= 8 && works > rejected, "{lossy:?}");
}

/// Shows that the checks above can fail: on a disk that drops flushes, synced data is missing, and the checks
/// themselves detect it, not only XFS.
#[test]
fn a_disk_that_drops_flushes_does_not_pass() {
    let mut replay = first_boot(Recorder::drop_flushes);
    let mut cuts = replay.lossy_cuts(4, 64, Tearing::Sectors);
    cuts.retain(|cut| cut.has_passed("booted"));
    let broken = cuts.iter().find_map(|cut| {
        let disk = replay.restore(cut);
        let ended = seen(disk.device()).map_err(Broken::other).and_then(|found| boots_again(found, cut));
        ended.err().filter(|broken| !matches!(broken, Broken::Other(_)))
    });
    println!("the next boot of {} cuts ends with {broken:?}", cuts.len());
    assert!(broken.is_some());
}

fn superblock(device: &Path) -> [u8; 4] {
    use std::os::unix::fs::FileExt;
    let mut magic = [0; 4];
    fs::File::open(device).unwrap().read_exact_at(&mut magic, 0).unwrap();
    magic
}
