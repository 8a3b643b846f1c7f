use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use crate::error::TableError;

/// One mount of this namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The mount's number, see [`crate::Place::mount`].
    pub mount: u64,
    /// Major and minor number of the file system.
    pub device: (u32, u32),
    /// What of the file system is mounted: `/` or a directory of it.
    pub root: PathBuf,
    /// Where it is mounted, seen from this process' root. Another mount may hide it.
    pub point: PathBuf,
}

/// Every mount that this process can reach, in mount order. Grows with the number of mounts: ask [`crate::at`] where
/// one place is the question.
///
/// # Errors
/// [`TableError::Read`] without `/proc`.
///
/// `/proc/thread-self/mountinfo`, proc_pid_mountinfo(5).
pub fn table() -> Result<Vec<Entry>, TableError> {
    parse(&std::fs::read("/proc/thread-self/mountinfo").map_err(TableError::Read)?)
}

fn parse(text: &[u8]) -> Result<Vec<Entry>, TableError> {
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.enumerate().map(|(index, line)| entry(line).ok_or(TableError::Malformed { line: index + 1 })).collect()
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn entry(line: &[u8]) -> Option<Entry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let mount = number(fields.next()?)?;
    let mut numbers = fields.nth(1)?.split(|byte| *byte == b':');
    let device = (number(numbers.next()?)?, number(numbers.next()?)?);
    Some(Entry { mount, device, root: unescape(fields.next()?), point: unescape(fields.next()?) })
}

fn number<N: std::str::FromStr>(field: &[u8]) -> Option<N> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// The kernel writes space, tab, line feed and backslash as `\` and three octal digits.
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
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    const LINE: &[u8] = b"36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n";

    #[test]
    fn a_line_of_the_manual_is_read() {
        let found = parse(LINE).expect("a table");
        assert_eq!(
            found,
            [Entry { mount: 36, device: (98, 0), root: "/mnt1".into(), point: Path::new("/mnt 2").into() }]
        );
    }

    #[test]
    fn a_cut_line_is_named() {
        let text = [LINE, b"37 35 98:0 /"].concat();
        assert!(matches!(parse(&text), Err(TableError::Malformed { line: 2 })));
    }

    #[test]
    fn the_tables_last_root_is_where_we_are() {
        let root = crate::at(std::fs::File::open("/").expect("open /")).expect("look at /");
        let table = table().expect("a table");
        let found = table.iter().find(|entry| entry.mount == root.mount).expect("the root's mount");
        assert_eq!((found.point.as_path(), found.device), (Path::new("/"), root.identity.device));
    }

    /// As the kernel's `mangle` writes it.
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
        fn every_path_is_read_back(path in proptest::collection::vec(1_u8.., 1..40)) {
            let text = [b"1 2 3:4 / ", escape(&path).as_slice(), b" rw - xfs none rw\n"].concat();
            let found = parse(&text).expect("a table");
            prop_assert_eq!(found[0].point.as_os_str().as_bytes(), path.as_slice());
        }

        #[test]
        fn no_text_panics(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&text);
        }
    }
}
