//! Attacks of root on the running kernel, with the capability that the kernel requires for each call.

use core::ffi::CStr;

use crate::errno::Errno;
use crate::failure::Failure;
use crate::sys::{self, File, Page};
use crate::target::Target;

/// Module that is loaded without its signature. The module needs no hardware and no other module, and a node does not
/// load it.
pub const MODULE: &CStr = c"crc7";

/// include/uapi/linux/capability.h.
const CAP_SYS_MODULE: u32 = 16;
const CAP_SYS_RAWIO: u32 = 17;
const CAP_SYS_BOOT: u32 = 22;

const KERNEL_ADDRESS: u64 = 16 << 20;

/// `MODULE_SIG_STRING`, include/linux/module_signature.h. A signed module ends with the signature, a `struct
/// module_signature` whose last field is the signature's length (32 bits, big-endian), and this text.
const MARKER: &[u8] = b"~Module signature appended~\n";
const SIGNATURE_DESCRIPTION: usize = 12;

/// Returns the module without the appended signature, or `None` if the module is not signed.
pub fn without_signature(module: &[u8]) -> Option<&[u8]> {
    let described = module.strip_suffix(MARKER)?;
    let length = u32::from_be_bytes(*described.last_chunk()?);
    let end = described.len().checked_sub(SIGNATURE_DESCRIPTION)?.checked_sub(length as usize)?;
    described.get(..end)
}

/// Fails unless the process has the capability. Without it, the kernel denies the call on every system.
fn require(page: &mut Page, capability: u32) -> Result<(), Failure> {
    let has = sys::has_capability(page, capability).map_err(Failure::step("read the capabilities"))?;
    if has { Ok(()) } else { Err(Failure::Step("look for the capability", Errno::EPERM)) }
}

fn module(target: &Target<'_>) -> Result<File, Failure> {
    sys::open(target.module, sys::READ_ONLY).map_err(Failure::step("open the module"))
}

fn unload_module() -> Result<(), Failure> {
    sys::unload_module(MODULE).map_err(Failure::step("unload the module"))
}

/// `init_module` with a module that has no signature.
pub(crate) fn load_module(target: &Target<'_>, page: &mut Page) -> Result<(), Failure> {
    require(page, CAP_SYS_MODULE)?;
    let content = sys::map(module(target)?, page).map_err(Failure::step("map the module"))?;
    sys::load_module(content).map_err(Failure::Denied)?;
    unload_module()
}

/// `finit_module` with the same module.
pub(crate) fn load_module_file(target: &Target<'_>, page: &mut Page) -> Result<(), Failure> {
    require(page, CAP_SYS_MODULE)?;
    sys::load_module_file(module(target)?).map_err(Failure::Denied)?;
    unload_module()
}

/// `kexec_load` with a page of memory as the other kernel.
pub(crate) fn load_kernel(_: &Target<'_>, page: &mut Page) -> Result<(), Failure> {
    require(page, CAP_SYS_BOOT)?;
    sys::load_kernel(page, KERNEL_ADDRESS).map_err(Failure::Denied)?;
    sys::unload_kernel().map_err(Failure::step("unload the other kernel"))
}

/// `kexec_file_load` with a file that is not a kernel. The pod has no kernel file.
pub(crate) fn load_kernel_file(target: &Target<'_>, page: &mut Page) -> Result<(), Failure> {
    require(page, CAP_SYS_BOOT)?;
    sys::load_kernel_file(module(target)?).map_err(Failure::Denied)
}

/// `iopl`. For a process with this capability, only lockdown denies the call. The I/O privilege ends with the process.
pub(crate) fn use_io_ports(_: &Target<'_>, page: &mut Page) -> Result<(), Failure> {
    require(page, CAP_SYS_RAWIO)?;
    sys::enable_io_ports().map_err(Failure::Denied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_removed_with_its_description() {
        let description: &[u8] = &[0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 9];
        let signed = [b"module".as_slice(), b"signature", description, MARKER].concat();
        assert_eq!(without_signature(&signed), Some(b"module".as_slice()));
        for other in [b"module".as_slice(), MARKER, &signed[..signed.len() - 1], &signed[8..]] {
            assert_eq!(without_signature(other), None, "{other:?}");
        }
    }
}
