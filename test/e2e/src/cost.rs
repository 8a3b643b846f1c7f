//! Counters of the guests and pods that a test starts, for the table of `//tools/image:times`.

use std::io::{self, Write as _};

/// Counts one of `boots`, `restores` or `pods`. Not by `eprintln`: a test's harness would keep that for failures.
pub fn cost(what: &str) {
    _ = writeln!(io::stderr(), "granary-cost: {what}=1");
}
