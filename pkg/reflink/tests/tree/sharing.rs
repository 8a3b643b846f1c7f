//! The end of sharing, and the space that overwriting shared blocks needs.

use std::fs::{self, File};
use std::io::Write as _;
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::path::Path;

use fsquota::ProjectId;
use nix::errno::Errno;
use nix::sys::stat::fstat;
use reflink::{Extent, TreeError, for_each_shared, unshare};
use rustix::fs::{XattrFlags, fgetxattr, fsetxattr, lgetxattr, lremovexattr, lsetxattr};
use units::Bytes;

use crate::description::shared;
use crate::{MIB, Stage, limits};

const SOURCE: ProjectId = ProjectId::new(78).unwrap();
const CAPABILITY: &str = "security.capability";
/// Copy of the capability while the sharing ends.
const KEPT: &str = "trusted.reflink.capability";
const FILES: u64 = 16;
/// Size of a file in bytes.
const EACH: u64 = 2 * MIB;
/// Size of all files.
const SIZE: Bytes = Bytes::new(FILES * EACH);
/// Limit of the source: the content, directories, maps of extents, and temporary reservations of XFS.
const LIMIT: Bytes = Bytes::new(SIZE.get() + MIB);

impl Stage {
    /// A source with a project whose limit is nearly reached.
    fn full() -> Self {
        let stage = Self::new();
        fsquota::assign(File::open(&stage.from).unwrap(), SOURCE, limits(LIMIT)).unwrap();
        stage.overwrite(1);
        stage
    }

    /// Overwrites all files before the first one is synced.
    fn overwrite(&self, byte: u8) {
        let files: Vec<File> = (0..FILES)
            .map(|number| {
                let path = self.from.join(number.to_string());
                let mut file = File::options().write(true).create(true).truncate(false).open(path).unwrap();
                file.write_all(&vec![byte; EACH as usize]).unwrap();
                file
            })
            .collect();
        files.iter().for_each(|file| file.sync_all().unwrap());
    }

    fn sizes(&self) -> [u64; 2] {
        [&self.from, &self.to].map(|top| (0..FILES).map(|number| shared(&top.join(number.to_string()))).sum())
    }
}

/// The byte that a file consists of. Compares slices: a loop over each byte takes a second in emulation.
fn byte_of(file: &Path) -> Option<u8> {
    let content = fs::read(file).unwrap();
    let (first, rest) = content.split_first()?;
    (*rest == content[..rest.len()]).then_some(*first)
}

#[test]
fn a_full_source_can_be_overwritten_within_a_raised_limit() {
    let stage = Stage::full();
    stage.limit(SOURCE, Bytes::new(LIMIT.get() + SIZE.get()));
    stage.complete(stage.begin());
    assert_eq!(stage.sizes(), [SIZE.get(); 2]);
    stage.overwrite(2);
    assert_eq!(stage.sizes(), [0; 2]);
    assert_eq!((byte_of(&stage.from.join("0")), byte_of(&stage.to.join("0"))), (Some(2), Some(1)));
}

#[test]
fn a_visit_can_end_early_and_the_next_one_continues() {
    let stage = Stage::full();
    stage.limit(SOURCE, Bytes::new(LIMIT.get() + SIZE.get()));
    stage.complete(stage.begin());
    let mut visits = 0;
    loop {
        let first =
            |file: BorrowedFd<'_>, extent: Extent| ControlFlow::Break(unshare(file, extent.start, extent.length));
        match for_each_shared(File::open(&stage.to).unwrap(), first).unwrap() {
            ControlFlow::Break(done) => done.unwrap(),
            ControlFlow::Continue(()) => break,
        }
        visits += 1;
        assert!(visits < 1000);
    }
    assert!(visits >= FILES && stage.sizes() == [0; 2], "{visits}");
    // The files are overwritten in place, without space for a second copy.
    stage.limit(SOURCE, LIMIT);
    stage.overwrite(2);
    assert_eq!((byte_of(&stage.from.join("9")), byte_of(&stage.to.join("9"))), (Some(2), Some(1)));
}

/// Regression: `unshare` changed times and removed capabilities until the caller had restored them.
#[test]
fn files_have_their_times_and_capabilities_whenever_the_end_of_their_sharing_stops() {
    let stage = Stage::populated();
    stage.complete(stage.begin());
    let mut kept = 0;
    let copy = |file: BorrowedFd<'_>, extent: Extent| {
        let times = || {
            let stat = fstat(file).unwrap();
            let changed = (stat.st_ctime, stat.st_ctime_nsec);
            ((stat.st_atime, stat.st_atime_nsec), (stat.st_mtime, stat.st_mtime_nsec), changed)
        };
        let has = |name: &str| fgetxattr(file, name, &mut [0; 32][..]).is_ok();
        let before = times();
        let has_capability = has(CAPABILITY);
        assert_eq!(has(KEPT), has_capability);
        unshare(file, extent.start, extent.length).unwrap();
        let after = times();
        assert_eq!((after.0, after.1), (before.0, before.1));
        if has_capability {
            // The kernel has removed the other one.
            assert!(has(KEPT) && !has(CAPABILITY));
            kept += 1;
        } else {
            assert_eq!(after.2, before.2);
        }
        ControlFlow::<()>::Continue(())
    };
    let visited = for_each_shared(File::open(&stage.to).unwrap(), copy).unwrap();
    assert!(visited.is_continue() && kept == 1, "{kept} files with a capability");
    stage.expect_equal();

    // The state after a kill before the capability of the file, which shares nothing any more, is restored.
    let path = stage.to.join("mode");
    assert_eq!(shared(&path), 0);
    let mut value = [0; 20];
    lgetxattr(&path, CAPABILITY, &mut value[..]).unwrap();
    lsetxattr(&path, KEPT, &value, XattrFlags::empty()).unwrap();
    lremovexattr(&path, CAPABILITY).unwrap();
    let none = |_: BorrowedFd<'_>, _: Extent| ControlFlow::Break(());
    assert!(for_each_shared(File::open(&stage.to).unwrap(), none).unwrap().is_continue());
    stage.expect_equal();
}

/// Regression: the copy got the attribute too, and its value became the capability of the copy: the kernel rejects this
/// one with `EINVAL`.
#[test]
fn a_copy_does_not_trust_the_kept_capability_of_its_source() {
    let stage = Stage::new();
    fs::write(stage.from.join("file"), vec![1; EACH as usize]).unwrap();
    lsetxattr(stage.from.join("file"), KEPT, b"no capability", XattrFlags::empty()).unwrap();
    stage.complete(stage.begin());
    let copy = stage.to.join("file");
    assert_eq!(shared(&copy), EACH);
    let visit = |file: BorrowedFd<'_>, extent: Extent| {
        unshare(file, extent.start, extent.length).unwrap();
        ControlFlow::<()>::Continue(())
    };
    assert!(for_each_shared(File::open(&stage.to).unwrap(), visit).unwrap().is_continue());
    assert_eq!(shared(&copy), 0);
    for name in [KEPT, CAPABILITY] {
        assert_eq!(lgetxattr(&copy, name, &mut [0; 32][..]), Err(rustix::io::Errno::NODATA), "{name}");
    }
}

/// Regression: on a full disk, the error of the capability hid that of the visit.
#[test]
fn a_capability_that_cannot_be_restored_does_not_hide_why_a_visit_broke() {
    let stage = Stage::populated();
    stage.complete(stage.begin());
    let mut broken = 0;
    let visit = |file: BorrowedFd<'_>, _: Extent| {
        if fgetxattr(file, KEPT, &mut [0; 32][..]).is_err() {
            return ControlFlow::Continue(());
        }
        // The kernel rejects this value as a capability.
        fsetxattr(file, KEPT, b"no capability", XattrFlags::empty()).unwrap();
        broken += 1;
        ControlFlow::Break("full")
    };
    let visited = for_each_shared(File::open(&stage.to).unwrap(), visit);
    assert!(matches!(visited, Ok(ControlFlow::Break("full"))), "{visited:?}");
    assert_eq!(broken, 1);
    // The next call tries to restore it again.
    let next = for_each_shared(File::open(&stage.to).unwrap(), |_, _| ControlFlow::<()>::Continue(())).unwrap_err();
    let TreeError::Entry { path, errno: Errno::EINVAL, .. } = &next else { panic!("{next:?}") };
    assert_eq!(path, Path::new("mode"));
}
