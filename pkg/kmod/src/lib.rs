//! Loads kernel modules from a flat directory, in a fixed order.
//!
//! The build resolves dependencies and unpacks the modules, so that loading needs neither `modprobe`
//! nor `modules.dep`. A module directory holds uncompressed `.ko` files and a text file [`ORDER`]: one
//! file name a line, with the module's parameters, each module after everything that it depends on. A part of the modules is a
//! directory of its own; parts may overlap, since a module that is there already is no fault. A [`Catalog`] loads
//! modules of a directory by name, each with what it depends on.
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
pub use order::{FileName, Module, ORDER, OrderError, Problem, parse};
