//! BTF of small kernels, built for tests.

/// A section of BTF under construction.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    types: Vec<u8>,
    strings: Vec<u8>,
    next_type: u32,
    first_string: u32,
}

impl Default for Sample {
    fn default() -> Self {
        Self { types: Vec::new(), strings: vec![0], next_type: 1, first_string: 0 }
    }
}

impl Sample {
    /// An empty section for a module of this kernel.
    pub(crate) fn module(&self) -> Self {
        let first_string = u32::try_from(self.strings.len()).unwrap();
        Self { types: Vec::new(), strings: Vec::new(), next_type: self.next_type, first_string }
    }

    pub(crate) fn int(&mut self, name: &str, bytes: u32) -> u32 {
        self.add(name, 1, 0, bytes, &[bytes * 8])
    }

    pub(crate) fn pointer(&mut self, target: u32) -> u32 {
        self.add("", 2, 0, target, &[])
    }

    pub(crate) fn alias(&mut self, name: &str, target: u32) -> u32 {
        self.add(name, 8, 0, target, &[])
    }

    /// Adds a structure. Each member has a type and an offset in bytes.
    pub(crate) fn structure(&mut self, name: &str, members: &[(&str, u32, u32)]) -> u32 {
        let mut words = Vec::new();
        for (member, kind, offset) in members {
            words.extend([self.string(member), *kind, offset * 8]);
        }
        self.add(name, 4, members.len(), 4096, &words)
    }

    /// Adds a structure. Each member has a type, an offset in bits and a width in bits, which is 0 for an ordinary
    /// member.
    pub(crate) fn bit_fields(&mut self, name: &str, members: &[(&str, u32, u32, u32)]) -> u32 {
        let mut words = Vec::new();
        for (member, kind, offset, width) in members {
            words.extend([self.string(member), *kind, width << 24 | offset]);
        }
        self.add(name, 4 | 0x80, members.len(), 4096, &words)
    }

    pub(crate) fn function(&mut self, name: &str, arguments: &[u32]) -> u32 {
        let words: Vec<u32> = arguments.iter().flat_map(|kind| [0, *kind]).collect();
        let prototype = self.add("", 13, arguments.len(), 0, &words);
        self.add(name, 12, 0, prototype, &[])
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let lengths = [self.types.len(), self.strings.len()].map(|length| u32::try_from(length).unwrap());
        let header = [24, 0, lengths[0], lengths[0], lengths[1]];
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        bytes.extend(header.iter().flat_map(|word| word.to_ne_bytes()));
        bytes.extend(&self.types);
        bytes.extend(&self.strings);
        bytes
    }

    fn add(&mut self, name: &str, kind: u32, count: usize, value: u32, rest: &[u32]) -> u32 {
        let name = self.string(name);
        let info = kind << 24 | u32::try_from(count).unwrap();
        let words = [name, info, value];
        self.types.extend(words.iter().chain(rest).flat_map(|word| word.to_ne_bytes()));
        self.next_type += 1;
        self.next_type - 1
    }

    fn string(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let offset = self.first_string + u32::try_from(self.strings.len()).unwrap();
        self.strings.extend(text.as_bytes());
        self.strings.push(0);
        offset
    }
}

/// The types of Linux 6.12 that the programs need, with invented offsets.
pub(crate) fn kernel_6_12() -> Sample {
    let mut sample = Sample::default();
    base(&mut sample);
    sample
}

/// The types of Linux 6.17 that the programs need, XFS included.
pub(crate) fn kernel_6_17() -> Sample {
    let mut sample = Sample::default();
    let Base { int, short, inode, .. } = base(&mut sample);
    let to_inode = sample.pointer(inode);
    let dentry = sample.structure("dentry", &[("d_inode", to_inode, 48)]);
    let attributes =
        sample.structure("file_kattr", &[("flags", int, 0), ("fsx_xflags", int, 4), ("fsx_projid", int, 16)]);
    let (to_dentry, to_attributes) = (sample.pointer(dentry), sample.pointer(attributes));
    sample.function("bpf_lsm_inode_file_setattr", &[to_dentry, to_attributes]);
    let project = sample.alias("prid_t", int);
    sample.structure("xfs_inode", &[("i_projid", project, 100), ("i_diflags", short, 120), ("i_vnode", inode, 200)]);
    sample
}

struct Base {
    int: u32,
    short: u32,
    inode: u32,
}

fn base(sample: &mut Sample) -> Base {
    let (int, short, long) = (sample.int("unsigned int", 4), sample.int("short", 2), sample.int("long", 8));
    let (device, mode) = (sample.alias("dev_t", int), sample.alias("umode_t", short));
    let disk = sample.structure("super_block", &[("s_dev", device, 16)]);
    let to_disk = sample.pointer(disk);
    let inode = sample.structure("inode", &[("i_mode", mode, 0), ("i_sb", to_disk, 40), ("i_rdev", device, 76)]);
    let to_inode = sample.pointer(inode);
    let file = sample.structure("file", &[("f_inode", to_inode, 32)]);
    let to_file = sample.pointer(file);
    for hook in ["bpf_lsm_file_ioctl", "bpf_lsm_file_ioctl_compat"] {
        sample.function(hook, &[to_file, int, long]);
    }
    sample.function("bpf_lsm_quotactl", &[int, int, int, to_disk]);
    Base { int, short, inode }
}
