//! List of attacks. Attacks with a lasting effect come last, because they succeed in the control test.

use crate::attack::By::{self, Anyone, Root, User};
use crate::attack::{Attack, Call};
use crate::errno::Errno;
use crate::expected::Expected::{self, Fails, Succeeds};
use crate::loops::{LOOP_SET_BLOCK_SIZE, LOOP_SET_CAPACITY, LOOP_SET_DIRECT_IO};
use crate::project::Place::{File, Layer, Volume};
use crate::project::{FS_IOC_SETFLAGS, FS_IOC32_SETFLAGS, Other};
use crate::quota::{Q_XQUOTAOFF, Q_XQUOTAON};
use crate::sys::Way::{Compat, HighBits, Native};
use crate::sys::{READ_ONLY, READ_WRITE};
use crate::{bpf, device, handle, kernel, loops, processes, project, quota};

const DENIED: Expected = Fails(&[Errno::EPERM]);
/// The kernel rejects an unsigned module with `module.sig_enforce=1`. Lockdown alone returns `EPERM`.
const REJECTED: Expected = Fails(&[Errno::EKEYREJECTED]);

const fn attack(name: &'static str, by: By, unprotected: Expected, protected: Expected, call: Call) -> Attack {
    Attack { name, by, unprotected, protected, call }
}

/// The attack succeeds on a kernel without the protections and gets `EPERM` on a node.
const fn denied(name: &'static str, by: By, call: Call) -> Attack {
    attack(name, by, Succeeds, DENIED, call)
}

/// A normal operation, which the protections must permit.
const fn allowed(name: &'static str, by: By, call: Call) -> Attack {
    attack(name, by, Succeeds, Succeeds, call)
}

/// Adapts a function with extra arguments to the type `Call`.
macro_rules! call {
    ($module:ident::$function:ident($($argument:expr),*)) => {
        |target, page| $module::$function(target, page, $($argument),*)
    };
}

pub const ATTACKS: &[Attack] = &[
    // Project quotas (isolation.md, section 2).
    allowed("read_project", Anyone, project::read),
    denied("set_project_0", Anyone, call!(project::set(Volume, Native, Other::None))),
    denied("set_project_1", Anyone, call!(project::set(Volume, Native, Other::First))),
    denied("set_project_next", Anyone, call!(project::set(Volume, Native, Other::Next))),
    denied("set_project_high_bits", Anyone, call!(project::set(Volume, HighBits, Other::None))),
    denied("set_project_compat", Anyone, call!(project::set(Volume, Compat, Other::None))),
    denied("set_project_of_file", Anyone, call!(project::set(File, Native, Other::None))),
    denied("set_project_of_file_compat", Anyone, call!(project::set(File, Compat, Other::None))),
    denied("clear_inherit_attribute", Anyone, call!(project::clear_inherit_attribute(Native))),
    denied("clear_inherit_attribute_compat", Anyone, call!(project::clear_inherit_attribute(Compat))),
    denied("clear_inherit_flag", Anyone, call!(project::clear_inherit(Volume, Native, FS_IOC_SETFLAGS))),
    denied("clear_inherit_flag_high_bits", Anyone, call!(project::clear_inherit(Volume, HighBits, FS_IOC_SETFLAGS))),
    denied("clear_inherit_flag_compat", Anyone, call!(project::clear_inherit(Volume, Compat, FS_IOC32_SETFLAGS))),
    denied("clear_inherit_flag_compat_long", Anyone, call!(project::clear_inherit(Volume, Compat, FS_IOC_SETFLAGS))),
    allowed("change_flags_of_file", Anyone, project::change_flags_of_file),
    // The node's kernel does not have this system call yet.
    attack(
        "file_setattr",
        Anyone,
        Fails(&[Errno::ENOSYS]),
        Fails(&[Errno::EPERM, Errno::ENOSYS]),
        project::set_by_name,
    ),
    attack(
        "write_past_the_limit",
        Anyone,
        Succeeds,
        Fails(&[Errno::ENOSPC, Errno::EDQUOT]),
        project::write_past_the_limit,
    ),
    // Only root has a directory in the writable layer.
    denied("set_project_in_layer", Root, call!(project::set(Layer, Native, Other::None))),
    denied("set_project_in_layer_compat", Root, call!(project::set(Layer, Compat, Other::None))),
    denied("clear_inherit_flag_in_layer", Root, call!(project::clear_inherit(Layer, Native, FS_IOC_SETFLAGS))),
    denied("clear_inherit_flag_in_layer_compat", Root, call!(project::clear_inherit(Layer, Compat, FS_IOC32_SETFLAGS))),
    allowed("read_limits", Root, quota::read),
    allowed("sync_all_quotas", Root, quota::sync_all),
    denied("set_limits", Root, call!(quota::set_by_device(Native))),
    denied("set_limits_high_bits", Root, call!(quota::set_by_device(HighBits))),
    denied("set_limits_compat", Root, call!(quota::set_by_device(Compat))),
    denied("set_limits_by_descriptor", Root, quota::set_by_descriptor),
    denied("set_limits_generally", Root, quota::set_generally),
    // The second attack restores the state that the first one changes.
    denied("disable_limits", Root, call!(quota::switch(Q_XQUOTAOFF))),
    // If the limits are enforced, XFS rejects the command before all other checks. The hook runs earlier.
    denied("enable_limits", Root, call!(quota::switch(Q_XQUOTAON))),
    // A BPF_LSM_MAC link cannot be detached.
    attack("detach_bpf_links", Root, Succeeds, Fails(&[Errno::EPERM, Errno::EOPNOTSUPP]), bpf::detach_links),
    // Files of other volumes. The pod lacks the required capability.
    denied("open_by_handle", Root, handle::open),
    // Block volumes (section 1).
    allowed("read_device_size", Anyone, loops::read_size),
    allowed("read_loop_status", Anyone, call!(loops::read_status(Native))),
    allowed("read_loop_status_compat", Anyone, call!(loops::read_status(Compat))),
    denied("set_loop_status", Anyone, call!(loops::set_status(Native))),
    denied("set_loop_status_high_bits", Anyone, call!(loops::set_status(HighBits))),
    denied("set_loop_status_compat", Anyone, call!(loops::set_status(Compat))),
    denied("set_loop_direct_io", Anyone, call!(loops::set(Native, LOOP_SET_DIRECT_IO, 0))),
    denied("set_loop_direct_io_high_bits", Anyone, call!(loops::set(HighBits, LOOP_SET_DIRECT_IO, 0))),
    denied("set_loop_direct_io_compat", Anyone, call!(loops::set(Compat, LOOP_SET_DIRECT_IO, 0))),
    denied("set_loop_block_size", Anyone, call!(loops::set(Native, LOOP_SET_BLOCK_SIZE, 512))),
    denied("set_loop_block_size_high_bits", Anyone, call!(loops::set(HighBits, LOOP_SET_BLOCK_SIZE, 512))),
    denied("set_loop_block_size_compat", Anyone, call!(loops::set(Compat, LOOP_SET_BLOCK_SIZE, 512))),
    denied("set_loop_capacity", Anyone, call!(loops::set(Native, LOOP_SET_CAPACITY, 0))),
    denied("set_loop_capacity_high_bits", Anyone, call!(loops::set(HighBits, LOOP_SET_CAPACITY, 0))),
    denied("set_loop_capacity_compat", Anyone, call!(loops::set(Compat, LOOP_SET_CAPACITY, 0))),
    // For a device with a backing file, the kernel rejects both commands with a different error than the protection.
    attack("configure_loop", Anyone, Fails(&[Errno::EBUSY]), DENIED, loops::configure),
    attack("set_loop_file", Anyone, Fails(&[Errno::EBUSY]), DENIED, loops::set_file),
    denied("change_loop_file", Anyone, call!(loops::change_file(Native))),
    denied("change_loop_file_high_bits", Anyone, call!(loops::change_file(HighBits))),
    denied("change_loop_file_compat", Anyone, call!(loops::change_file(Compat))),
    denied("detach_loop", Anyone, call!(loops::detach(Native, READ_WRITE))),
    denied("detach_loop_read_only", Anyone, call!(loops::detach(Native, READ_ONLY))),
    denied("detach_loop_high_bits", Anyone, call!(loops::detach(HighBits, READ_ONLY))),
    denied("detach_loop_compat", Anyone, call!(loops::detach(Compat, READ_ONLY))),
    denied("open_another_loop_device", Root, device::open_other_device),
    denied("open_data_disk", Root, device::open_data_disk),
    denied("create_loop_device", Root, call!(device::create_loop_device(Native))),
    denied("create_loop_device_compat", Root, call!(device::create_loop_device(Compat))),
    // The kernel (section 5).
    attack("load_module", Root, Succeeds, REJECTED, kernel::load_module),
    attack("load_module_file", Root, Succeeds, REJECTED, kernel::load_module_file),
    denied("load_kernel", Root, kernel::load_kernel),
    // Without the protection, the kernel reads the file and finds that it is not a kernel.
    attack("load_kernel_file", Root, Fails(&[Errno::ENOEXEC]), DENIED, kernel::load_kernel_file),
    denied("use_io_ports", Root, kernel::use_io_ports),
    // Processes of the node (section 5).
    attack("fork_bomb", User, Succeeds, Fails(&[Errno::EAGAIN]), processes::fork_bomb),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_attacks_are_unique_and_valid() {
        for (at, attack) in ATTACKS.iter().enumerate() {
            let is_name = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
            assert!(attack.name.chars().all(is_name), "{}", attack.name);
            assert!(ATTACKS[..at].iter().all(|other| other.name != attack.name), "{} is listed twice", attack.name);
        }
    }

    /// If the results were equal, the suite on the node would pass without the protection.
    #[test]
    fn a_protection_changes_the_result() {
        for attack in ATTACKS.iter().filter(|attack| attack.protected != Expected::Succeeds) {
            assert_ne!(attack.protected, attack.unprotected, "{}", attack.name);
            let Expected::Fails(without) = attack.unprotected else { continue };
            let Expected::Fails(with) = attack.protected else { continue };
            // Linux 6.12 does not have the system call.
            let is_missing = without == [Errno::ENOSYS];
            assert!(is_missing || !without.iter().any(|errno| with.contains(errno)), "{}", attack.name);
        }
    }
}
