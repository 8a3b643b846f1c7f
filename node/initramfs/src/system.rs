//! Which block device holds the system image.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A file system's UUID, in the form `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Uuid([u8; 16]);

/// A text that is no UUID.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no UUID of the form xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx")]
pub struct BadUuid(String);

impl FromStr for Uuid {
    type Err = BadUuid;

    fn from_str(text: &str) -> Result<Self, BadUuid> {
        let bad = || BadUuid(text.to_owned());
        let groups: Vec<usize> = text.split('-').map(str::len).collect();
        if groups != [8, 4, 4, 4, 12] {
            return Err(bad());
        }
        let digits: Vec<u32> =
            text.chars().filter(|c| *c != '-').map(|c| c.to_digit(16)).collect::<Option<_>>().ok_or_else(bad)?;
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = u8::try_from(pair[0] * 16 + pair[1]).map_err(|_| bad())?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Bytes from the start of a device that [`erofs_uuid`] needs.
pub const HEAD: usize = 1024 + 128;

/// The UUID in an EROFS superblock (`struct erofs_super_block`, fs/erofs/erofs_fs.h: at byte 1024,
/// magic first, UUID after 48 bytes).
pub fn erofs_uuid(head: &[u8]) -> Option<Uuid> {
    const MAGIC: [u8; 4] = 0xE0F5_E1E2_u32.to_le_bytes();
    let superblock = head.get(1024..)?;
    if superblock.get(..4)? != MAGIC {
        return None;
    }
    superblock.get(48..64)?.try_into().ok().map(Uuid)
}

/// A block device and what it seems to hold.
#[derive(Debug)]
pub struct Seen {
    /// Its node below `/dev`.
    pub device: PathBuf,
    /// The UUID of the EROFS on it, or why there is none to be read.
    pub uuid: Result<Option<Uuid>, io::Error>,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.device.display();
        match &self.uuid {
            Ok(Some(uuid)) => write!(f, "{device}: system image {uuid}"),
            Ok(None) => write!(f, "{device}: no system image"),
            Err(error) => write!(f, "{device}: {error}"),
        }
    }
}

/// Every block device that there is now.
///
/// # Errors
/// `/sys/class/block` cannot be read.
pub fn look() -> io::Result<Vec<Seen>> {
    let mut all = Vec::new();
    for entry in fs::read_dir("/sys/class/block")? {
        let device = Path::new("/dev").join(entry?.file_name());
        let uuid = read_uuid(&device);
        all.push(Seen { device, uuid });
    }
    all.sort_by(|a, b| a.device.cmp(&b.device));
    Ok(all)
}

fn read_uuid(device: &Path) -> io::Result<Option<Uuid>> {
    let mut head = [0; HEAD];
    match File::open(device)?.read_exact_at(&mut head, 0) {
        Ok(()) => Ok(erofs_uuid(&head)),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "00112233-4455-6677-8899-aabbccddeeff";

    #[test]
    fn a_uuid_is_shown_as_it_was_read() {
        assert_eq!(TEXT.parse::<Uuid>().unwrap().to_string(), TEXT);
    }

    #[test]
    fn other_texts_are_no_uuid() {
        for text in [
            "",
            "0",
            "00112233445566778899aabbccddeeff",
            "g0112233-4455-6677-8899-aabbccddeeff",
            "é0112233-4455-6677-8899-aabbccddeef",
        ] {
            assert_eq!(text.parse::<Uuid>(), Err(BadUuid(text.to_owned())));
        }
    }

    #[test]
    fn the_superblock_names_the_image() {
        let mut head = vec![0; HEAD];
        assert_eq!(erofs_uuid(&head), None);
        head[1024..1028].copy_from_slice(&[0xE2, 0xE1, 0xF5, 0xE0]);
        head[1072..1088].copy_from_slice(&TEXT.parse::<Uuid>().unwrap().0);
        assert_eq!(erofs_uuid(&head), Some(TEXT.parse().unwrap()));
        assert_eq!(erofs_uuid(&head[..1080]), None);
    }
}
