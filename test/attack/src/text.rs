//! Formatted text without an allocator.

use core::ffi::CStr;
use core::fmt;

/// Line or file name in a buffer of fixed size. The last byte is always 0.
#[derive(Debug)]
pub(crate) struct Text<const SIZE: usize> {
    bytes: [u8; SIZE],
    length: usize,
}

impl<const SIZE: usize> Text<SIZE> {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; SIZE], length: 0 }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    pub(crate) fn as_str(&self) -> &str {
        core::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    pub(crate) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

impl<const SIZE: usize> fmt::Write for Text<SIZE> {
    /// Fails, and writes nothing, if the text does not fit.
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        if end >= SIZE {
            return Err(fmt::Error);
        }
        self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}
