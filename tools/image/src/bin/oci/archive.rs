//! Reproducible tar archives.

use std::io::{self, Write};
use tar::{EntryType, Header};

pub(crate) struct Archive<W: Write>(tar::Builder<W>);

impl<W: Write> Archive<W> {
    pub(crate) fn new(output: W) -> Self {
        Self(tar::Builder::new(output))
    }

    pub(crate) fn directory(&mut self, path: &str) -> io::Result<()> {
        self.entry(EntryType::Directory, path, 0o755, &[])
    }

    pub(crate) fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.entry(EntryType::Regular, path, mode, content)
    }

    pub(crate) fn finish(self) -> io::Result<W> {
        self.0.into_inner()
    }

    fn entry(&mut self, kind: EntryType, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(content.len() as u64);
        self.0.append_data(&mut header, path, content)
    }
}
