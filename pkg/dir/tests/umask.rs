//! New files get exactly the given mode. The umask belongs to the process, so this test has its own program.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use dir::{Dir, Mode, Name};
use nix::sys::stat::umask;

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn modes_are_exact_under_a_strict_umask() {
    let scratch = tempfile::tempdir().unwrap();
    let top = Dir::open(scratch.path()).unwrap();
    umask(Mode::from_bits_truncate(0o077));

    let file = Name::try_from("file").unwrap();
    // Create, replace with a wider mode, replace with a narrower mode.
    for mode in [0o644, 0o666, 0o600] {
        top.write(&file, b"x", Mode::from_bits_truncate(mode)).unwrap();
        assert_eq!(mode_of(&scratch.path().join("file")), mode);
    }
    // An interrupted run left a temporary file.
    fs::write(scratch.path().join(".file.new"), b"half").unwrap();
    top.write(&file, b"x", Mode::from_bits_truncate(0o664)).unwrap();
    assert_eq!(mode_of(&scratch.path().join("file")), 0o664);

    top.create_dir(&Name::try_from("made").unwrap(), Mode::from_bits_truncate(0o755)).unwrap();
    assert_eq!(mode_of(&scratch.path().join("made")), 0o755);
    top.ensure_dir(&Name::try_from("made").unwrap(), Mode::from_bits_truncate(0o1777)).unwrap();
    assert_eq!(mode_of(&scratch.path().join("made")), 0o1777);
}
