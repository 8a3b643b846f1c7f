//! A mapping of a device, through which a tenant reads and writes.

use std::ffi::c_void;
use std::fs::File;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, MmapAdvise, MsFlags, ProtFlags, madvise, mmap, msync};

/// Mapping of the start of a file. It stays until the process ends.
pub struct Mapping {
    address: NonNull<c_void>,
    length: usize,
}

impl Mapping {
    pub fn of(file: &File, length: NonZeroUsize) -> Self {
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: new memory, at an address that the kernel chooses. It is never unmapped.
        let address = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, file, 0) }.expect("a mapping");
        Self { address, length: length.get() }
    }

    /// Without read-ahead: an access to a page reads nothing behind it.
    pub fn without_read_ahead(self) -> Self {
        // SAFETY: the whole mapping, which exists. The call changes no memory.
        unsafe { madvise(self.address, self.length, MmapAdvise::MADV_RANDOM) }.expect("advise");
        self
    }

    /// Copies a part, which is a number of whole pages, to the buffer. The kernel reads it from the disk at once: a request
    /// for each page would need 16 times as many requests in a second, which a busy machine does not finish.
    pub fn read(&self, offset: usize, buffer: &mut [u8]) {
        assert!(offset.checked_add(buffer.len()).is_some_and(|end| end <= self.length));
        let (to, length) = (buffer.as_mut_ptr(), buffer.len());
        // SAFETY: the part is inside of the mapping. The call changes no memory.
        unsafe { madvise(self.address.byte_add(offset), length, MmapAdvise::MADV_WILLNEED) }.expect("advise");
        // SAFETY: the part is inside of the mapping, which is readable. The buffer is other memory: no reference to the
        // mapping exists.
        unsafe { self.address.cast::<u8>().as_ptr().add(offset).copy_to_nonoverlapping(to, length) };
    }

    /// Writes a part, and waits until it is on the disk.
    pub fn write(&mut self, offset: usize, length: usize, value: u8) {
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.length));
        // SAFETY: the part is inside of the mapping, which is writable. No reference to the mapping exists.
        unsafe { self.address.cast::<u8>().add(offset).write_bytes(value, length) };
        // SAFETY: the whole mapping, which exists. The call reads it.
        unsafe { msync(self.address, self.length, MsFlags::MS_SYNC) }.expect("sync the mapping");
    }
}
