//! The list of attacks. Those with a lasting effect come last, for the control, in which they succeed.

use crate::attack::{Attack, By, Call};
use crate::errno::Errno;
use crate::expected::Expected;
use crate::project::{FS_IOC_SETFLAGS, FS_IOC32_SETFLAGS, Other, Place};
use crate::quota::{Q_XQUOTAOFF, Q_XQUOTAON};
use crate::sys::{READ_ONLY, READ_WRITE, Way};
use crate::{bpf, device, loops, processes, project, quota};

const DENIED: Expected = Expected::Fails(&[Errno::EPERM]);

/// Succeeds on a kernel without the protections, and gets `EPERM` on a node.
const fn denied(name: &'static str, by: By, call: Call) -> Attack {
    Attack { name, by, unprotected: Expected::Succeeds, protected: DENIED, call }
}

/// The protections must leave this possible.
const fn allowed(name: &'static str, by: By, call: Call) -> Attack {
    Attack { name, by, unprotected: Expected::Succeeds, protected: Expected::Succeeds, call }
}

pub const ATTACKS: &[Attack] = &[
    // Project quotas (isolation.md, section 2).
    allowed("read_project", By::Anyone, project::read),
    denied("set_project_0", By::Anyone, |target, page| {
        project::set(target, page, Place::Volume, Way::Native, Other::None)
    }),
    denied("set_project_1", By::Anyone, |target, page| {
        project::set(target, page, Place::Volume, Way::Native, Other::First)
    }),
    denied("set_project_next", By::Anyone, |target, page| {
        project::set(target, page, Place::Volume, Way::Native, Other::Next)
    }),
    denied("set_project_high_bits", By::Anyone, |target, page| {
        project::set(target, page, Place::Volume, Way::HighBits, Other::None)
    }),
    denied("set_project_compat", By::Anyone, |target, page| {
        project::set(target, page, Place::Volume, Way::Compat, Other::None)
    }),
    denied("set_project_of_file", By::Anyone, |target, page| {
        project::set(target, page, Place::File, Way::Native, Other::None)
    }),
    denied("set_project_of_file_compat", By::Anyone, |target, page| {
        project::set(target, page, Place::File, Way::Compat, Other::None)
    }),
    denied("clear_inherit_attribute", By::Anyone, |target, page| {
        project::clear_inherit_attribute(target, page, Way::Native)
    }),
    denied("clear_inherit_attribute_compat", By::Anyone, |target, page| {
        project::clear_inherit_attribute(target, page, Way::Compat)
    }),
    denied("clear_inherit_flag", By::Anyone, |target, page| {
        project::clear_inherit(target, page, Place::Volume, Way::Native, FS_IOC_SETFLAGS)
    }),
    denied("clear_inherit_flag_high_bits", By::Anyone, |target, page| {
        project::clear_inherit(target, page, Place::Volume, Way::HighBits, FS_IOC_SETFLAGS)
    }),
    denied("clear_inherit_flag_compat", By::Anyone, |target, page| {
        project::clear_inherit(target, page, Place::Volume, Way::Compat, FS_IOC32_SETFLAGS)
    }),
    denied("clear_inherit_flag_compat_long", By::Anyone, |target, page| {
        project::clear_inherit(target, page, Place::Volume, Way::Compat, FS_IOC_SETFLAGS)
    }),
    allowed("change_flags_of_file", By::Anyone, project::change_flags_of_file),
    // The node's kernel does not have the call yet.
    Attack {
        name: "file_setattr",
        by: By::Anyone,
        unprotected: Expected::Fails(&[Errno::ENOSYS]),
        protected: Expected::Fails(&[Errno::EPERM, Errno::ENOSYS]),
        call: project::set_by_name,
    },
    Attack {
        name: "write_past_the_limit",
        by: By::Anyone,
        unprotected: Expected::Succeeds,
        protected: Expected::Fails(&[Errno::ENOSPC, Errno::EDQUOT]),
        call: project::write_past_the_limit,
    },
    // Only root has a directory in the writable layer.
    denied("set_project_in_layer", By::Root, |target, page| {
        project::set(target, page, Place::Layer, Way::Native, Other::None)
    }),
    denied("set_project_in_layer_compat", By::Root, |target, page| {
        project::set(target, page, Place::Layer, Way::Compat, Other::None)
    }),
    denied("clear_inherit_flag_in_layer", By::Root, |target, page| {
        project::clear_inherit(target, page, Place::Layer, Way::Native, FS_IOC_SETFLAGS)
    }),
    denied("clear_inherit_flag_in_layer_compat", By::Root, |target, page| {
        project::clear_inherit(target, page, Place::Layer, Way::Compat, FS_IOC32_SETFLAGS)
    }),
    allowed("read_limits", By::Root, quota::read),
    allowed("sync_all_quotas", By::Root, quota::sync_all),
    denied("set_limits", By::Root, |target, page| quota::set_by_device(target, page, Way::Native)),
    denied("set_limits_high_bits", By::Root, |target, page| quota::set_by_device(target, page, Way::HighBits)),
    denied("set_limits_compat", By::Root, |target, page| quota::set_by_device(target, page, Way::Compat)),
    denied("set_limits_by_descriptor", By::Root, quota::set_by_descriptor),
    denied("set_limits_generally", By::Root, quota::set_generally),
    // In this order: the second one restores what the first one changes.
    denied("disable_limits", By::Root, |target, page| quota::switch(target, page, Q_XQUOTAOFF)),
    // XFS rejects it if the limits are enforced, before it looks for anything else; the hook comes earlier.
    denied("enable_limits", By::Root, |target, page| quota::switch(target, page, Q_XQUOTAON)),
    Attack {
        name: "detach_bpf_links",
        by: By::Root,
        unprotected: Expected::Succeeds,
        // A BPF_LSM_MAC link cannot be detached.
        protected: Expected::Fails(&[Errno::EPERM, Errno::EOPNOTSUPP]),
        call: bpf::detach_links,
    },
    // Block volumes (section 1).
    allowed("read_device_size", By::Anyone, loops::read_size),
    allowed("read_loop_status", By::Anyone, |target, page| loops::read_status(target, page, Way::Native)),
    allowed("read_loop_status_compat", By::Anyone, |target, page| loops::read_status(target, page, Way::Compat)),
    denied("set_loop_status", By::Anyone, |target, page| loops::set_status(target, page, Way::Native)),
    denied("set_loop_status_high_bits", By::Anyone, |target, page| loops::set_status(target, page, Way::HighBits)),
    denied("set_loop_status_compat", By::Anyone, |target, page| loops::set_status(target, page, Way::Compat)),
    denied("set_loop_direct_io", By::Anyone, |target, _| loops::set(target, Way::Native, loops::LOOP_SET_DIRECT_IO, 0)),
    denied("set_loop_direct_io_high_bits", By::Anyone, |target, _| {
        loops::set(target, Way::HighBits, loops::LOOP_SET_DIRECT_IO, 0)
    }),
    denied("set_loop_direct_io_compat", By::Anyone, |target, _| {
        loops::set(target, Way::Compat, loops::LOOP_SET_DIRECT_IO, 0)
    }),
    denied("set_loop_block_size", By::Anyone, |target, _| {
        loops::set(target, Way::Native, loops::LOOP_SET_BLOCK_SIZE, 512)
    }),
    denied("set_loop_block_size_high_bits", By::Anyone, |target, _| {
        loops::set(target, Way::HighBits, loops::LOOP_SET_BLOCK_SIZE, 512)
    }),
    denied("set_loop_block_size_compat", By::Anyone, |target, _| {
        loops::set(target, Way::Compat, loops::LOOP_SET_BLOCK_SIZE, 512)
    }),
    denied("set_loop_capacity", By::Anyone, |target, _| loops::set(target, Way::Native, loops::LOOP_SET_CAPACITY, 0)),
    denied("set_loop_capacity_high_bits", By::Anyone, |target, _| {
        loops::set(target, Way::HighBits, loops::LOOP_SET_CAPACITY, 0)
    }),
    denied("set_loop_capacity_compat", By::Anyone, |target, _| {
        loops::set(target, Way::Compat, loops::LOOP_SET_CAPACITY, 0)
    }),
    // The kernel rejects both for a device that has a file, with another error than the protection.
    Attack {
        name: "configure_loop",
        by: By::Anyone,
        unprotected: Expected::Fails(&[Errno::EBUSY]),
        protected: DENIED,
        call: loops::configure,
    },
    Attack {
        name: "set_loop_file",
        by: By::Anyone,
        unprotected: Expected::Fails(&[Errno::EBUSY]),
        protected: DENIED,
        call: loops::set_file,
    },
    denied("change_loop_file", By::Anyone, |target, page| loops::change_file(target, page, Way::Native)),
    denied("change_loop_file_high_bits", By::Anyone, |target, page| loops::change_file(target, page, Way::HighBits)),
    denied("change_loop_file_compat", By::Anyone, |target, page| loops::change_file(target, page, Way::Compat)),
    denied("detach_loop", By::Anyone, |target, _| loops::detach(target, Way::Native, READ_WRITE)),
    denied("detach_loop_read_only", By::Anyone, |target, _| loops::detach(target, Way::Native, READ_ONLY)),
    denied("detach_loop_high_bits", By::Anyone, |target, _| loops::detach(target, Way::HighBits, READ_ONLY)),
    denied("detach_loop_compat", By::Anyone, |target, _| loops::detach(target, Way::Compat, READ_ONLY)),
    denied("open_another_loop_device", By::Root, device::open_other_device),
    denied("open_data_disk", By::Root, device::open_data_disk),
    denied("create_loop_device", By::Root, |target, page| device::create_loop_device(target, page, Way::Native)),
    denied("create_loop_device_compat", By::Root, |target, page| device::create_loop_device(target, page, Way::Compat)),
    // The node (section 5).
    Attack {
        name: "fork_bomb",
        by: By::User,
        unprotected: Expected::Succeeds,
        protected: Expected::Fails(&[Errno::EAGAIN]),
        call: processes::fork_bomb,
    },
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

    /// Otherwise the suite on the node would pass without the protection.
    #[test]
    fn a_protection_changes_the_result() {
        for attack in ATTACKS.iter().filter(|attack| attack.protected != Expected::Succeeds) {
            assert_ne!(attack.protected, attack.unprotected, "{}", attack.name);
            let Expected::Fails(without) = attack.unprotected else { continue };
            let Expected::Fails(with) = attack.protected else { continue };
            // Linux 6.12 lacks the call.
            let is_missing = without == [Errno::ENOSYS];
            assert!(is_missing || !without.iter().any(|errno| with.contains(errno)), "{}", attack.name);
        }
    }
}
