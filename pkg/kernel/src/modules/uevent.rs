//! Uevents: messages of the kernel about devices.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::sockopt::RcvBufForce;
use nix::sys::socket::{
    AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recvfrom, setsockopt, socket,
};

use crate::modules::drivers::Device;

/// Multicast group of the kernel's own messages; udev sends its messages in group 2.
const KERNEL: u32 = 1;
/// `UEVENT_BUFFER_SIZE` with the header, include/linux/kobject.h.
const LONGEST: usize = 8 << 10;
/// Size of the receive buffer, enough for the messages of a bus with many devices. The kernel drops messages beyond it,
/// and reports that.
const BUFFER: usize = 1 << 20;

/// Socket for the kernel's uevents.
#[derive(Debug)]
pub struct Uevents(OwnedFd);

/// Next message of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Uevent {
    /// A device appeared that needs a driver.
    Device(Device),
    /// Messages are lost: look for devices below [`BUSES`](crate::modules::BUSES).
    Lost,
    /// Anything else.
    Other,
}

impl Uevents {
    /// Opens the socket. Devices that appear from now on are reported. Needs root.
    ///
    /// # Errors
    /// Errors of socket(2), setsockopt(2) and bind(2).
    pub fn open() -> io::Result<Self> {
        let protocol = SockProtocol::NetlinkKObjectUEvent;
        let socket = socket(AddressFamily::Netlink, SockType::Datagram, SockFlag::SOCK_CLOEXEC, protocol)?;
        setsockopt(&socket, RcvBufForce, &BUFFER)?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, KERNEL))?;
        Ok(Self(socket))
    }

    /// Waits for one message, without a time limit.
    ///
    /// # Errors
    /// Errors of recvfrom(2).
    pub fn receive(&self) -> io::Result<Uevent> {
        let mut buffer = [0; LONGEST];
        match recvfrom::<NetlinkAddr>(self.0.as_raw_fd(), &mut buffer) {
            // Messages of the kernel come from port 0.
            Ok((length, Some(from))) if from.pid() == 0 => {
                Ok(device(buffer.get(..length).unwrap_or_default()).map_or(Uevent::Other, Uevent::Device))
            }
            Ok(_) | Err(Errno::EINTR) => Ok(Uevent::Other),
            Err(Errno::ENOBUFS) => Ok(Uevent::Lost),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Parses the device that a message adds: `add@DEVPATH`, then fields, each terminated by NUL.
fn device(message: &[u8]) -> Option<Device> {
    let text = std::str::from_utf8(message).ok()?;
    let field = |key: &str| text.split('\0').find_map(|field| field.strip_prefix(key)?.strip_prefix('='));
    let path = text.split('\0').next()?.strip_prefix("add@")?;
    Some(Device {
        bus: field("SUBSYSTEM")?.to_owned(),
        name: path.rsplit('/').next()?.to_owned(),
        modalias: field("MODALIAS")?.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ADDED: &str = "add@/devices/pci0000:00/0000:00:02.0\0ACTION=add\0DEVPATH=/devices/pci0000:00/0000:00:02.0\0\
        SUBSYSTEM=pci\0PCI_ID=8086:10D3\0MODALIAS=pci:v00008086d000010D3\0SEQNUM=1234\0";

    #[test]
    fn a_device_that_appears_has_its_bus_name_and_modalias() {
        let found = device(ADDED.as_bytes()).unwrap();
        assert_eq!(found.to_string(), "pci 0000:00:02.0 (pci:v00008086d000010D3)");
    }

    #[test]
    fn other_messages_need_no_driver() {
        for other in [
            ADDED.replace("add", "remove"),
            ADDED.replace("MODALIAS", "MODALIASES"),
            ADDED.replace("add@", "libudev"),
            String::new(),
        ] {
            assert_eq!(device(other.as_bytes()), None, "{other:?}");
        }
        assert_eq!(device(b"add@/devices/a\0SUBSYSTEM=\xff\0MODALIAS=b\0"), None);
    }

    proptest! {
        #[test]
        fn any_message_is_read(message: Vec<u8>, text in "add@[/a\0]{0,8}(SUBSYSTEM=|MODALIAS=|\0|x){0,6}") {
            let _ = (device(&message), device(text.as_bytes()));
        }
    }
}
