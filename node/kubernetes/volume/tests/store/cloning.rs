//! Clones of block volumes.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use dir::Ensured;
use loopdev::{Config, Control, Detach};
use nix::libc::O_DIRECT;
use reflink::Extent;
use units::Bytes;
use volume::{Access, Allocation, Error, Mode, Record, Request, Settings, SourceError, VolumeId, Volumes as _};

use crate::node::{Node, SIZE, copied, disk, files, id, only_byte, settings, sized};

pub const BOTH: [Allocation; 2] = [Allocation::Thick, Allocation::Thin];
/// Eight times what the limit of an image of this size has beside its blocks (README, "Reserved space"): a tenant that
/// overwrites all of it needs the headroom.
pub const LARGE: Bytes = Bytes::new(24 << 20);
/// Size in the tests that overwrite a full volume of any allocation.
pub const FULL: Bytes = Bytes::new(64 << 20);
pub const LARGER: Bytes = Bytes::new(20 << 20);

/// Size of a write of the tenant.
const CHUNK: usize = 64 << 10;

fn clone_of(source: &VolumeId, request: Request) -> Request {
    Request { source: Some(source.clone()), ..request }
}

/// Runs all passes of a clone, and announces its PV.
fn cloned(node: &Node, request: &Request) -> (VolumeId, Record) {
    let record = copied(&node.store, request);
    assert_eq!(record.cloning, None);
    (id(&request.claim.name), record)
}

pub fn extents(image: &Path) -> Vec<Extent> {
    let (image, mut found) = (File::open(image).unwrap(), Vec::<Extent>::new());
    loop {
        let batch = reflink::extents(&image, found.last().map_or(Bytes::ZERO, |last| last.end())).unwrap();
        if batch.is_empty() {
            return found;
        }
        found.extend(batch);
    }
}

pub fn shared(image: &Path) -> Bytes {
    extents(image).iter().filter(|extent| extent.shared).map(|extent| extent.length).sum()
}

/// Checks that no volume shares a block, both have the limits of their sizes, and the disk has reserved just these.
pub fn is_settled(node: &Node, volumes: [&Record; 2]) {
    for record in volumes {
        let id = id(&record.claim.name);
        assert_eq!(shared(&node.image(&id)), Bytes::ZERO, "{id}");
        let alone = Mode::Block { allocation: Allocation::Thin }.reserved(record.size);
        let inodes = Bytes::new(2 * 512);
        assert_eq!(node.limits(record.project).bytes, Some(alone.saturating_sub(inodes)), "{id}");
    }
    let reserved: Bytes = volumes.iter().map(|record| record.reserved()).sum();
    assert_eq!(node.store.space().unwrap().reserved, reserved);
}

/// With the order reversed, the source would share blocks that its limit has no space to overwrite.
#[test]
fn blocks_that_a_failed_pass_has_kept_are_released_before_the_limit_of_the_source_is_lowered() {
    let node = Node::with(Settings { pass: Duration::ZERO, ..settings() });
    let thick = Mode::Block { allocation: Allocation::Thick };
    let (source, record) = node.made(&sized("pvc-source", thick, Bytes::MIB));
    OpenOptions::new().write(true).open(node.image(&source)).unwrap().write_all(&[1; 1 << 20]).unwrap();
    let request = clone_of(&source, sized("pvc-clone", thick, Bytes::MIB));
    // This pass copies the only piece.
    let first = node.store.provision(&id("pvc-clone"), &request);
    assert!(matches!(first, Err(Error::Copying { .. })), "{first:?}");
    let kept = node.path("anchors", &id("pvc-clone"));
    assert!(!kept.exists(), "a pass ends without it");
    let following = kept.with_file_name("pvc-clone~1");
    for file in [&kept, &following] {
        reflink::clone_file(File::open(node.image(&source)).unwrap(), File::create(file).unwrap()).unwrap();
    }
    let (_, clone) = cloned(&node, &request);
    assert!(!kept.exists() && !following.exists());
    is_settled(&node, [&record, &clone]);
}

#[test]
fn a_clone_has_the_content_of_its_source_and_shares_nothing() {
    let node = Node::new();
    for (number, (source, clone)) in BOTH.into_iter().flat_map(|one| BOTH.map(|other| (one, other))).enumerate() {
        let (source, from) = node.made(&disk(&format!("pvc-source-{number}"), source));
        let image = File::from(node.store.open_volume(&source).unwrap().image(Access::ReadWrite).unwrap());
        for part in [1_u8, 5, 15] {
            image.write_all_at(&vec![part; 1 << 20], u64::from(part) << 20).unwrap();
        }
        let size = if number.is_multiple_of(2) { SIZE } else { LARGER };
        let want = sized(&format!("pvc-clone-{number}"), Mode::Block { allocation: clone }, size);
        let want = clone_of(&source, want);
        let (id, to) = cloned(&node, &want);
        let stat = fs::metadata(node.image(&id)).unwrap();
        let blocks = if clone == Allocation::Thick { size } else { Bytes::new(3 << 20) };
        assert_eq!((stat.len(), stat.blocks() * 512), (size.get(), blocks.get()));
        let mut content = fs::read(node.image(&source)).unwrap();
        content.resize(size.get() as usize, 0);
        assert!(fs::read(node.image(&id)).unwrap() == content);
        assert_eq!(
            node.store.provision(&id, &want).unwrap(),
            Ensured::Unchanged(node.store.records().unwrap().readable[&id].clone())
        );
        is_settled(&node, [&from, &to]);
        // A write to one volume does not change the other one, and the clone grows and ends like every volume.
        image.write_all_at(&[9; 4096], 1 << 20).unwrap();
        assert_eq!(fs::read(node.image(&id)).unwrap()[1 << 20], 1);
        node.store.expand(&id, Bytes::new(48 << 20)).unwrap();
        drop(image);
        for id in [source, id] {
            node.remove(&id);
        }
    }
}

#[test]
fn a_source_that_cannot_be_cloned_is_rejected_and_leaves_no_trace() {
    let (node, directory, _) = Node::with_volume(&files("pvc-files"));
    let (large, _) = node.made(&sized("pvc-large", Mode::Block { allocation: Allocation::Thin }, LARGER));
    let staged = id("pvc-staged");
    node.store.provision(&staged, &disk("pvc-staged", Allocation::Thin)).unwrap();
    let (retired, _) = node.made(&disk("pvc-retired", Allocation::Thin));
    node.store.retire(&retired).unwrap();
    let (space, clone) = (node.store.space().unwrap(), id("pvc-clone"));
    let refusal = |source: &VolumeId| {
        let refused = node.store.provision(&clone, &clone_of(source, disk("pvc-clone", Allocation::Thick)));
        assert_eq!(node.traces(&clone), [""; 0]);
        assert_eq!(node.store.space().unwrap(), space);
        let Err(Error::Source { source, .. }) = refused else { panic!("{refused:?}") };
        source
    };
    assert!(matches!(refusal(&directory), SourceError::NoFreezer { .. }));
    assert!(matches!(refusal(&large), SourceError::Larger { has: LARGER, size: SIZE, .. }));
    assert!(matches!(refusal(&staged), SourceError::NotAnnounced { .. }));
    assert!(matches!(refusal(&retired), SourceError::Unknown { .. }));
    assert!(matches!(refusal(&id("pvc-none")), SourceError::Unknown { .. }));
    assert!(matches!(refusal(&clone), SourceError::Unknown { .. }));
}

/// While blocks are shared, the source needs its size again.
#[test]
fn a_clone_needs_the_space_of_the_clone_and_of_its_source() {
    let node = Node::new();
    let (source, _) =
        node.made(&sized("pvc-source", Mode::Block { allocation: Allocation::Thin }, Bytes::new(300 << 20)));
    let want =
        clone_of(&source, sized("pvc-clone", Mode::Block { allocation: Allocation::Thin }, Bytes::new(300 << 20)));
    let refused = node.store.provision(&id("pvc-clone"), &want).unwrap_err();
    assert!(matches!(refused, Error::Full { wanted, .. } if wanted > Bytes::new(600 << 20)), "{refused:?}");
    assert_eq!(node.traces(&id("pvc-clone")), [""; 0]);
    node.store.expand(&source, Bytes::new(301 << 20)).unwrap();
}

/// Regression: without space for new blocks in the source's project, buffered writes through its device were lost with
/// `EIO`.
#[test]
fn a_tenant_overwrites_the_whole_source_while_it_is_cloned() {
    for direct_io in [false, true] {
        let (node, source, from) =
            Node::with_volume(&sized("pvc-source", Mode::Block { allocation: Allocation::Thick }, LARGE));
        let image = node.store.open_volume(&source).unwrap().image(Access::ReadWrite).unwrap();
        let device = Control::open().unwrap().attach(&image, &Config { direct_io, ..Config::default() }).unwrap();
        let (path, end) = (device.path(), AtomicBool::new(false));
        let overwrite = || {
            let mut file = File::options().write(true).open(&path).unwrap();
            file.write_all(&vec![7; LARGE.get() as usize]).unwrap();
            file.sync_all().unwrap();
        };
        overwrite();
        let records = thread::scope(|scope| {
            let tenant = scope.spawn(|| {
                while !end.load(Ordering::Relaxed) {
                    overwrite();
                }
            });
            let records: Vec<Record> = (0..3)
                .map(|number| {
                    let want = sized(&format!("pvc-{number}"), Mode::Block { allocation: Allocation::Thick }, LARGE);
                    let (id, record) = cloned(&node, &clone_of(&source, want));
                    assert_eq!(only_byte(&fs::read(node.image(&id)).unwrap()), Some(7));
                    record
                })
                .collect();
            end.store(true, Ordering::Relaxed);
            tenant.join().expect("every write and sync of the tenant");
            records
        });
        overwrite();
        assert_eq!(device.detach(&image).unwrap(), Detach::Detached);
        drop(image);
        for record in &records[1..] {
            let id = id(&record.claim.name);
            node.remove(&id);
        }
        is_settled(&node, [&from, &records[0]]);
    }
}

/// The tenant writes a chunk after the one before it is on the disk.
#[test]
fn a_clone_is_the_source_at_one_instant() {
    let (node, source, _) =
        Node::with_volume(&sized("pvc-source", Mode::Block { allocation: Allocation::Thick }, SIZE));
    let (path, end) = (node.image(&source), AtomicBool::new(false));
    thread::scope(|scope| {
        let tenant = scope.spawn(|| {
            let image = OpenOptions::new().write(true).custom_flags(O_DIRECT).open(&path).unwrap();
            let mut memory = vec![0; CHUNK + 4096];
            let aligned = memory.as_ptr().align_offset(4096);
            let mut round = 0_u8;
            while !end.load(Ordering::Relaxed) {
                round = round.wrapping_add(1);
                let chunk = &mut memory[aligned..aligned + CHUNK];
                chunk.fill(round);
                for number in 0..SIZE.get() / CHUNK as u64 {
                    image.write_all_at(chunk, number * CHUNK as u64).unwrap();
                }
            }
        });
        for number in 0..8 {
            let (id, _) = cloned(&node, &clone_of(&source, disk(&format!("pvc-{number}"), Allocation::Thick)));
            let content = fs::read(node.image(&id)).unwrap();
            let rounds: Vec<u8> = content.chunks(CHUNK).map(|chunk| chunk[0]).collect();
            let newer = rounds.iter().take_while(|round| **round == rounds[0]).count();
            let (first, rest) = (rounds[0], &rounds[newer..]);
            assert!(rest.iter().all(|round| *round == first.wrapping_sub(1)), "{rounds:?}");
            node.remove(&id);
        }
        end.store(true, Ordering::Relaxed);
        tenant.join().unwrap();
    });
}
