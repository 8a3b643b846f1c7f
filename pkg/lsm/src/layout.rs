//! [`Layout`]: the parts of the kernel's types that the programs use.

use crate::btf::{Btf, BtfError, TypeId};

/// An LSM hook of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hook {
    /// Name in include/linux/lsm_hook_defs.h.
    pub(crate) name: &'static str,
    /// The function that a program is attached to.
    pub(crate) function: TypeId,
}

/// Hooks, and offsets of members in bytes. Each offset fits into an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub(crate) file_ioctl: Hook,
    pub(crate) file_ioctl_compat: Hook,
    pub(crate) quotactl: Hook,
    /// Offset in `struct file`.
    pub(crate) f_inode: i16,
    /// Offset in `struct inode`, as are the next two.
    pub(crate) i_mode: i16,
    pub(crate) i_rdev: i16,
    pub(crate) i_sb: i16,
    /// Offset in `struct super_block`.
    pub(crate) s_dev: i16,
    /// The hook `inode_file_setattr`, since Linux 6.17.
    pub(crate) attributes: Option<Attributes>,
}

/// The hook `inode_file_setattr`, with the offsets that its program uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) hook: Hook,
    /// Offset in `struct dentry`.
    pub(crate) d_inode: i16,
    /// Offset in `struct file_kattr`, as is the next one.
    pub(crate) fsx_xflags: i16,
    pub(crate) fsx_projid: i16,
    /// Distance from the `struct inode` in a `struct xfs_inode` to the project ID of the latter; mostly negative.
    pub(crate) to_projid: i32,
    /// Distance from the same `struct inode` to the inode's flags on the disk.
    pub(crate) to_diflags: i32,
}

impl Layout {
    /// Finds the layout of this kernel, from the types of the hooks' arguments. [`BtfError`] if a hook is missing or a
    /// type differs.
    pub fn of(btf: &Btf) -> Result<Self, BtfError> {
        let look = Look(btf);
        let file_ioctl = look.hook("file_ioctl", "bpf_lsm_file_ioctl")?;
        let file_ioctl_compat = look.hook("file_ioctl_compat", "bpf_lsm_file_ioctl_compat")?;
        let quotactl = look.hook("quotactl", "bpf_lsm_quotactl")?;
        let file = look.pointer_argument(file_ioctl, 0, "file")?;
        look.pointer_argument(file_ioctl_compat, 0, "file")?;
        for (hook, index) in [(file_ioctl, 1), (file_ioctl_compat, 1), (quotactl, 0)] {
            look.integer_argument(hook, index)?;
        }
        let (f_inode, inode) = look.pointer(file, "file", "f_inode", "inode")?;
        let (i_sb, super_block) = look.pointer(inode, "inode", "i_sb", "super_block")?;
        let attributes = match btf.function("bpf_lsm_inode_file_setattr") {
            Some(_) => Some(look.attributes()?),
            None => None,
        };
        Ok(Self {
            file_ioctl,
            file_ioctl_compat,
            quotactl,
            f_inode,
            i_mode: look.integer(inode, "inode", "i_mode", 2)?,
            i_rdev: look.integer(inode, "inode", "i_rdev", 4)?,
            i_sb,
            s_dev: look.integer(super_block, "super_block", "s_dev", 4)?,
            attributes,
        })
    }
}

struct Look<'a>(&'a Btf);

impl Look<'_> {
    fn attributes(&self) -> Result<Attributes, BtfError> {
        let hook = self.hook("inode_file_setattr", "bpf_lsm_inode_file_setattr")?;
        let dentry = self.pointer_argument(hook, 0, "dentry")?;
        let file_kattr = self.pointer_argument(hook, 1, "file_kattr")?;
        let (d_inode, _) = self.pointer(dentry, "dentry", "d_inode", "inode")?;
        let missing = |member| BtfError::Member { structure: "xfs_inode", member };
        let xfs_inode = self.0.structure("xfs_inode").ok_or(missing("i_vnode"))?;
        let vnode = self.0.member(xfs_inode, "i_vnode").filter(|member| self.0.is_structure(member.kind, "inode"));
        let vnode = i32::from(offset(vnode.ok_or(missing("i_vnode"))?.offset).ok_or(missing("i_vnode"))?);
        let projid = self.integer(xfs_inode, "xfs_inode", "i_projid", 4)?;
        let diflags = self.integer(xfs_inode, "xfs_inode", "i_diflags", 2)?;
        Ok(Attributes {
            hook,
            d_inode,
            fsx_xflags: self.integer(file_kattr, "file_kattr", "fsx_xflags", 4)?,
            fsx_projid: self.integer(file_kattr, "file_kattr", "fsx_projid", 4)?,
            to_projid: i32::from(projid) - vnode,
            to_diflags: i32::from(diflags) - vnode,
        })
    }

    fn hook(&self, name: &'static str, function: &str) -> Result<Hook, BtfError> {
        let function = self.0.function(function).ok_or(BtfError::NoHook { hook: name })?;
        Ok(Hook { name, function })
    }

    fn pointer_argument(&self, hook: Hook, index: usize, target: &str) -> Result<TypeId, BtfError> {
        let argument = self.0.argument(hook.function, index);
        let target = argument.and_then(|argument| self.0.target(argument, target));
        target.ok_or(BtfError::Argument { hook: hook.name, index })
    }

    /// Checks that an argument is an integer of 4 bytes, such as a command.
    fn integer_argument(&self, hook: Hook, index: usize) -> Result<(), BtfError> {
        let length = self.0.argument(hook.function, index).and_then(|argument| self.0.integer(argument));
        if length == Some(4) { Ok(()) } else { Err(BtfError::Argument { hook: hook.name, index }) }
    }

    /// Offset of a member that points to a structure, and that structure.
    fn pointer(
        &self,
        of: TypeId,
        structure: &'static str,
        member: &'static str,
        target: &str,
    ) -> Result<(i16, TypeId), BtfError> {
        let found = self.0.member(of, member).and_then(|found| {
            let target = self.0.target(found.kind, target)?;
            Some((offset(found.offset)?, target))
        });
        found.ok_or(BtfError::Member { structure, member })
    }

    /// Offset of a member that is an integer of this many bytes.
    fn integer(&self, of: TypeId, structure: &'static str, member: &'static str, length: u32) -> Result<i16, BtfError> {
        let found = self.0.member(of, member).filter(|found| self.0.integer(found.kind) == Some(length));
        found.and_then(|found| offset(found.offset)).ok_or(BtfError::Member { structure, member })
    }
}

/// Converts an offset to the type that an instruction contains.
fn offset(bytes: u32) -> Option<i16> {
    i16::try_from(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{Sample, kernel_6_12, kernel_6_17};

    fn layout(sample: &Sample) -> Result<Layout, BtfError> {
        Layout::of(&Btf::parse(sample.bytes()).unwrap())
    }

    #[test]
    fn offsets_are_those_of_the_kernels_types() {
        let found = layout(&kernel_6_12()).unwrap();
        let offsets = [found.f_inode, found.i_mode, found.i_rdev, found.i_sb, found.s_dev];
        assert_eq!((offsets, found.attributes), ([32, 0, 76, 40, 16], None));
        let found = layout(&kernel_6_17()).unwrap().attributes.unwrap();
        assert_eq!([found.d_inode, found.fsx_xflags, found.fsx_projid], [48, 4, 16]);
        assert_eq!([found.to_projid, found.to_diflags], [-100, -80]);
    }

    #[test]
    fn a_kernel_without_a_hook_is_rejected_by_its_name() {
        let error = layout(&Sample::default()).unwrap_err();
        assert!(matches!(error, BtfError::NoHook { hook: "file_ioctl" }), "{error}");
        // Linux 6.7 has no file_ioctl_compat.
        let mut sample = Sample::default();
        sample.function("bpf_lsm_file_ioctl", &[]);
        let error = layout(&sample).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the kernel has no LSM hook file_ioctl_compat; Linux 6.8 or newer with CONFIG_BPF_LSM is needed"
        );
    }

    /// A kernel whose hooks get a file of this shape.
    fn kernel_with_file(file: impl FnOnce(&mut Sample) -> u32) -> Sample {
        let mut sample = Sample::default();
        let (int, file) = (sample.int("int", 4), file(&mut sample));
        for hook in ["bpf_lsm_file_ioctl", "bpf_lsm_file_ioctl_compat"] {
            sample.function(hook, &[file, int]);
        }
        sample.function("bpf_lsm_quotactl", &[int]);
        sample
    }

    #[test]
    fn an_argument_of_another_type_is_an_error() {
        let sample = kernel_with_file(|sample| sample.int("long", 8));
        assert!(matches!(layout(&sample), Err(BtfError::Argument { hook: "file_ioctl", index: 0 })));
    }

    #[test]
    fn a_member_of_another_type_or_too_far_away_is_an_error() {
        let integer = kernel_with_file(|sample| {
            let long = sample.int("long", 8);
            let file = sample.structure("file", &[("f_inode", long, 32)]);
            sample.pointer(file)
        });
        let far = kernel_with_file(|sample| {
            let inode = sample.structure("inode", &[]);
            let to_inode = sample.pointer(inode);
            let file = sample.structure("file", &[("f_inode", to_inode, 1 << 15)]);
            sample.pointer(file)
        });
        for sample in [integer, far] {
            assert!(matches!(layout(&sample), Err(BtfError::Member { structure: "file", member: "f_inode" })));
        }
    }
}
