//! A first boot that a power cut ends, at every point. Needs root and three scratch disks: one is recorded
//! on another, and what the power left is put together on the third.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use ktest_support::replay::{Cut, Recorder, Replay, Tearing};
use ktest_support::unmount;
use localstorage::{Content, Data, DataDisk, FindError, Mounted, Programs, Refusal, Role, Root, Seen, Tree, examine};
use nix::mount::{MntFlags, umount2};
use tempfile::TempDir;
use units::Bytes;

/// A node's directory for the data disk, and nothing else of it.
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

/// A machine whose only disk is this device.
fn seen(device: &Path) -> Result<Seen, FindError> {
    let name = fs::canonicalize(device).unwrap().file_name().unwrap().to_str().unwrap().to_owned();
    let sectors = fs::read_to_string(Path::new("/sys/block").join(&name).join("size")).unwrap();
    let size = Bytes::new(localstorage::sysfs::number(&sectors).unwrap() * 512);
    let content = examine(device, size, &Programs::default())?;
    Ok(Seen { name, device: device.to_owned(), role: Role::Unnamed, read_only: false, size, content })
}

/// What a tenant keeps, written when the boot is over.
fn kept(data: &Mounted<Data>) -> PathBuf {
    data.pki.path().join("kept")
}

/// Records a first boot, with a file written and synced after it.
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

/// What the next boot found, to count it.
fn kind(content: &Content) -> &'static str {
    match content {
        Content::Empty => "empty",
        Content::Ours(_) => "ours",
        Content::Unfinished => "unfinished",
        Content::Foreign(_) => "foreign",
        Content::Unexamined => "unexamined",
    }
}

/// The next boot ends with a node that works, and nothing that was there is gone. Or it is refused: a disk
/// may lose any of what it was not asked to keep, so the superblock can be among what is lost and the rest
/// of the file system not. That looks like somebody's damaged file system, and it can be nothing but that.
fn boots_again(device: &Path, cut: &Cut) -> Result<&'static str, Box<dyn Error>> {
    let node = Node::new();
    let seen = [seen(device)?];
    let found = kind(&seen[0].content);
    if cut.has_passed("booted") && found != "ours" {
        return Err(format!("the disk is {found}, though the first boot was over").into());
    }
    let disk = match DataDisk::choose(&seen) {
        Err(FindError::Refused(Refusal::Foreign { .. })) if superblock(device) == [0; 4] => return Ok(found),
        chosen => chosen?,
    };
    let data = disk.mount(node.data())?;
    if cut.has_passed("kept") && fs::read(kept(&data))? != b"kept" {
        return Err("what was kept is another".into());
    }
    // It is whole: it can be written.
    fs::write(data.volumes.path().join("written"), vec![1; 1 << 20])?;
    data.root().syncfs()?;
    node.shut_down(data)?;
    match self::seen(device)?.content {
        Content::Ours(_) => Ok(found),
        other => Err(format!("the boot after the next would find {other:?}").into()),
    }
}

/// Which of the cuts with nothing to keep are booted from.
const EACH: u32 = 32;

#[test]
fn wherever_the_power_fails_in_the_first_boot_the_next_one_formats_again_or_goes_on() {
    let mut replay = first_boot(nothing);
    let mut found = BTreeMap::new();
    for cut in &replay.every_cut() {
        let disk = replay.restore(cut);
        let content = seen(disk.device()).unwrap().content;
        let number = found.entry(kind(&content)).or_insert(0_u32);
        *number += 1;
        // To look is fast, to boot takes seconds: what is formatted again does so from a part of the cuts.
        if cut.has_passed("booted") || matches!(content, Content::Ours(_)) || *number % EACH == 1 {
            boots_again(disk.device(), cut).unwrap();
        }
    }
    println!("found by the next boot: {found:?}");
    for kind in ["empty", "unfinished", "ours"] {
        assert!(found.contains_key(kind), "the cuts cover too little");
    }
    assert_eq!(found.len(), 3, "{found:?}");
}

/// Cuts by a disk that loses writes, the same of the same log.
fn lossy_cuts(replay: &Replay) -> Vec<Cut> {
    replay.lossy_cuts(4, 16, Tearing::Sectors)
}

#[test]
fn a_disk_that_loses_writes_never_has_half_a_file_system_taken_for_a_whole_one() {
    let mut replay = first_boot(nothing);
    let mut found = BTreeMap::new();
    for cut in &lossy_cuts(&replay) {
        let disk = replay.restore(cut);
        *found.entry(boots_again(disk.device(), cut).unwrap()).or_insert(0) += 1;
    }
    println!("found by the next boot: {found:?}");
}

/// Shows that the checks above can fail.
#[test]
fn a_disk_that_drops_flushes_does_not_pass() {
    let mut replay = first_boot(Recorder::drop_flushes);
    let cuts = lossy_cuts(&replay);
    let broken = cuts.iter().find_map(|cut| {
        let disk = replay.restore(cut);
        boots_again(disk.device(), cut).err()
    });
    println!("the next boot ends with {broken:?}");
    assert!(broken.is_some());
}

fn superblock(device: &Path) -> [u8; 4] {
    use std::os::unix::fs::FileExt;
    let mut magic = [0; 4];
    fs::File::open(device).unwrap().read_exact_at(&mut magic, 0).unwrap();
    magic
}
