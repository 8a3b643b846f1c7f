//! The volume, device and layer that are attacked.

use core::ffi::CStr;

/// The volumes of a pod, by their paths in its container.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// A directory of the attacker in a file system volume.
    pub volume: &'a CStr,
    pub limit: u64,
    pub device: &'a CStr,
    pub layer: &'a CStr,
}
