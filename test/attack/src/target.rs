//! The volume, device, layer and module that attacks use.

use core::ffi::CStr;

/// The volumes of a pod, by their paths in its container.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// A directory of the attacker in a file system volume.
    pub volume: &'a CStr,
    pub limit: u64,
    pub device: &'a CStr,
    pub layer: &'a CStr,
    /// A kernel module without a signature, [`MODULE`](crate::MODULE).
    pub module: &'a CStr,
}
