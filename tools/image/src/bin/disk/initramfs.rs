//! Adds a file to an initramfs by appending an archive; the kernel unpacks consecutive archives
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

/// Alignment of archives, names and contents.
const ALIGNMENT: usize = 4;

/// Regular file, mode 0444.
const MODE: usize = 0o100_444;

/// Appends a cpio archive (format "newc") with one file in the root directory, without time or owner.
pub(crate) fn with_file(mut archives: Vec<u8>, name: &str, content: &str) -> Vec<u8> {
    pad(&mut archives);
    entry(&mut archives, name, MODE, content.as_bytes());
    entry(&mut archives, "TRAILER!!!", 0, b"");
    archives
}

fn entry(archives: &mut Vec<u8>, name: &str, mode: usize, content: &[u8]) {
    // Inode, mode, user, group, links, time, size, device (2), device of a node (2), length of the name with NUL,
    // checksum.
    let fields = [0, mode, 0, 0, 1, 0, content.len(), 0, 0, 0, 0, name.len() + 1, 0];
    archives.extend(b"070701");
    archives.extend(fields.iter().flat_map(|field| format!("{field:08x}").into_bytes()));
    archives.extend(name.bytes().chain([0]));
    pad(archives);
    archives.extend(content);
    pad(archives);
}

fn pad(archives: &mut Vec<u8>) {
    archives.resize(archives.len().next_multiple_of(ALIGNMENT), 0);
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn cpio_unpacks_the_file() {
        let archive = with_file(Vec::new(), "system-partition", "id:1:digest\n");
        let mut cpio = Command::new("cpio")
            .args(["--extract", "--to-stdout", "--quiet", "system-partition"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        cpio.stdin.take().unwrap().write_all(&archive).unwrap();
        let read = cpio.wait_with_output().unwrap();
        assert!(read.status.success());
        assert_eq!(String::from_utf8(read.stdout).unwrap(), "id:1:digest\n");
    }

    #[test]
    fn the_archive_is_aligned() {
        for before in 0..=5 {
            let archives = with_file(vec![b'x'; before], "a", "content");
            let at = before.next_multiple_of(4);
            assert_eq!(&archives[at..at + 6], b"070701");
            assert_eq!(archives.len() % 4, 0);
        }
    }
}
