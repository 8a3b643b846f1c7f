//! Virtual machines in QEMU: finds QEMU, configures, starts and controls a VM, and ends it.
//!
//! ```no_run
//! use qemu::{Accelerator, Boot, Config, Disk, Program, Sink, Vm};
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let program = Program::find()?;
//! let mut config = Config::new(Boot::Kernel {
//!     kernel: "vmlinuz".into(),
//!     initrd: Some("initramfs.cpio".into()),
//!     command_line: "console=ttyS0 panic=-1".into(),
//! });
//! config.disks.push(Disk::new("data".parse()?, "data.img"));
//! config.console = Sink::File("console.log".into());
//! let accelerator = Accelerator::probe(&program, &std::env::temp_dir());
//! let vm = Vm::start(&program, accelerator, &config)?;
//! vm.powerdown()?;
//! println!("{}", vm.shut_down(Duration::from_secs(20)));
//! # Ok(())
//! # }
//! ```
//!
//! The machine is always `q35`, with the devices of the configuration and a virtio random number generator. A VM never
//! outlives its [`Vm`], nor the process that started it. QMP, ports, wires and a streamed console are socket pairs, so
//! no file is left behind and no path can be too long. VMs reach each other in a [`Segment`].
//!
//! A guest can be saved ([`Vm::start_savable`], [`Vm::save`]) and restored any number of times ([`Vm::restore`]): a
//! restored guest runs after a second or less, from the point at which it was saved. Disks can be attached to a
//! running guest ([`Vm::attach`]).
//!
//! All calls block. Needs QEMU 8 (8.2 to restore guests) and x86-64 Linux.
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod accelerator;
mod arguments;
mod config;
mod console;
mod disk;
mod firmware;
mod network;
mod overlay;
mod probe;
mod process;
mod program;
mod qmp;
mod saved;
mod segment;
#[expect(unsafe_code, reason = "what a child does between fork and exec")]
mod sys;
mod vm;

pub use accelerator::Accelerator;
pub use arguments::ConfigError;
pub use config::{Boot, Config, FirmwareFile, NameError, Port, PortName, Sink};
pub use console::tail as console_tail;
pub use disk::{Access, Cache, Disk, DiskModel, IoError, Operation, Serial, SerialError, Times, Wrap};
pub use firmware::{Firmware, FirmwareError};
pub use network::{Card, Forward, Link, Mac, Network, free_port};
pub use overlay::overlay;
pub use process::Exit;
pub use program::{FindError, Program, Version, VersionError};
pub use qmp::QmpError;
pub use saved::{RestoreError, SaveError, Saved};
pub use segment::{Cable, Plug, Segment};
pub use vm::{AttachError, BlockStats, StartError, Vm};
