//! Accelerators.

use std::fmt;
use std::path::Path;

use crate::probe;
use crate::program::Program;

/// The accelerator of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Accelerator {
    /// The CPU itself.
    Kvm,
    /// QEMU's translator.
    Tcg,
}

/// AVX is slow in emulation; Nehalem is the newest model without it. QEMU executes the added instructions faster than those
/// that a guest uses without them: AES, CLMUL and SHA (TLS, dm-verity) are one compiled function for each step, an FS base
/// is not an MSR (each switch between threads), and the registers of an x2APIC are not in memory.
pub(crate) const EMULATED: &str = "Nehalem,+aes,+pclmulqdq,+sha-ni,+fsgsbase,+x2apic";

impl Accelerator {
    /// [`Self::Kvm`] if a guest runs in it, else [`Self::Tcg`]. An open `/dev/kvm` is not sufficient: nested or
    /// software KVM may accept every call and never execute 64-bit code. Takes below 0.2 s, or 5 s if the guest hangs.
    /// The guest is a file in the directory `scratch` meanwhile.
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
