//! Parser for the log of a disk's writes, in the format of dm-log-writes (drivers/md/dm-log-writes.c), which QEMU's
//! blklogwrites also writes: a header, then for each request one sector that describes the request, and the written
//! data.

use std::io::{self, Read, Seek, SeekFrom};

const MAGIC: u64 = 0x006a_7366_7773_6872;
const VERSION: u64 = 1;

/// Sizes in bytes of the fixed parts of the header and of an entry. The rest of their sectors contains zeros or the
/// text of a mark.
const HEADER: usize = 28;
const ENTRY: usize = 32;

const FLUSH: u64 = 1 << 0;
const FUA: u64 = 1 << 1;
const DISCARD: u64 = 1 << 2;
const MARK: u64 = 1 << 3;
const METADATA: u64 = 1 << 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The disk completed a flush: all entries before this one are durable.
    Flush,
    Write(Write),
    /// The content was discarded. A replay writes zeros.
    Discard(Extent),
    /// A text of the test: see `Recorder::mark` of `ktest_support::replay`.
    Mark(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub start: u64,
    pub length: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    pub extent: Extent,
    pub completion: Completion,
    pub content: Content,
    /// Offset of the data in the log, in bytes.
    pub data: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// The write may still be in the disk's cache: only a later flush makes it durable.
    Cached,
    /// The write is durable (`REQ_FUA`), even if earlier writes are not.
    Durable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Data of files, or of a program that writes to the device.
    Data,
    /// Metadata of the file system (`REQ_META`).
    Metadata,
}

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("not a log of writes: the header has magic {magic:#x} and version {version}")]
    Foreign { magic: u64, version: u64 },
    #[error("invalid log of writes: sectors of {0} bytes")]
    SectorSize(u32),
    #[error("entry {index} of {count} in the log of writes {fault}")]
    Entry { index: u64, count: u64, fault: Fault },
    #[error("cannot read the log of writes")]
    Read(#[from] io::Error),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("reaches beyond the end of the log")]
    Truncated,
    #[error("has unknown flags {0:#x}")]
    Flags(u64),
    #[error("starts at sector {sector}, beyond the end of any disk")]
    Place { sector: u64 },
    #[error("is a mark without a readable text")]
    Mark,
}

/// Reads all entries of a log, without their data. A flush that carries data becomes two entries. No input panics;
/// memory is bounded by the log's length.
pub fn parse(log: &mut (impl Read + Seek)) -> Result<Vec<Entry>, LogError> {
    let length = log.seek(SeekFrom::End(0))?;
    log.seek(SeekFrom::Start(0))?;
    let mut header = [0; HEADER];
    log.read_exact(&mut header)?;
    let (magic, version, count) = (number(&header, 0), number(&header, 8), number(&header, 16));
    if (magic, version) != (MAGIC, VERSION) {
        return Err(LogError::Foreign { magic, version });
    }
    let sector_size = u32::from_le_bytes([header[24], header[25], header[26], header[27]]);
    if !(512..=65536).contains(&sector_size) || !sector_size.is_power_of_two() {
        return Err(LogError::SectorSize(sector_size));
    }

    let mut reader = Reader { log, length, sector: u64::from(sector_size), next: u64::from(sector_size) };
    let mut entries = Vec::new();
    for index in 0..count {
        let failed = |fault| LogError::Entry { index, count, fault };
        match reader.entry(&mut entries) {
            Ok(()) => {}
            Err(EntryError::Fault(fault)) => return Err(failed(fault)),
            Err(EntryError::Read(error)) => return Err(LogError::Read(error)),
        }
    }
    Ok(entries)
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum EntryError {
    Fault(#[from] Fault),
    Read(#[from] io::Error),
}

struct Reader<'a, R> {
    log: &'a mut R,
    length: u64,
    sector: u64,
    next: u64,
}

impl<R: Read + Seek> Reader<'_, R> {
    fn entry(&mut self, entries: &mut Vec<Entry>) -> Result<(), EntryError> {
        let data = self.end_of(self.sector)?;
        self.log.seek(SeekFrom::Start(self.next))?;
        let mut fixed = [0; ENTRY];
        self.log.read_exact(&mut fixed)?;
        let (sector, sectors, flags) = (number(&fixed, 0), number(&fixed, 8), number(&fixed, 16));
        if flags & !(FLUSH | FUA | DISCARD | MARK | METADATA) != 0 {
            return Err(Fault::Flags(flags).into());
        }
        let bytes = |sectors: u64| sectors.checked_mul(self.sector).ok_or(Fault::Place { sector });
        let extent = Extent { start: bytes(sector)?, length: bytes(sectors)? };
        extent.start.checked_add(extent.length).ok_or(Fault::Place { sector })?;
        self.next = data;

        if flags & FLUSH != 0 {
            entries.push(Entry::Flush);
        }
        if flags & MARK != 0 {
            entries.push(Entry::Mark(self.mark(number(&fixed, 24))?));
        } else if extent.length == 0 {
            // The entry is only a flush.
        } else if flags & DISCARD != 0 {
            // A discard has a length, but no data in the log.
            entries.push(Entry::Discard(extent));
        } else {
            self.next = self.end_of(extent.length)?;
            let completion = if flags & FUA == 0 { Completion::Cached } else { Completion::Durable };
            let content = if flags & METADATA == 0 { Content::Data } else { Content::Metadata };
            entries.push(Entry::Write(Write { extent, completion, content, data }));
        }
        Ok(())
    }

    /// Reads the text of a mark, which follows the fixed part of its entry.
    fn mark(&mut self, length: u64) -> Result<String, EntryError> {
        if length > self.sector - ENTRY as u64 {
            return Err(Fault::Mark.into());
        }
        let mut text = Vec::new();
        self.log.by_ref().take(length).read_to_end(&mut text)?;
        String::from_utf8(text).map_err(|_| Fault::Mark.into())
    }

    /// End of the next `bytes` bytes, if the log has them.
    fn end_of(&self, bytes: u64) -> Result<u64, Fault> {
        self.next.checked_add(bytes).filter(|&end| end <= self.length).ok_or(Fault::Truncated)
    }
}

fn number(bytes: &[u8], start: usize) -> u64 {
    bytes[start..start + 8].iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// A log in the kernel's format, with the entries that a test adds.
    struct Log {
        bytes: Vec<u8>,
        sector: usize,
    }

    impl Log {
        fn new(sector: u32, count: u64) -> Self {
            let mut bytes = Vec::new();
            for number in [MAGIC, VERSION, count] {
                bytes.extend(number.to_le_bytes());
            }
            bytes.extend(sector.to_le_bytes());
            Self { bytes, sector: sector as usize }.padded()
        }

        fn entry(mut self, sector: u64, sectors: u64, flags: u64, inline: &[u8]) -> Self {
            for number in [sector, sectors, flags, inline.len() as u64] {
                self.bytes.extend(number.to_le_bytes());
            }
            self.bytes.extend(inline);
            self.padded()
        }

        fn data(mut self, byte: u8, sectors: usize) -> Self {
            self.bytes.resize(self.bytes.len() + sectors * self.sector, byte);
            self
        }

        fn padded(mut self) -> Self {
            self.bytes.resize(self.bytes.len().next_multiple_of(self.sector), 0);
            self
        }

        fn parsed(&self) -> Result<Vec<Entry>, LogError> {
            parse(&mut Cursor::new(&self.bytes))
        }

        fn fault(&self) -> (u64, Fault) {
            match self.parsed() {
                Err(LogError::Entry { index, fault, .. }) => (index, fault),
                other => panic!("no fault: {other:?}"),
            }
        }
    }

    fn write(start: u64, length: u64, completion: Completion, data: u64) -> Entry {
        Entry::Write(Write { extent: Extent { start, length }, completion, content: Content::Data, data })
    }

    #[test]
    fn the_kernels_entries_are_read() {
        let log = Log::new(512, 6)
            .entry(8, 2, 0, b"")
            .data(1, 2)
            .entry(0, 0, FLUSH, b"")
            .entry(3, 1, FUA, b"")
            .data(2, 1)
            .entry(0, 1 << 40, DISCARD, b"")
            .entry(0, 0, MARK, b"written once")
            .entry(5, 1, 0, b"")
            .data(3, 1);
        let expected = [
            write(4096, 1024, Completion::Cached, 1024),
            Entry::Flush,
            write(1536, 512, Completion::Durable, 3072),
            Entry::Discard(Extent { start: 0, length: 1 << 49 }),
            Entry::Mark("written once".into()),
            write(2560, 512, Completion::Cached, 5120),
        ];
        assert_eq!(log.parsed().unwrap(), expected);
    }

    #[test]
    fn metadata_is_distinguished_from_data() {
        let log = Log::new(512, 1).entry(8, 2, METADATA | FUA, b"").data(1, 2);
        let extent = Extent { start: 4096, length: 1024 };
        let write = Write { extent, completion: Completion::Durable, content: Content::Metadata, data: 1024 };
        assert_eq!(log.parsed().unwrap(), [Entry::Write(write)]);
    }

    #[test]
    fn a_flush_that_carries_data_comes_before_it() {
        let log = Log::new(4096, 1).entry(1, 1, FLUSH | FUA, b"").data(1, 1);
        assert_eq!(log.parsed().unwrap(), [Entry::Flush, write(4096, 4096, Completion::Durable, 8192)]);
    }

    #[test]
    fn bytes_behind_the_last_entry_are_ignored() {
        let log = Log::new(512, 1).entry(0, 0, FLUSH, b"").data(0xff, 3);
        assert_eq!(log.parsed().unwrap(), [Entry::Flush]);
    }

    #[test]
    fn bytes_that_are_not_a_log_are_rejected() {
        assert!(matches!(parse(&mut Cursor::new(vec![0; 512])), Err(LogError::Foreign { magic: 0, version: 0 })));
        assert!(matches!(parse(&mut Cursor::new(b"short")), Err(LogError::Read(_))));
        for size in [0, 256, 513, 1 << 20] {
            let mut log = Log::new(512, 0);
            log.bytes[24..28].copy_from_slice(&u32::to_le_bytes(size));
            assert!(matches!(log.parsed(), Err(LogError::SectorSize(found)) if found == size));
        }
    }

    #[test]
    fn a_fault_is_reported_with_its_entry() {
        let first = || Log::new(512, 2).entry(0, 0, FLUSH, b"");
        assert_eq!(first().fault(), (1, Fault::Truncated));
        assert_eq!(first().entry(0, 2, 0, b"").data(1, 1).fault(), (1, Fault::Truncated));
        assert_eq!(first().entry(0, 1, 1 << 7, b"").fault(), (1, Fault::Flags(1 << 7)));
        assert_eq!(first().entry(0, 0, MARK, &[0xff]).fault(), (1, Fault::Mark));
        assert_eq!(first().entry(0, 0, MARK, &[b'x'; 481]).fault(), (1, Fault::Mark));
        for sector in [u64::MAX, u64::MAX / 512] {
            assert_eq!(first().entry(sector, 1, 0, b"").data(1, 1).fault(), (1, Fault::Place { sector }));
        }
        let text = first().parsed().unwrap_err().to_string();
        assert_eq!(text, "entry 1 of 2 in the log of writes reaches beyond the end of the log");
    }
}
