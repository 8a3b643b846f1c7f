//! A BPF link.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;

/// `enum bpf_cmd`, include/uapi/linux/bpf.h.
const BPF_PROG_LOAD: u32 = 5;
const BPF_LINK_CREATE: u32 = 28;
/// `BPF_PROG_TYPE_CGROUP_SKB`.
const CGROUP_SKB: u32 = 8;

/// A BPF program that accepts all packets of a cgroup, attached by a link. The link can be detached like a
/// `BPF_LSM_CGROUP` link.
pub fn link(cgroup: &File) -> OwnedFd {
    // r0 = 1; exit.
    let instructions = [0x0000_0001_0000_00b7_u64, 0x95];
    let license = c"GPL";
    // prog_type and insn_cnt, insns, license. The 9 words extend to the end of expected_attach_type.
    let [code, text] = [instructions.as_ptr().expose_provenance(), license.as_ptr().expose_provenance()];
    let load = [u64::from(CGROUP_SKB) | 2 << 32, code as u64, text as u64, 0, 0, 0, 0, 0, 0];
    let program = bpf(BPF_PROG_LOAD, &load).expect("BPF_PROG_LOAD");
    let [program_number, cgroup] = [program.as_raw_fd(), cgroup.as_raw_fd()].map(|fd| u64::from(fd.cast_unsigned()));
    bpf(BPF_LINK_CREATE, &[program_number | cgroup << 32, 0]).expect("BPF_LINK_CREATE")
}

/// bpf(2) for a command that returns a descriptor.
fn bpf(command: u32, attributes: &[u64]) -> Result<OwnedFd, Errno> {
    // SAFETY: the kernel reads the attributes, and what they point to: two instructions and a string that ends with 0,
    // which the caller keeps until the call returns.
    let made = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size_of_val(attributes)) };
    let number = Errno::result(made)?;
    // SAFETY: the kernel has just returned the descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number as i32) })
}
