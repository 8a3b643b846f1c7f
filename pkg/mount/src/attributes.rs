use nix::libc;
use nix::sys::statvfs::FsFlags;

/// Restrictions of a mount. Any combination is valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attributes {
    /// Writes through this mount fail (`ro`).
    pub read_only: bool,
    /// Set-user-ID, set-group-ID and file capabilities are ignored (`nosuid`).
    pub no_suid: bool,
    /// Device nodes cannot be opened (`nodev`).
    pub no_dev: bool,
    /// Programs cannot be executed (`noexec`).
    pub no_exec: bool,
}

impl Attributes {
    /// Writable with `nosuid,nodev,noexec`.
    pub const INERT: Self = Self { read_only: false, no_suid: true, no_dev: true, no_exec: true };

    /// `MOUNT_ATTR_*` bits to set and to clear, which together set exactly these attributes.
    pub(crate) const fn bits(self) -> (u64, u64) {
        let all = [
            (self.read_only, libc::MOUNT_ATTR_RDONLY),
            (self.no_suid, libc::MOUNT_ATTR_NOSUID),
            (self.no_dev, libc::MOUNT_ATTR_NODEV),
            (self.no_exec, libc::MOUNT_ATTR_NOEXEC),
        ];
        let (mut set, mut clear, mut next) = (0, 0, 0);
        while next < all.len() {
            let (wanted, bit) = all[next];
            if wanted {
                set |= bit;
            } else {
                clear |= bit;
            }
            next += 1;
        }
        (set, clear)
    }

    pub(crate) fn of(flags: FsFlags) -> Self {
        Self {
            read_only: flags.contains(FsFlags::ST_RDONLY),
            no_suid: flags.contains(FsFlags::ST_NOSUID),
            no_dev: flags.contains(FsFlags::ST_NODEV),
            no_exec: flags.contains(FsFlags::ST_NOEXEC),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attribute_is_either_set_or_cleared() {
        let every =
            libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC;
        for chosen in 0_u8..16 {
            let [read_only, no_suid, no_dev, no_exec] = [1, 2, 4, 8].map(|bit| chosen & bit != 0);
            let (set, clear) = Attributes { read_only, no_suid, no_dev, no_exec }.bits();
            assert_eq!((set | clear, set & clear), (every, 0), "{chosen:#06b}");
            assert_eq!(set.count_ones(), chosen.count_ones(), "{chosen:#06b}");
        }
    }
}
