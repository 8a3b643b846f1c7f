//! Modes are what was asked for, whatever the umask. It is the whole process's: one test, alone in its program.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use dir::{Dir, Mode, Name};
use nix::sys::stat::umask;

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn files_and_directories_have_exactly_their_mode_under_a_strict_umask() {
    let scratch = tempfile::tempdir().unwrap();
    let top = Dir::open(scratch.path()).unwrap();
    umask(Mode::from_bits_truncate(0o077));

    let file = Name::try_from("file").unwrap();
    // Made, replaced by an open one, replaced by a closed one.
    for mode in [0o644, 0o666, 0o600] {
        top.write(&file, b"x", Mode::from_bits_truncate(mode)).unwrap();
        assert_eq!(mode_of(&scratch.path().join("file")), mode);
    }
    // After a run that was cut.
    fs::write(scratch.path().join(".file.new"), b"half").unwrap();
    top.write(&file, b"x", Mode::from_bits_truncate(0o664)).unwrap();
    assert_eq!(mode_of(&scratch.path().join("file")), 0o664);

    top.create_dir(&Name::try_from("made").unwrap(), Mode::from_bits_truncate(0o755)).unwrap();
    assert_eq!(mode_of(&scratch.path().join("made")), 0o755);
    top.ensure_dir(&Name::try_from("made").unwrap(), Mode::from_bits_truncate(0o1777)).unwrap();
    assert_eq!(mode_of(&scratch.path().join("made")), 0o1777);
}
