//! What a node tells of itself over HTTP: to a person, to a monitoring system, to a probe.
//!
//! | path | what |
//! |---|---|
//! | `/statusz` | a page for a person; needs neither JavaScript nor anything from elsewhere |
//! | `/statusz.json`, `/statusz?format=json` | the same facts |
//! | `/metrics` | Prometheus' text format |
//! | `/readyz` | 200 when every service does its work, else 503 and the list of those that do not |
//! | `/healthz` | 200: the process answers |
//!
//! [`Page`] is what is told, as plain data. It is rendered by pure functions ([`Page::html`], [`Page::json`]), and
//! [`serve`] answers requests from a [`Source`], which only the node's program can be. [`Recent`] keeps the last
//! warnings of the log.
//!
//! The feature `sample` has pages of nodes that are made up.
//!
//! It only reads, and a node refuses to be asked by anybody who is not on it ([`Audience`]): a page names the claims of
//! all tenants.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod format;
mod html;
mod mesh;
mod model;
mod page;
mod recent;
#[cfg(any(test, feature = "sample"))]
pub mod sample;
mod server;

pub use mesh::{Mesh, Peer};
pub use model::{
    Certificate, Clock, Closed, Condition, Disk, Inodes, Kernel, Life, Mode, Orphans, Page, Service, Storage, Versions,
    Volume, not_ready, services,
};
pub use recent::{Recent, Severity, Warning};
pub use server::{Audience, Source, serve};
