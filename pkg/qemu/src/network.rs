//! Network of the guest, and ports of the host that lead into the guest.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;

/// The guest's network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// The device that the guest sees.
    pub card: Card,
    /// Ethernet address. If absent, QEMU selects one, which is the same for every VM.
    pub mac: Option<Mac>,
    /// Connection of the device.
    pub link: Link,
    /// File to which QEMU writes each frame in the format of pcap (pcap-savefile(5)). QEMU replaces an existing file.
    /// Other programs can read the file while it grows.
    pub capture: Option<PathBuf>,
}

/// The network device that the guest sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Card {
    /// virtio-net, the fastest.
    #[default]
    Virtio,
    /// Intel 82574L.
    E1000e,
    /// Intel 82576.
    Igb,
    /// VMware.
    Vmxnet3,
}

impl Card {
    pub(crate) const fn driver(self) -> &'static str {
        match self {
            Self::Virtio => "virtio-net-pci",
            Self::E1000e => "e1000e",
            Self::Igb => "igb",
            Self::Vmxnet3 => "vmxnet3",
        }
    }
}

/// Connection of a network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// User networking for this guest alone. The guest is 10.0.2.15, the gateway 10.0.2.2 and the name server 10.0.2.3.
    User {
        /// Ports of the host that lead into the guest.
        forwards: Vec<Forward>,
    },
    /// A socket that the [`Vm`](crate::Vm) returns once, for a [`Segment`](crate::Segment). Each datagram is an
    /// Ethernet frame.
    Wire,
}

/// A TCP port of 127.0.0.1 that leads to a port of the guest with the address 10.0.2.15.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Forward {
    /// Port of the host, see [`free_port`].
    pub host: u16,
    /// Port of the guest.
    pub guest: u16,
}

/// The Ethernet address of one machine, locally administered (IEEE 802, section 8.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac([u8; 6]);

impl Mac {
    /// The address of the machine with this index. The addresses of QEMU's user networking begin with 52:55.
    pub const fn of(index: u8) -> Self {
        Self([0x52, 0x54, 0, 0, 0, index])
    }

    pub(crate) const fn octets(self) -> [u8; 6] {
        self.0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// A free TCP port of 127.0.0.1. Another program may take it before QEMU does; then the VM does not start.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_port_can_be_listened_on() {
        let port = free_port().unwrap();
        assert_ne!(port, 0);
        assert_eq!(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap().local_addr().unwrap().port(), port);
    }

    #[test]
    fn each_machine_has_its_own_locally_administered_address() {
        assert_eq!(Mac::of(10).to_string(), "52:54:00:00:00:0a");
        assert_ne!(Mac::of(0), Mac::of(1));
        // The address is locally administered and of one machine, not of a group.
        assert_eq!(Mac::of(255).octets()[0] & 0b11, 0b10);
    }
}
