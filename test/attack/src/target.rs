//! What the attacks are run against.

use core::ffi::CStr;

/// The volumes of a pod, by their paths in its container.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// A directory of the attacker in a file system volume.
    pub volume: &'a CStr,
    /// The size of that volume in bytes.
    pub limit: u64,
    /// The node of a block volume.
    pub device: &'a CStr,
    /// A directory of the container's writable layer.
    pub layer: &'a CStr,
}
