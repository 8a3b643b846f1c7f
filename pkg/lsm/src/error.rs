//! Errors of loading the programs and using their maps.

use std::io;
use std::path::PathBuf;

use loopdev::DeviceNumber;
use nix::errno::Errno;

use crate::assembler::AssembleError;
use crate::btf::BtfError;

/// A [`Guard`](crate::Guard) cannot be loaded or used. After a failed load nothing is attached.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors describe the fields")]
pub enum Error {
    /// The list of active LSMs cannot be read.
    #[error("cannot read {}; mount securityfs on /sys/kernel/security", path.display())]
    Securityfs { path: PathBuf, source: io::Error },
    /// BPF is not one of the active LSMs.
    #[error(
        "BPF is not an active LSM (active: {active}); use a kernel with CONFIG_BPF_LSM, and add bpf to the kernel \
         parameter lsm= if there is one"
    )]
    Inactive { active: String },
    /// The kernel's types cannot be used.
    #[error("cannot build the programs for this kernel")]
    Btf(#[from] BtfError),
    /// A program has an invalid jump: an error of this crate.
    #[error("cannot build the program for the hook {hook}")]
    Assemble { hook: &'static str, source: AssembleError },
    /// A map cannot be created.
    #[error("cannot create the BPF map {map}; CAP_BPF is needed")]
    CreateMap { map: &'static str, source: Errno },
    /// A map cannot be read or changed.
    #[error("cannot {step} the BPF map {map}")]
    UseMap { step: &'static str, map: &'static str, source: Errno },
    /// The kernel rejects a program.
    #[error(
        "the kernel rejects the program for the hook {hook}; CAP_BPF and CAP_PERFMON are needed{}",
        if log.is_empty() { String::new() } else { format!("; end of the verifier's log: {log}") }
    )]
    Load {
        hook: &'static str,
        /// End of the verifier's log; empty if the kernel rejected the program before the verifier wrote one.
        log: String,
        source: Errno,
    },
    /// A program cannot be attached.
    #[error("cannot attach the program to the hook {hook}")]
    Link { hook: &'static str, source: Errno },
    /// The device is not a loop device.
    #[error("{0} is not the number of a loop device; those have the major number 7")]
    NotALoopDevice(DeviceNumber),
    /// A pin, or the directory for pins, cannot be used.
    #[error("cannot {step} {}; mount bpffs there or above", path.display())]
    Pin { step: &'static str, path: PathBuf, source: io::Error },
}
