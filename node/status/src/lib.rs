//! Status of a node over HTTP, for administrators, monitoring systems and probes.
//!
//! | path | content |
//! |---|---|
//! | `/statusz` | HTML page; requires neither JavaScript nor other resources |
//! | `/statusz.json`, `/statusz?format=json` | the same data as JSON |
//! | `/metrics` | metrics in Prometheus' text format |
//! | `/readyz` | 200 if all services are ready, otherwise 503 with a list of the others |
//! | `/healthz` | 200 while the process answers |
//! | [`PublicFile::path`] | a certificate that the node publishes |
//!
//! [`Page`] contains the data. Pure functions render it ([`Page::html`], [`Page::json`]), and [`serve`] answers
//! requests with the data of a [`Source`], which the node's program implements. [`Recent`] stores the last warnings of
//! the log.
//!
//! The server is read-only and answers only clients on the node itself ([`Audience`]), because a page contains the
//! claims of all tenants. All clients can read published certificates.
#![forbid(unsafe_code)]

mod format;
mod mesh;
mod metrics;
mod model;
mod page;
mod recent;
#[cfg(test)]
mod sample;
mod seconds;
mod server;

pub use mesh::{Mesh, Peer};
pub use metrics::metrics;
pub use model::{
    ALMOST_FULL, Certificate, Clock, Closed, Condition, Disk, Inodes, Kernel, Life, Mode, Orphans, Page, Service,
    Storage, Versions, Volume, not_ready, services,
};
pub use recent::{Recent, Severity, Warning};
pub use server::{Audience, PublicFile, Source, serve};
