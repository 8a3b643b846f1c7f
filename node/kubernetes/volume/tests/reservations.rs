//! Each volume can use its reserved space, whatever the neighbours do. Needs root and a scratch disk.

mod node;

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::thread;

use fsquota::Allocator;
use ktest_support::XfsDisk;
use localstorage::{Budget, Part};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::libc;
use nix::sys::statvfs::fstatvfs;
use units::{Bytes, Inodes};
use volume::{Allocation, Mode, Record, Settings, Store, VolumeId, Volumes as _};

use crate::node::{Node, sized};

const BLOCK: u64 = 4096;

/// A node whose other parts of the disk have limits, and whose volumes cannot reserve that space.
fn node() -> Node {
    let disk = XfsDisk::with_project_quota();
    let volumes = Node::volumes(disk.path());
    let stat = fstatvfs(volumes.as_fd()).unwrap();
    let budget = Budget::of(Bytes::new(stat.blocks() * stat.fragment_size()));
    let ids = Allocator::open(&volumes).unwrap();
    for part in Part::ALL {
        let path = disk.path().join(format!("{part:?}"));
        fs::create_dir(&path).unwrap();
        fsquota::set(File::open(path).unwrap(), budget.limits(part), &ids).unwrap();
    }
    let settings = Settings { reserve: budget.reserve(), ..Settings::default() };
    Node { store: Store::open(&volumes, settings).unwrap(), disk }
}

fn enospc(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::ENOSPC as i32)
}

/// Creates empty files up to the limit: exactly as many as reserved.
fn fill_with_files(volume: &Path, reserved: Inodes) {
    let mut made = 1; // the directory itself
    let refused = loop {
        match File::create(volume.join(format!("{made}"))) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
    };
    assert!(enospc(&refused), "{refused}");
    assert_eq!(Inodes::new(made), reserved);
}

/// Writes one file until the quota is full: up to the last blocks of the reservation, including the blocks of the
/// directory.
fn fill_with_data(volume: &Path, file: &str, reserved: Bytes) {
    let mut file = File::create(volume.join(file)).unwrap();
    let piece = vec![0x5a; 64 << 10];
    let refused = loop {
        if let Err(error) = file.write(&piece) {
            break error;
        }
    };
    assert!(enospc(&refused), "{refused}");
    file.sync_all().unwrap();
    let used = fsquota::get(File::open(volume).unwrap()).unwrap().used.bytes;
    assert!(reserved.saturating_sub(used) < Bytes::new(64 << 10) && used <= reserved, "{used} of {reserved}");
}

/// Block that is aligned for direct writes.
#[repr(C, align(4096))]
struct Aligned([u8; BLOCK as usize]);

/// Writes every second block first, so that the map gets as large as possible. Several writers bypass the page cache,
/// like a loop device.
fn fill_image(image: &Path, reserved: Bytes) {
    const WRITERS: u64 = 4;
    let image = File::options().write(true).custom_flags(libc::O_DIRECT).open(image).unwrap();
    let blocks = reserved.get() / BLOCK;
    for first in [1, 0] {
        thread::scope(|scope| {
            for writer in 0..WRITERS {
                let image = &image;
                scope.spawn(move || {
                    let block = Aligned([0x5a; BLOCK as usize]);
                    let mine = (first..blocks).step_by(2).skip(writer as usize).step_by(WRITERS as usize);
                    for number in mine {
                        image.write_all_at(&block.0, number * BLOCK).expect("it is reserved");
                    }
                });
            }
        });
    }
    image.sync_all().unwrap();
}

#[test]
fn each_volume_gets_its_reservation_while_the_others_are_full() {
    let node = node();
    let default = |size| Mode::Filesystem { inodes: fsquota::default_inodes(size) };
    let files = |name: &str, size: u64| {
        let size = Bytes::new(size << 20);
        node.made(&sized(name, default(size), size))
    };
    let disk =
        |name: &str, allocation, size: u64| node.made(&sized(name, Mode::Block { allocation }, Bytes::new(size << 20)));
    let (greedy, of_greedy) = files("pvc-greedy", 24);
    let (other, of_other) = files("pvc-files", 48);
    let (thick, of_thick) = disk("pvc-thick", Allocation::Thick, 16);
    let (thin, of_thin) = disk("pvc-thin", Allocation::Thin, 16);
    let rest = node.store.space().unwrap().largest_filesystem();
    let (last, of_last) = node.made(&sized("pvc-rest", default(rest), rest));
    let left = node.store.space().unwrap();
    assert!(left.largest_filesystem() < Bytes::new(1 << 20), "{left:?}");

    let Mode::Filesystem { inodes } = of_greedy.mode else { panic!("{of_greedy:?}") };
    fill_with_files(&node.path("live", &greedy), inodes);
    for part in Part::ALL {
        let file = File::create(node.disk.path().join(format!("{part:?}")).join("data")).unwrap();
        let limit = fsquota::get(File::open(node.disk.path().join(format!("{part:?}"))).unwrap()).unwrap();
        let size = limit.limits.bytes.unwrap().get() - (1 << 20); // its own map fits in
        fallocate(&file, FallocateFlags::empty(), 0, size.cast_signed()).unwrap();
    }
    let live = |id: &VolumeId| node.path("live", id);
    let volumes: [(&VolumeId, &Record); 2] = [(&other, &of_other), (&last, &of_last)];
    thread::scope(|scope| {
        scope.spawn(|| fill_image(&node.image(&thick), of_thick.size));
        scope.spawn(|| fill_image(&node.image(&thin), of_thin.size));
        for (id, record) in volumes {
            scope.spawn(|| fill_with_data(&live(id), "data", record.size));
        }
    });
    fill_with_data(&live(&greedy), "1", of_greedy.size);
}
