//! Memory of another process.

use std::fs;
use std::io;

/// Proportional share of memory (PSS) of a process, in bytes.
pub fn memory(process: u32) -> io::Result<u64> {
    let path = format!("/proc/{process}/smaps_rollup");
    let pss = kernel::text::size(&fs::read_to_string(&path)?, "Pss:");
    Ok(pss.ok_or_else(|| io::Error::other(format!("{path} has no Pss")))?.get())
}
