//! Counters of the guests and pods that a test starts, for the table of `//tools/image:times`.

use std::io::{self, Write as _};

/// Counts one of `boots`, `restores` or `pods`. Writes to standard error directly, because the test harness captures
/// `eprintln` and prints it only for failures.
pub fn cost(what: &str) {
    _ = writeln!(io::stderr(), "granary-cost: {what}=1");
}
