//! Parts of the runner that the suites of whole nodes use too.
#![forbid(unsafe_code)]

pub mod guests;
pub mod report;
