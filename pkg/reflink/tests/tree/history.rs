//! Random changes between passes.

use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use rustix::fs::{XattrFlags, lsetxattr};

use crate::{Stage, approach_until_equal};

const HISTORIES: u64 = 16;
const CHANGES: usize = 40;

/// xorshift64*, from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % limit
    }

    /// One of few paths, so that changes often affect the same path.
    fn path(&mut self, top: &Path) -> PathBuf {
        let names = 1 + self.below(3);
        let path = (0..names).fold(top.to_owned(), |path, _| path.join(["a", "b", "c"][self.below(3) as usize]));
        // A change through a symbolic link could be outside.
        let is_inside = |parent: &Path| parent.symlink_metadata().is_ok_and(|stat| !stat.is_symlink());
        if path.ancestors().skip(1).take_while(|parent| *parent != top).all(is_inside) { path } else { top.join("d") }
    }

    /// Tries a random change. Many changes fail, because a parent is missing or a name exists.
    fn change(&mut self, top: &Path) {
        let (path, other) = (self.path(top), self.path(top));
        let number = self.below(u64::MAX);
        let is_file = path.symlink_metadata().is_ok_and(|stat| stat.is_file());
        let _ = match self.below(12) {
            0 | 1 => fs::create_dir(&path).map(drop),
            2 => File::create_new(&path).and_then(|mut file| file.write_all(&number.to_le_bytes())),
            3 if is_file => File::options().append(true).open(&path).and_then(|mut file| file.write_all(b"more")),
            4 if is_file => File::options().write(true).open(&path).and_then(|file| file.set_len(number % 9)),
            5 => fs::rename(&path, &other),
            6 => renameat2(AT_FDCWD, &path, AT_FDCWD, &other, RenameFlags::RENAME_EXCHANGE).map_err(Into::into),
            7 => fs::hard_link(&path, &other),
            8 => fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path)),
            9 => symlink(format!("target-{}", number % 3), &path),
            10 => mkfifo(&path, Mode::S_IRWXU).map_err(Into::into),
            _ if !path.is_symlink() => {
                fs::set_permissions(&path, Permissions::from_mode(0o700 | (number % 0o100) as u32))
                    .and_then(|()| Ok(lsetxattr(&path, "trusted.number", &number.to_le_bytes(), XattrFlags::empty())?))
            }
            _ => Ok(()),
        };
    }
}

#[test]
fn after_any_changes_between_passes_both_trees_are_equal() {
    let stage = Stage::new();
    for seed in 1..=HISTORIES {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        println!("seed {seed}");
        for _ in 0..CHANGES * 2 {
            random.change(&stage.from);
        }
        let mut clone = stage.begin();
        for _ in 0..random.below(4) {
            // In the other half of the runs, all changes are too recent for a comparison of times.
            if seed % 2 == 0 {
                approach_until_equal(&mut clone);
            } else {
                clone.approach(None).unwrap();
            }
            for _ in 0..random.below(CHANGES as u64) {
                random.change(&stage.from);
            }
        }
        stage.complete(clone);
        stage.expect_equal();
        stage.clear();
    }
}
