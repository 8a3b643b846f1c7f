//! The kernel's state of an interface, decoded without the code under test.
//!
//! The lines are those of `wg show INTERFACE dump` without private key, handshake time and bytes.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ktest_support::Namespace;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};

const WG: &str = "/usr/bin/wg";

/// The peers, sorted: key, endpoint, ranges.
pub fn peers(host: &Namespace, interface: &'static str) -> Vec<String> {
    let peers = host.run(move || read(interface));
    assert_eq!(peers, host.run(move || by_tool(interface)), "wg show agrees");
    peers
}

/// Per peer from `wg`: time of the last handshake in seconds, bytes received, bytes sent.
pub fn traffic(host: &Namespace, interface: &'static str) -> Vec<(String, [u64; 3])> {
    let lines = host.run(move || shown(interface));
    let number = |text: &String| text.parse().expect("a number");
    lines.iter().map(|peer| (peer[0].clone(), [4, 5, 6].map(|field| number(&peer[field])))).collect()
}

fn by_tool(interface: &str) -> Vec<String> {
    let line = |fields: Vec<String>| {
        let mut ranges: Vec<&str> = fields[3].split(',').collect();
        ranges.sort_unstable();
        format!("{} {} {}", fields[0], fields[2], ranges.join(","))
    };
    let mut peers: Vec<String> = shown(interface).into_iter().map(line).collect();
    peers.sort();
    peers
}

/// The fields of each peer.
fn shown(interface: &str) -> Vec<Vec<String>> {
    let output = Command::new(WG).args(["show", interface, "dump"]).output().expect("wg runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    // The first line describes the interface.
    text.lines().skip(1).map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

fn read(interface: &str) -> Vec<String> {
    let socket =
        socket(AddressFamily::Netlink, SockType::Datagram, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkGeneric)
            .expect("a netlink socket");
    // CTRL_CMD_GETFAMILY of genetlink's controller, by CTRL_ATTR_FAMILY_NAME.
    let answer = ask(&socket, 16, 3, &attribute(2, b"wireguard\0"), 0);
    let family = attributes(&answer[0]).find(|(kind, _)| *kind == 1).map(|(_, value)| number(value)).expect("a family");
    // WG_CMD_GET_DEVICE as a dump, by WGDEVICE_A_IFNAME.
    let name = [interface.as_bytes(), b"\0"].concat();
    let answer = ask(&socket, u16::try_from(family).unwrap(), 0, &attribute(2, &name), 0x300);
    let mut peers: Vec<(String, String, Vec<String>)> = vec![];
    for (_, all) in answer.iter().flat_map(|message| attributes(message)).filter(|(kind, _)| *kind == 8) {
        for (_, peer) in attributes(all) {
            let of = |wanted| attributes(peer).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
            let key = STANDARD.encode(of(1).expect("a peer has a key"));
            let ranges = of(9).into_iter().flat_map(attributes).map(|(_, range)| text(range));
            match peers.last_mut() {
                // The peer continues in another message.
                Some((last, _, before)) if *last == key => before.extend(ranges),
                _ => peers.push((key, of(4).map_or("(none)".into(), endpoint), ranges.collect())),
            }
        }
    }
    let mut lines: Vec<String> = peers
        .into_iter()
        .map(|(key, endpoint, mut ranges)| {
            ranges.sort();
            let ranges = if ranges.is_empty() { "(none)".to_owned() } else { ranges.join(",") };
            format!("{key} {endpoint} {ranges}")
        })
        .collect();
    lines.sort();
    lines
}

/// The attributes of all messages of the answer, after the two headers.
fn ask(socket: &OwnedFd, kind: u16, command: u8, attributes: &[u8], flags: u16) -> Vec<Vec<u8>> {
    let mut request = vec![];
    request.extend(u32::try_from(20 + attributes.len()).unwrap().to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    // NLM_F_REQUEST | NLM_F_ACK: every answer ends with an acknowledgement or NLMSG_DONE.
    request.extend((flags | 5).to_ne_bytes());
    request.extend([0; 8]);
    request.extend([command, 1, 0, 0]);
    request.extend(attributes);
    send(socket.as_raw_fd(), &request, MsgFlags::empty()).expect("the kernel takes it");
    let mut messages = vec![];
    loop {
        let mut bytes = vec![0; 1 << 16];
        let length = recv(socket.as_raw_fd(), &mut bytes, MsgFlags::empty()).expect("an answer");
        let mut rest = &bytes[..length];
        while rest.len() >= 16 {
            let length = usize::try_from(number(&rest[..4])).unwrap();
            let (message, kind) = (&rest[..length], number(&rest[4..6]));
            // NLMSG_ERROR, NLMSG_DONE.
            if kind == 2 || kind == 3 {
                assert_eq!(message[16..20], [0; 4], "the kernel rejected {command}");
                return messages;
            }
            messages.push(message[20..].to_vec());
            rest = &rest[length.next_multiple_of(4).min(rest.len())..];
        }
    }
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap();
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::try_from(number(bytes.get(..2)?)).unwrap();
        // Without NLA_F_NESTED and NLA_F_NET_BYTEORDER.
        let kind = number(&bytes[2..4]) & 0x3fff;
        let value = &bytes[4..length];
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
        Some((kind, value))
    })
}

fn number(bytes: &[u8]) -> u64 {
    match *bytes {
        [one] => one.into(),
        [one, two] => u16::from_ne_bytes([one, two]).into(),
        [one, two, three, four] => u32::from_ne_bytes([one, two, three, four]).into(),
        ref other => panic!("no number: {other:?}"),
    }
}

/// `struct sockaddr_in` and `sockaddr_in6`.
fn endpoint(bytes: &[u8]) -> String {
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    match bytes.len() {
        16 => format!("{}:{port}", ip(&bytes[4..8])),
        28 => format!("[{}]:{port}", ip(&bytes[8..24])),
        other => panic!("no address of {other} bytes"),
    }
}

fn text(range: &[u8]) -> String {
    let of = |wanted| attributes(range).find(|(kind, _)| *kind == wanted).map(|(_, value)| value).expect("a range");
    format!("{}/{}", ip(of(2)), number(of(3)))
}

fn ip(bytes: &[u8]) -> String {
    match bytes.len() {
        4 => Ipv4Addr::from(<[u8; 4]>::try_from(bytes).unwrap()).to_string(),
        _ => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).unwrap()).to_string(),
    }
}
