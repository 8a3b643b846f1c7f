//! Critical warnings of NVMe disks.

use std::fmt;
use std::os::fd::AsFd;

use nix::errno::Errno;

use crate::sys;

/// The critical warnings in the SMART log of an NVMe controller: NVM Express Base Specification 2.0, figure 207,
/// byte 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmartWarnings(u8);

/// Meaning of each bit, the lowest first.
const MEANINGS: [&str; 6] = [
    "its spare space is low",
    "its temperature is outside of the limits",
    "it is unreliable after many errors",
    "it is read-only",
    "its backup of volatile memory failed",
    "its persistent memory is read-only or unreliable",
];

impl SmartWarnings {
    /// Reads the warnings of an open disk such as `/dev/nvme0n1`. Needs `CAP_SYS_ADMIN`.
    ///
    /// # Errors
    /// `ENOTTY`: the disk is not an NVMe disk. `EIO`: the controller rejected the command.
    ///
    /// `NVME_IOCTL_ADMIN_CMD`, Linux 3.3.
    pub fn read(disk: impl AsFd) -> Result<Self, Errno> {
        let [warnings, ..] = sys::smart_log(disk.as_fd())?;
        Ok(Self(warnings))
    }

    pub const fn count(self) -> u32 {
        self.0.count_ones()
    }
}

impl fmt::Display for SmartWarnings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let meaning = |bit: u32| MEANINGS.get(bit as usize).copied().unwrap_or("it has another critical warning");
        let set = (0..u8::BITS).filter(|bit| self.0 >> bit & 1 == 1).map(meaning);
        f.write_str(&set.collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_warning_has_a_text() {
        assert_eq!((SmartWarnings(0).count(), SmartWarnings(0).to_string()), (0, String::new()));
        assert_eq!(SmartWarnings(0b1001).to_string(), "its spare space is low, it is read-only");
        assert_eq!(SmartWarnings(0x80).to_string(), "it has another critical warning");
        assert_eq!(SmartWarnings(0xff).count(), 8);
    }
}
