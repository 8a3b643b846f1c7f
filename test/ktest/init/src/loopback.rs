//! The loopback device.

use std::io;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket};

// include/uapi/linux/netlink.h, rtnetlink.h, if.h
const RTM_NEWLINK: u16 = 16;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const IFF_UP: u32 = 1;

/// `LOOPBACK_IFINDEX`, include/net/net_namespace.h: it is the first device.
const LOOPBACK: i32 = 1;

/// Brings `lo` up. The kernel then gives it 127.0.0.1/8, and ::1 if it has IPv6.
pub(crate) fn bring_up() -> io::Result<()> {
    let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute)?;
    let kernel = NetlinkAddr::new(0, 0);
    sendto(socket.as_raw_fd(), &request(), &kernel, MsgFlags::empty())?;
    let mut answer = [0; 256];
    let length = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    match acknowledged(&answer[..length]) {
        Some(0) => Ok(()),
        Some(error) => Err(Errno::from_raw(-error).into()),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// `struct nlmsghdr` and `struct ifinfomsg`.
fn request() -> Vec<u8> {
    const LENGTH: u32 = 32;
    let mut message = Vec::new();
    message.extend(LENGTH.to_ne_bytes());
    message.extend(RTM_NEWLINK.to_ne_bytes());
    message.extend((NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
    let (sequence, port) = (1_u32, 0_u32);
    message.extend(sequence.to_ne_bytes());
    message.extend(port.to_ne_bytes());
    // Of any family, of any type.
    message.extend([0; 4]);
    message.extend(LOOPBACK.to_ne_bytes());
    let (flags, change) = (IFF_UP, IFF_UP);
    message.extend(flags.to_ne_bytes());
    message.extend(change.to_ne_bytes());
    message
}

/// The error number of a `struct nlmsgerr`, negative, or 0.
fn acknowledged(answer: &[u8]) -> Option<i32> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let error = i32::from_ne_bytes(answer.get(16..20)?.try_into().ok()?);
    (kind == NLMSG_ERROR).then_some(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledgement_is_an_error_of_zero() {
        let answer =
            |kind: u16, error: i32| [&[36, 0, 0, 0][..], &kind.to_ne_bytes(), &[0; 10], &error.to_ne_bytes()].concat();
        assert_eq!(acknowledged(&answer(NLMSG_ERROR, 0)), Some(0));
        assert_eq!(acknowledged(&answer(NLMSG_ERROR, -1)), Some(-1));
        assert_eq!(acknowledged(&answer(RTM_NEWLINK, 0)), None);
        assert_eq!(acknowledged(&[0; 17]), None);
    }
}
