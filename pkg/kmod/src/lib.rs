//! Loads kernel modules from a flat directory, in a fixed order.
//!
//! The build resolves dependencies and decompresses the modules, so that neither `modprobe` nor `modules.dep` is
//! needed. A module directory contains uncompressed `.ko` files and a text file [`ORDER`] with one file name per line,
//! followed by the module's parameters; each module comes after its dependencies. Several directories may list the same
//! module. A [`Catalog`] loads modules of a directory by name.
//!
//! ```no_run
//! let report = kmod::load("/usr/lib/modules")?;
//! for absent in &report.without_hardware {
//!     println!("no hardware for {absent}");
//! }
//! # Ok::<(), kmod::LoadError>(())
//! ```
//!
//! Needs `CAP_SYS_MODULE` and Linux 3.8 (`finit_module`).
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod catalog;
mod load;
mod order;

pub use catalog::{CATALOG, Catalog, ModuleName, NameError};
pub use load::{LoadError, Report, load};
pub use order::{FileName, LineError, Module, ORDER, OrderError, parse};
