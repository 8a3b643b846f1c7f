//! The volume, device, layer and module that attacks use.

use core::ffi::CStr;

/// Paths of a pod's volumes in its container.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// Directory of the attacker in a filesystem volume.
    pub volume: &'a CStr,
    pub limit: u64,
    pub device: &'a CStr,
    pub layer: &'a CStr,
    /// Kernel module without a signature, [`MODULE`](crate::MODULE).
    pub module: &'a CStr,
}
