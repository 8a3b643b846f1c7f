//! The configuration of a VM.

use std::fmt;
use std::num::NonZeroU8;
use std::path::PathBuf;
use std::str::FromStr;

use units::Bytes;

use crate::disk::Disk;
use crate::network::Network;

/// The configuration of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The guest's memory.
    pub memory: Bytes,
    /// The guest's CPUs.
    pub cpus: NonZeroU8,
    /// The boot source.
    pub boot: Boot,
    /// Disks in the order in which the guest sees them: vda, vdb and so on.
    pub disks: Vec<Disk>,
    /// No network device if absent.
    pub network: Option<Network>,
    /// virtio-serial ports.
    pub ports: Vec<Port>,
    /// The serial console, ttyS0.
    pub console: Sink,
    /// Files that the guest finds by name in fw_cfg. QEMU reads them when it starts. Linux shows them in
    /// /sys/firmware/qemu_fw_cfg/by_name/NAME/raw.
    pub firmware_files: Vec<FirmwareFile>,
    /// Values of further `-device` arguments.
    pub devices: Vec<String>,
    /// Number of disks that can be attached while the guest runs, see [`Vm::attach`](crate::Vm::attach).
    pub spare_ports: u8,
}

impl Config {
    /// 1 GiB of memory, two CPUs, and nothing else.
    pub fn new(boot: Boot) -> Self {
        Self {
            memory: Bytes::GIB,
            cpus: const { NonZeroU8::new(2).unwrap() },
            boot,
            disks: Vec::new(),
            network: None,
            ports: Vec::new(),
            console: Sink::Discard,
            firmware_files: Vec::new(),
            devices: Vec::new(),
            spare_ports: 0,
        }
    }
}

/// The boot source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Boot {
    /// A Linux kernel, which QEMU loads without firmware or a boot disk.
    Kernel {
        /// The compressed kernel.
        kernel: PathBuf,
        /// The initial RAM file system.
        initrd: Option<PathBuf>,
        /// The command line of the kernel.
        command_line: String,
    },
    /// UEFI firmware, which boots from the first disk.
    Firmware {
        /// The firmware, such as OVMF_CODE_4M.fd.
        code: PathBuf,
        /// The variables of the firmware, which the guest writes to: a new copy for each VM.
        variables: PathBuf,
        /// SMBIOS strings for the guest's software: SMBIOS 3.6, section 7.12, "OEM Strings".
        oem_strings: Vec<String>,
    },
}

/// A virtio-serial port: a byte stream between guest and host, faster than a serial line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Name of the port in the guest, in /sys/class/virtio-ports/*/name.
    pub name: PortName,
    /// Destination at the host.
    pub sink: Sink,
}

/// A file in fw_cfg.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirmwareFile {
    /// Name in the guest, such as `opt/org.example/file`. Names that QEMU does not reserve begin with `opt/`.
    pub name: &'static str,
    /// Path of the content at the host. The content is not on QEMU's command line, so it may be secret.
    pub content: PathBuf,
}

/// Destination of output of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sink {
    /// A stream in both directions that the [`Vm`](crate::Vm) returns once. The guest waits for the reader.
    Stream,
    /// A new file.
    File(PathBuf),
    /// The output is discarded.
    Discard,
}

/// Name of a virtio-serial port, `[a-z0-9.-]{1,64}`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortName(Box<str>);

/// The text is not a name of a port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a name of a virtio-serial port: 1 to 64 lower-case letters, digits, '.' and '-'")]
pub struct NameError {
    /// The text.
    pub text: String,
}

impl PortName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for PortName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'.' || byte == b'-';
        if text.is_empty() || text.len() > 64 || !text.bytes().all(known) {
            return Err(NameError { text: text.to_owned() });
        }
        Ok(Self(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_name_cannot_end_its_argument() {
        assert_eq!("org.example.port".parse::<PortName>().unwrap().as_str(), "org.example.port");
        for text in ["", "a,b", "a b", "A"] {
            assert_eq!(text.parse::<PortName>(), Err(NameError { text: text.into() }));
        }
    }
}
