//! Loads kernel modules from a flat directory, in a fixed order.
//!
//! The build resolves dependencies, so that neither `modprobe` nor `modules.dep` is needed. A module directory contains
//! `.ko` and `.ko.xz` files, which the kernel decompresses, and a text file [`ORDER`] with one file name per line,
//! followed by the module's parameters; each module comes after its dependencies. Several directories may list the same
//! module. A [`Catalog`] loads modules of a directory by name. [`Drivers`] loads those of a directory that are drivers
//! of the machine's devices; [`Uevents`] reports devices that appear.
//!
//! ```no_run
//! let report = kernel::modules::load("/usr/lib/modules")?;
//! for absent in &report.without_hardware {
//!     println!("no hardware for {absent}");
//! }
//! # Ok::<(), kernel::modules::LoadError>(())
//! ```
//!
//! Needs `CAP_SYS_MODULE` and Linux 3.8 (`finit_module`).

mod alias;
mod catalog;
mod drivers;
mod load;
mod order;
mod uevent;

pub use alias::ALIASES;
pub use catalog::{CATALOG, Catalog, ModuleName, NameError};
pub use drivers::{BUSES, Device, DriverError, DriverReport, Drivers};
pub use load::{LoadError, Report, load};
pub use order::{FileName, LineError, Module, ORDER, OrderError, parse};
pub use uevent::{Uevent, Uevents};
