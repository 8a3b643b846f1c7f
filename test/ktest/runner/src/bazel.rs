//! Bazel's settings for a test, from the environment.

use std::env;
use std::path::PathBuf;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(300);

#[derive(Debug, Default)]
pub(crate) struct Bazel {
    pub(crate) xml: Option<PathBuf>,
    pub(crate) scratch: Option<PathBuf>,
    pub(crate) outputs: Option<PathBuf>,
    filter: Option<String>,
    timeout: Option<Duration>,
}

impl Bazel {
    pub(crate) fn from_environment() -> Self {
        Self {
            xml: env::var_os("XML_OUTPUT_FILE").map(PathBuf::from),
            scratch: env::var_os("TEST_TMPDIR").map(PathBuf::from),
            outputs: env::var_os("TEST_UNDECLARED_OUTPUTS_DIR").map(PathBuf::from),
            filter: env::var("TESTBRIDGE_TEST_ONLY").ok().filter(|filter| !filter.is_empty()),
            timeout: env::var("TEST_TIMEOUT").ok().and_then(|text| text.parse().ok()).map(Duration::from_secs),
        }
    }

    /// The test program's arguments: the command line (`--test_arg`), then the filter (`--test_filter`), which may be
    /// several names.
    pub(crate) fn arguments(&self, given: impl Iterator<Item = String>) -> Vec<String> {
        let filters = self.filter.iter().flat_map(|filter| filter.split_whitespace().map(str::to_owned));
        given.chain(filters).collect()
    }

    /// Time limit of the guest. Bazel kills the test later, after [`Self::margin`].
    pub(crate) fn limit(&self) -> Duration {
        let timeout = self.timeout.unwrap_or(TIMEOUT);
        timeout.saturating_sub(self.margin()).max(timeout / 2)
    }

    pub(crate) fn margin(&self) -> Duration {
        let timeout = self.timeout.unwrap_or(TIMEOUT);
        (timeout / 10).clamp(Duration::from_secs(5), Duration::from_secs(20)).min(timeout / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guest_ends_before_bazel_loses_patience() {
        for (timeout, limit) in [(4, 2), (20, 15), (60, 54), (300, 280), (3600, 3580)] {
            let bazel = Bazel { timeout: Some(Duration::from_secs(timeout)), ..Bazel::default() };
            assert_eq!(bazel.limit(), Duration::from_secs(limit), "of {timeout} s");
            assert!(bazel.limit() + bazel.margin() <= Duration::from_secs(timeout));
        }
    }
}
