//! Parses and validates the configuration of a node, the JSON form of `proto/node/v1/config.proto`.
//!
//! [`Config::parse`] returns either a valid configuration or all problems, each with its field and the remedy, because
//! an operator sees the result of a change only after the next boot.
//!
//! ```
//! use config::Config;
//!
//! let config = Config::parse(r#"{"nodeName": "granary-1", "storage": {"keepFree": "10GiB"}}"#)?;
//! assert_eq!(config.node.as_str(), "granary-1");
//!
//! let error = Config::parse(r#"{"nodename": "granary-1", "network": {"mtu": 15}}"#).unwrap_err().to_string();
//! assert!(error.contains("\n  nodename: unknown field; known fields: nodeName, controlPlane, worker, network"));
//! assert!(error.contains("\n  network.mtu: 15 is out of range; choose a value from 576 to 65535"));
//! # Ok::<(), config::ParseError>(())
//! ```
#![forbid(unsafe_code)]

mod config;
mod images;
mod json;
mod message;
mod name;
mod problem;
mod role;

pub use config::{Config, Disk, FailureAction, Storage};
pub use name::{NameError, NodeName};
pub use problem::{ParseError, Problem, Violation};
pub use role::{Networks, Role, Worker};
