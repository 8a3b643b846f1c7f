//! Release and age of the running kernel.

use std::time::Duration;

use nix::errno::Errno;
use nix::sys::utsname::uname;
use time::format_description::well_known::Iso8601;
use time::{Date, UtcDateTime};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    pub release: String,
    pub version: String,
}

impl Kernel {
    pub fn running() -> Result<Self, Errno> {
        let name = uname()?;
        let text = |text: &std::ffi::OsStr| text.to_string_lossy().into_owned();
        Ok(Self { release: text(name.release()), version: text(name.version()) })
    }

    /// Build date. Debian's kernels have it in their version: `… Debian 6.12.95-1~bpo12+1 (2026-07-05)`.
    pub fn built(&self) -> Option<UtcDateTime> {
        let (_, rest) = self.version.rsplit_once('(')?;
        let (date, _) = rest.split_once(')')?;
        Some(Date::parse(date, &Iso8601::DATE).ok()?.midnight().as_utc())
    }

    /// Age of the kernel; `now` is the time since 1970. `None` if the build date is unknown or later than `now`.
    pub fn age(&self, now: Duration) -> Option<Duration> {
        now.checked_sub(Duration::from_secs(self.built()?.unix_timestamp().try_into().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kernel(version: &str) -> Kernel {
        Kernel { release: "6.12.95".to_owned(), version: version.to_owned() }
    }

    #[test]
    fn debians_version_has_the_build_date() {
        let kernel = kernel("#1 SMP PREEMPT_DYNAMIC Debian 6.12.95-1~bpo12+1 (2026-07-05)");
        assert_eq!(kernel.built().unwrap().unix_timestamp(), 1_783_209_600);
        assert_eq!(kernel.age(Duration::from_secs(1_783_209_660)), Some(Duration::from_mins(1)));
        assert_eq!(kernel.age(Duration::from_secs(5)), None);
    }

    #[test]
    fn another_kernels_version_may_not() {
        for version in ["", "#1 SMP Sun Nov 22 06:07:46 UTC 2026", "(2026-13-05)", "(today)", "(2026-07-05"] {
            assert_eq!(kernel(version).built(), None, "{version}");
        }
    }

    #[test]
    fn a_kernel_runs() {
        assert_ne!(Kernel::running().unwrap().release, "");
    }

    proptest! {
        #[test]
        fn no_version_makes_it_panic(version in ".{0,40}", seconds in any::<u64>()) {
            let _ = kernel(&format!("({version})")).age(Duration::from_secs(seconds));
        }
    }
}
