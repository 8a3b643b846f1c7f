use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use crate::error::TableError;

/// A mount of the namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Mount ID, as in [`crate::Place::mount`].
    pub mount: u64,
    /// Major and minor number of the file system.
    pub device: (u32, u32),
    /// The mounted directory or file within the file system; `/` for its root.
    pub root: PathBuf,
    /// Mount point relative to the root directory of this process. Another mount may hide it.
    pub point: PathBuf,
    /// Peer group (`MS_SHARED`), whose members propagate mounts to each other; `None` if the mount is not shared.
    pub peers: Option<u64>,
}

/// All mounts that this process can reach, in mount order: `/proc/thread-self/mountinfo`, proc_pid_mountinfo(5).
/// O(mounts); use [`crate::at`] for a single path. [`TableError::Read`] without `/proc`.
pub fn table() -> Result<Vec<Entry>, TableError> {
    parse_table(&std::fs::read("/proc/thread-self/mountinfo").map_err(TableError::Read)?)
}

/// Parses a mount table, for example of another process (`/proc/PID/mountinfo`). [`TableError::Malformed`] names the
/// first invalid line.
pub fn parse_table(text: &[u8]) -> Result<Vec<Entry>, TableError> {
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.enumerate().map(|(index, line)| entry(line).ok_or(TableError::Malformed { line: index + 1 })).collect()
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn entry(line: &[u8]) -> Option<Entry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let mount = number(fields.next()?)?;
    let (major, minor) = std::str::from_utf8(fields.nth(1)?).ok()?.split_once(':')?;
    let device = (number(major.as_bytes())?, number(minor.as_bytes())?);
    let (root, point) = (unescape(fields.next()?), unescape(fields.next()?));
    fields.next()?; // without this field, the line and its last path may be truncated
    let peers = fields.take_while(|field| *field != b"-").find_map(|field| number(field.strip_prefix(b"shared:")?));
    Some(Entry { mount, device, root, point, peers })
}

/// Parses digits; `FromStr` of the standard library also accepts a sign.
fn number<N: std::str::FromStr>(field: &[u8]) -> Option<N> {
    std::str::from_utf8(field).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?.parse().ok()
}

/// The kernel escapes space, tab, line feed and backslash as `\` and three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let code = after.first_chunk::<3>().filter(|_| *first == b'\\').and_then(octal);
        out.push(code.unwrap_or(*first));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    OsString::from_vec(out).into()
}

fn octal(digits: &[u8; 3]) -> Option<u8> {
    digits.iter().try_fold(0_u8, |code, digit| match digit {
        b'0'..=b'7' => code.checked_mul(8)?.checked_add(digit - b'0'),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    const LINE: &[u8] = b"36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n";

    #[test]
    fn the_example_of_the_manual_is_parsed() {
        let found = parse_table(LINE).expect("a table");
        assert_eq!(
            found,
            [Entry {
                mount: 36,
                device: (98, 0),
                root: "/mnt1".into(),
                point: Path::new("/mnt 2").into(),
                peers: None
            }]
        );
    }

    #[test]
    fn the_peer_group_of_a_shared_mount_is_parsed() {
        let peers = |fields: &str| {
            let text = format!("36 35 98:0 / /mnt rw {fields}- ext3 shared:9 rw\n");
            parse_table(text.as_bytes()).expect("a table")[0].peers
        };
        assert_eq!(peers("shared:7 "), Some(7));
        assert_eq!(peers("master:2 shared:7 "), Some(7));
        assert_eq!(peers("master:1 propagate_from:2 "), None);
        assert_eq!(peers(""), None);
    }

    #[test]
    fn a_truncated_line_is_reported() {
        for cut in [&b"37 35 98:0 /"[..], b"37 35 98:0 / /data/vol"] {
            let text = [LINE, cut].concat();
            assert!(matches!(parse_table(&text), Err(TableError::Malformed { line: 2 })));
        }
    }

    #[test]
    fn numbers_consist_of_digits_only() {
        for wrong in
            ["+1 2 3:4 / / rw\n", "1 2 3:-4 / / rw\n", "1 2 3:4:5 / / rw\n", " 2 3:4 / / rw\n", "1 2 34 / / rw\n"]
        {
            assert!(matches!(parse_table(wrong.as_bytes()), Err(TableError::Malformed { line: 1 })), "{wrong:?}");
        }
    }

    #[test]
    fn escapes_have_exactly_three_octal_digits() {
        for (field, expected) in [
            (&br"/a\040b"[..], &b"/a b"[..]),
            (br"/\+12", br"/\+12"),
            (br"/\777", br"/\777"),
            (br"/\12", br"/\12"),
            (br"/\134040", br"/\040"),
        ] {
            assert_eq!(unescape(field).as_os_str().as_bytes(), expected);
        }
    }

    #[test]
    fn the_last_root_of_the_table_is_the_current_root() {
        let root = crate::at(std::fs::File::open("/").expect("open /")).expect("look at /");
        let table = table().expect("a table");
        let found = table.iter().find(|entry| entry.mount == root.mount).expect("the root's mount");
        assert_eq!((found.point.as_path(), found.device), (Path::new("/"), root.identity.device));
    }

    /// Escapes like `mangle` of the kernel.
    fn escape(path: &[u8]) -> Vec<u8> {
        path.iter()
            .flat_map(|byte| match byte {
                b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
                other => vec![*other],
            })
            .collect()
    }

    proptest! {
        #[test]
        fn parsing_reverses_escaping(path in proptest::collection::vec(1_u8.., 1..40)) {
            let text = [b"1 2 3:4 / ", escape(&path).as_slice(), b" rw - xfs none rw\n"].concat();
            let found = parse_table(&text).expect("a table");
            prop_assert_eq!(found[0].point.as_os_str().as_bytes(), path.as_slice());
        }
    }
}
