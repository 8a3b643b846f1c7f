//! A node of the mesh: a host with a key, a range and the interface.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use clusternet::{
    Change, Device as _, INTERFACE, Link, Peer, PeerState, Peers, Place, PrivateKey, PublicKey, Wireguard, diff,
};
use dir::Dir;
use ipnet::IpNet;
use ktest_support::Namespace;
use rtnetlink::packet_route::address::{AddressHeaderFlags, AddressMessage};
use rtnetlink::{AddressMessageBuilder, LinkUnspec, LinkVeth};
use tempfile::TempDir;

/// Time limit of a handshake in a VM.
pub const LIMIT: Duration = Duration::from_secs(30);

pub struct Node {
    pub host: Namespace,
    pub device: Arc<Wireguard>,
    pub key: PublicKey,
    pub number: u8,
    pub disk: TempDir,
}

impl Node {
    fn new(host: Namespace, number: u8) -> Self {
        let disk = tempfile::tempdir().unwrap();
        let (device, key) = ensure(&host, &disk);
        let node = Self { host, device, key, number, disk };
        node.place([node.range()]);
        node
    }

    pub fn range(&self) -> IpNet {
        range(self.number)
    }

    pub fn address(&self) -> IpAddr {
        IpAddr::from([10, 244, self.number, 1])
    }

    pub fn place(&self, ranges: impl IntoIterator<Item = IpNet>) {
        let network: IpNet = "10.244.0.0/16".parse().unwrap();
        let place = |range: IpNet| Place { address: range.hosts().next().unwrap(), network };
        let places = ranges.into_iter().map(place).collect();
        self.with(move |device| device.place(&places).unwrap());
    }

    pub fn with<T: Send + 'static>(&self, work: impl FnOnce(&Wireguard) -> T + Send + 'static) -> T {
        let device = Arc::clone(&self.device);
        self.host.run(move || work(&device))
    }

    /// Simulates a restart: reads the key from the disk.
    pub fn restart(&mut self) {
        (self.device, self.key) = ensure(&self.host, &self.disk);
    }

    pub fn seen(&self) -> BTreeMap<PublicKey, PeerState> {
        self.with(|device| device.look().unwrap())
    }

    pub fn peers(&self, want: Peers) -> Vec<Change> {
        self.with(move |device| {
            let have = device.look().unwrap().into_iter().map(|(key, seen)| (key, seen.peer)).collect();
            let changes = diff(&have, &want);
            device.change(&changes).unwrap();
            changes
        })
    }

    /// Endpoint of this node for other nodes, by IPv4 or IPv6.
    pub fn peer(&self, by: &str) -> (PublicKey, Peer) {
        let address: IpAddr = format!("{by}{}", self.number).parse().unwrap();
        let endpoint = Some(SocketAddr::new(address, cluster::MESH_PORT));
        (self.key, Peer { endpoint, allowed: [self.range()].into() })
    }

    pub fn socket(&self, address: IpAddr) -> UdpSocket {
        let socket = self.host.run(move || UdpSocket::bind((address, 0))).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        socket
    }

    /// Sends a packet through the mesh, and returns its source address.
    pub fn reaches(&self, other: &Self, word: &str) -> IpAddr {
        let there = other.socket(other.address());
        self.socket(IpAddr::from([0; 4])).send_to(word.as_bytes(), there.local_addr().unwrap()).unwrap();
        let mut bytes = [0; 64];
        let (length, from) = there.recv_from(&mut bytes).unwrap();
        assert_eq!(&bytes[..length], word.as_bytes());
        from.ip()
    }

    /// Whether the kernel has no peer for the address, which `send` reports at once.
    pub fn is_cut_off_from(&self, other: &Self) -> bool {
        let socket = self.socket(IpAddr::from([0; 4]));
        // `wg_xmit` in drivers/net/wireguard/device.c returns ENOKEY.
        let sent = socket.send_to(b"?", (other.address(), 9));
        matches!(sent, Err(error) if error.raw_os_error() == Some(nix::libc::ENOKEY) || error.kind() == io::ErrorKind::HostUnreachable)
    }
}

pub fn range(number: u8) -> IpNet {
    IpNet::new(IpAddr::from([10, 244, number, 0]), 24).unwrap()
}

fn ensure(host: &Namespace, disk: &TempDir) -> (Arc<Wireguard>, PublicKey) {
    let key = PrivateKey::ensure(&Dir::open(disk.path()).unwrap()).unwrap().into_inner();
    host.run(|| {
        let device = Arc::new(Wireguard::new(key, Link::default()));
        let key = device.ensure().unwrap();
        (device, key)
    })
}

/// Two nodes at the ends of a cable, 192.0.2.NUMBER and 2001:db8::NUMBER. The nodes are not peers.
pub fn two() -> (Node, Node) {
    let (one, two) = (Namespace::new(), Namespace::new());
    let there = two.descriptor();
    one.netlink(async move |netlink| {
        netlink.link().add(LinkVeth::new("cable1", "cable2").build()).execute().await?;
        netlink.link().set(LinkUnspec::new_with_name("cable2").setns_by_fd(there).build()).execute().await
    });
    for (host, number) in [(&one, 1_u8), (&two, 2)] {
        host.netlink(async move |netlink| {
            for name in ["lo", &format!("cable{number}")] {
                netlink.link().set(LinkUnspec::new_with_name(name).up().build()).execute().await?;
            }
            let index = nix::net::if_::if_nametoindex(&*format!("cable{number}")).unwrap();
            let v4 = AddressMessageBuilder::<std::net::Ipv4Addr>::new().address([192, 0, 2, number].into(), 24);
            let v6 = AddressMessageBuilder::<std::net::Ipv6Addr>::new();
            let v6 = v6.address(format!("2001:db8::{number}").parse().unwrap(), 64);
            for message in [v4.index(index).build(), v6.index(index).build()] {
                add_address(&netlink, message).await?;
            }
            Ok(())
        });
    }
    (Node::new(one, 1), Node::new(two, 2))
}

/// Adds an address without duplicate address detection, which takes a second.
async fn add_address(netlink: &rtnetlink::Handle, mut message: AddressMessage) -> Result<(), rtnetlink::Error> {
    message.header.flags |= AddressHeaderFlags::Nodad;
    let mut request = netlink.address().add(message.header.index, IpAddr::from([0; 4]), 0);
    *request.message_mut() = message;
    request.execute().await
}

pub fn mesh() -> (Node, Node) {
    let (one, two) = two();
    one.peers(Peers::from([two.peer("192.0.2.")]));
    two.peers(Peers::from([one.peer("192.0.2.")]));
    (one, two)
}

pub fn index(node: &Node) -> u32 {
    node.host.run(|| nix::net::if_::if_nametoindex(INTERFACE).unwrap())
}
