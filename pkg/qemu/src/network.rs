//! The guest's way to the network, and the host's way into the guest.

use std::io;
use std::net::{Ipv4Addr, TcpListener};

/// User networking: the guest is 10.0.2.15, its gateway 10.0.2.2, its name server 10.0.2.3.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Ports of the host that lead into the guest.
    pub forwards: Vec<Forward>,
}

/// A TCP port of 127.0.0.1 that leads to a port of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Forward {
    /// Port of the host, see [`free_port`].
    pub host: u16,
    /// Port of the guest.
    pub guest: u16,
}

/// A TCP port of 127.0.0.1 that nothing listens on.
///
/// Another program may take it before QEMU does; then the VM does not start.
///
/// # Errors
/// The system's, when no port is free or there is no loopback network.
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
}
