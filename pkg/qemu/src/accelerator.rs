//! Accelerators.

use std::fmt;
use std::path::Path;

use crate::probe;
use crate::program::Program;

/// The accelerator of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Accelerator {
    /// KVM: the CPU of the host executes the guest.
    Kvm,
    /// TCG: QEMU translates the instructions of the guest.
    Tcg,
}

/// CPU model of emulated guests. AVX is slow in emulation; Nehalem is the newest model without it. The added
/// instructions are faster than the ones that a guest uses without them: each step of AES, CLMUL and SHA (TLS,
/// dm-verity) is one compiled function, a switch between threads sets the FS base without an MSR, and the registers of
/// an x2APIC are not in memory.
pub(crate) const EMULATED: &str = "Nehalem,+aes,+pclmulqdq,+sha-ni,+fsgsbase,+x2apic";

impl Accelerator {
    /// Returns [`Self::Kvm`] if KVM runs a test guest, else [`Self::Tcg`]. An open `/dev/kvm` is not sufficient: nested
    /// or software KVM may accept every call and never execute 64-bit code. The probe takes less than 0.2 s, or 5 s if
    /// the guest hangs. During the probe, the directory `scratch` contains the guest as a file.
    pub fn probe(program: &Program, scratch: &Path) -> Self {
        match probe::try_kvm(program, scratch) {
            Ok(()) => Self::Kvm,
            Err(_) => Self::Tcg,
        }
    }

    pub(crate) fn arguments(self) -> [&'static str; 4] {
        match self {
            Self::Kvm => ["-accel", "kvm", "-cpu", "host"],
            Self::Tcg => ["-accel", "tcg,thread=multi", "-cpu", EMULATED],
        }
    }
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kvm => "KVM",
            Self::Tcg => "emulation (TCG)",
        })
    }
}
