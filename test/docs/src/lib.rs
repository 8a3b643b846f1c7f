//! Compares the project's documents with its sources: links with files and headings, metrics of alerts and dashboards
//! with docs/metrics.md, the tests in docs/operations/security.md with the sources, and all texts with the list in
//! `words.yaml`. Unit tests of other crates compare their tables.
#![forbid(unsafe_code)]

mod alerts;
mod claims;
mod dashboard;
mod expression;
mod metrics;
mod page;
mod tables;
mod words;

pub use alerts::{Alert, alerts};
pub use claims::{Case, Claims};
pub use dashboard::expressions;
pub use expression::{Metric, Unbalanced, metrics_of};
pub use metrics::Described;
pub use page::{Example, Page};
pub use tables::{assert_counted_from_the_start, assert_described, assert_table};
pub use words::{ListError, Match, Words};
