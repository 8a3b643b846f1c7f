//! Formats and parses DHCP messages, RFC 2131 and RFC 2132.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use cluster::address::{self, reaches};

use crate::lease::Lease;

pub(crate) const CLIENT_PORT: u16 = 68;

pub(crate) type Hardware = [u8; 6];

/// Length of the fixed part before the options.
const HEAD: usize = 236;
const COOKIE: [u8; 4] = [99, 130, 83, 99];
/// Ranges of the fields that may contain more options.
const SERVER_NAME: std::ops::Range<usize> = 44..108;
const FILE: std::ops::Range<usize> = 108..236;
/// Minimum length; BOOTP relays drop shorter messages, RFC 1542.
const SHORTEST: usize = 300;

const BOOTREQUEST: u8 = 1;
const BOOTREPLY: u8 = 2;
const ETHERNET: u8 = 1;
const HARDWARE_LENGTH: u8 = 6;
/// Broadcast flag: without an address, a UDP socket receives only broadcasts.
const BROADCAST: u16 = 0x8000;

mod option {
    pub(super) const PAD: u8 = 0;
    pub(super) const MASK: u8 = 1;
    pub(super) const ROUTER: u8 = 3;
    pub(super) const NAME_SERVERS: u8 = 6;
    pub(super) const MTU: u8 = 26;
    pub(super) const TIME_SERVERS: u8 = 42;
    pub(super) const REQUESTED: u8 = 50;
    pub(super) const LEASE_TIME: u8 = 51;
    pub(super) const OVERLOAD: u8 = 52;
    pub(super) const KIND: u8 = 53;
    pub(super) const SERVER: u8 = 54;
    pub(super) const WANTED: u8 = 55;
    pub(super) const LARGEST: u8 = 57;
    pub(super) const RENEWAL: u8 = 58;
    pub(super) const REBINDING: u8 = 59;
    pub(super) const CLIENT: u8 = 61;
    pub(super) const END: u8 = 255;
}

const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
const REQUEST: u8 = 3;
const ACK: u8 = 5;
const NAK: u8 = 6;

/// Maximum number of servers of each kind in a lease, in order of preference. CoreDNS does not start with more than 15
/// name servers, and each time server that does not answer delays the next one by seconds.
const SERVERS: usize = 8;

/// Maximum size of a message; every host must accept 576 bytes.
pub(crate) const LARGEST: usize = 1472;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Requests offers, if possible of the previous address.
    Discover {
        wished: Option<Ipv4Addr>,
    },
    Take {
        address: Ipv4Addr,
        server: Ipv4Addr,
    },
    Keep {
        address: Ipv4Addr,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) purpose: Purpose,
    /// Transaction ID, which the answer repeats.
    pub(crate) transaction: u32,
    /// Time since the client started to ask.
    pub(crate) elapsed: Duration,
    pub(crate) hardware: Hardware,
}

impl Request {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let seconds = u16::try_from(self.elapsed.as_secs()).unwrap_or(u16::MAX);
        let (flags, own) = match self.purpose {
            Purpose::Keep { address } => (0, address),
            Purpose::Discover { .. } | Purpose::Take { .. } => (BROADCAST, Ipv4Addr::UNSPECIFIED),
        };
        let mut bytes = vec![BOOTREQUEST, ETHERNET, HARDWARE_LENGTH, 0];
        bytes.extend(self.transaction.to_be_bytes());
        bytes.extend(seconds.to_be_bytes());
        bytes.extend(flags.to_be_bytes());
        bytes.extend(own.octets());
        bytes.extend([0; 12]);
        bytes.extend(self.hardware);
        bytes.resize(HEAD, 0);
        bytes.extend(COOKIE);
        let mut add = |code: u8, value: &[u8]| {
            bytes.extend([code, u8::try_from(value.len()).unwrap_or(u8::MAX)]);
            bytes.extend(value);
        };
        let kind = if matches!(self.purpose, Purpose::Discover { .. }) { DISCOVER } else { REQUEST };
        add(option::KIND, &[kind]);
        let [a, b, c, d, e, f] = self.hardware;
        add(option::CLIENT, &[ETHERNET, a, b, c, d, e, f]);
        match self.purpose {
            Purpose::Discover { wished: None } | Purpose::Keep { .. } => {}
            Purpose::Discover { wished: Some(address) } => add(option::REQUESTED, &address.octets()),
            Purpose::Take { address, server } => {
                add(option::REQUESTED, &address.octets());
                add(option::SERVER, &server.octets());
            }
        }
        add(option::LARGEST, &u16::try_from(LARGEST).unwrap_or(u16::MAX).to_be_bytes());
        let wanted =
            [option::MASK, option::ROUTER, option::NAME_SERVERS, option::MTU, option::TIME_SERVERS, option::RENEWAL];
        add(option::WANTED, &[wanted.as_slice(), &[option::REBINDING]].concat());
        bytes.push(option::END);
        bytes.resize(bytes.len().max(SHORTEST), option::PAD);
        bytes
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) answer: Answer,
    pub(crate) transaction: u32,
    pub(crate) hardware: Hardware,
    pub(crate) server: Ipv4Addr,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Offer(Lease),
    Acknowledge(Lease),
    Nak,
}

/// The bytes are not a valid message of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReplyError {
    #[error("the message is truncated")]
    Short,
    /// BOOTP without DHCP, a request, or another protocol.
    #[error("not an answer of a DHCP server to an Ethernet device")]
    Other,
    #[error("the address of the server is missing")]
    NoServer,
    /// The lease lacks a duration or a valid address.
    #[error("no usable {0}")]
    Unusable(&'static str),
}

impl Reply {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, ReplyError> {
        let (head, rest) = bytes.split_at_checked(HEAD).ok_or(ReplyError::Short)?;
        let rest = rest.strip_prefix(&COOKIE).ok_or(ReplyError::Other)?;
        if head[..3] != [BOOTREPLY, ETHERNET, HARDWARE_LENGTH] {
            return Err(ReplyError::Other);
        }
        let options = options(head, rest);
        let field = |at: usize| <[u8; 4]>::try_from(&head[at..at + 4]).map_err(|_| ReplyError::Short);
        let hardware = Hardware::try_from(&head[28..34]).map_err(|_| ReplyError::Short)?;
        let server = address(&options, option::SERVER).ok_or(ReplyError::NoServer)?;
        let yours = Ipv4Addr::from(field(16)?);
        let answer = match options.get(&option::KIND).map(Vec::as_slice) {
            Some([OFFER]) => Answer::Offer(lease(yours, server, &options)?),
            Some([ACK]) => Answer::Acknowledge(lease(yours, server, &options)?),
            Some([NAK]) => Answer::Nak,
            _ => return Err(ReplyError::Other),
        };
        Ok(Self { answer, transaction: u32::from_be_bytes(field(4)?), hardware, server })
    }
}

type Options = BTreeMap<u8, Vec<u8>>;

/// Concatenates the parts of each option, RFC 3396.
fn options(head: &[u8], rest: &[u8]) -> Options {
    let mut all = Options::new();
    collect(rest, &mut all);
    let overload = all.get(&option::OVERLOAD).and_then(|value| value.first()).copied().unwrap_or(0);
    if overload & 1 != 0 {
        collect(&head[FILE], &mut all);
    }
    if overload & 2 != 0 {
        collect(&head[SERVER_NAME], &mut all);
    }
    all
}

/// Collects options up to the first truncated one.
fn collect(mut bytes: &[u8], all: &mut Options) {
    while let [code, rest @ ..] = bytes {
        bytes = match (*code, rest) {
            (option::PAD, rest) => rest,
            (option::END, _) | (_, []) => return,
            (code, [length, rest @ ..]) => {
                let Some((value, rest)) = rest.split_at_checked(usize::from(*length)) else { return };
                all.entry(code).or_default().extend(value);
                rest
            }
        };
    }
}

fn addresses(options: &Options, code: u8) -> Vec<Ipv4Addr> {
    let value = options.get(&code).map_or(&[][..], Vec::as_slice);
    let all = value.chunks_exact(4).filter_map(|octets| Some(Ipv4Addr::from(<[u8; 4]>::try_from(octets).ok()?)));
    all.filter(|address| !address.is_unspecified()).collect()
}

fn address(options: &Options, code: u8) -> Option<Ipv4Addr> {
    addresses(options, code).first().copied()
}

fn number<const N: usize>(options: &Options, code: u8) -> Option<[u8; N]> {
    options.get(&code)?.as_slice().try_into().ok()
}

fn seconds(options: &Options, code: u8) -> Option<Duration> {
    Some(Duration::from_secs(u32::from_be_bytes(number(options, code)?).into()))
}

fn lease(yours: Ipv4Addr, server: Ipv4Addr, options: &Options) -> Result<Lease, ReplyError> {
    let mask = number(options, option::MASK).map(u32::from_be_bytes).ok_or(ReplyError::Unusable("network mask"))?;
    let prefix = mask.leading_ones();
    if mask.checked_shl(prefix).unwrap_or(0) != 0 {
        return Err(ReplyError::Unusable("network mask"));
    }
    let interface = address::interface(&format!("{yours}/{prefix}"));
    let interface = interface.map_err(|_| ReplyError::Unusable("address for the node"))?;
    let servers = |code| addresses(options, code).into_iter().take(SERVERS).collect();
    let time = number(options, option::LEASE_TIME).map(u32::from_be_bytes).ok_or(ReplyError::Unusable("lease time"))?;
    Ok(Lease {
        interface,
        server,
        gateway: addresses(options, option::ROUTER).into_iter().find(|router| reaches(interface, *router)),
        name_servers: servers(option::NAME_SERVERS),
        time_servers: servers(option::TIME_SERVERS),
        // The minimum MTU of IP is 68; some servers send 0.
        mtu: number(options, option::MTU).map(u16::from_be_bytes).filter(|mtu| *mtu >= 576),
        // All ones means infinite.
        time: (time != u32::MAX).then(|| Duration::from_secs(time.into())),
        renewal: seconds(options, option::RENEWAL),
        rebinding: seconds(options, option::REBINDING),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    const HARDWARE: Hardware = [0x52, 0x54, 0, 1, 2, 3];

    pub(crate) fn reply(transaction: u32, hardware: Hardware, yours: [u8; 4], options: &[(u8, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; HEAD];
        bytes[..3].copy_from_slice(&[BOOTREPLY, ETHERNET, HARDWARE_LENGTH]);
        bytes[4..8].copy_from_slice(&transaction.to_be_bytes());
        bytes[16..20].copy_from_slice(&yours);
        bytes[28..34].copy_from_slice(&hardware);
        bytes.extend(COOKIE);
        for (code, value) in options {
            bytes.extend([*code, u8::try_from(value.len()).unwrap()]);
            bytes.extend(*value);
        }
        bytes.push(option::END);
        bytes
    }

    fn offer(more: &[(u8, &[u8])]) -> Vec<u8> {
        let mut options: Vec<(u8, &[u8])> = vec![
            (option::KIND, &[OFFER]),
            (option::SERVER, &[10, 0, 2, 2]),
            (option::MASK, &[255, 255, 255, 0]),
            (option::LEASE_TIME, &[0, 1, 81, 128]),
        ];
        options.retain(|(code, _)| more.iter().all(|(other, _)| other != code));
        options.extend(more);
        reply(7, HARDWARE, [10, 0, 2, 15], &options)
    }

    fn offered(bytes: &[u8]) -> Result<Lease, ReplyError> {
        match Reply::parse(bytes)?.answer {
            Answer::Offer(lease) => Ok(lease),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_offer_is_parsed() {
        let bytes = offer(&[
            (option::ROUTER, &[10, 9, 9, 9, 10, 0, 2, 2]),
            (option::NAME_SERVERS, &[10, 0, 2, 3, 10, 0, 2, 4]),
            (option::TIME_SERVERS, &[10, 0, 2, 5]),
            (option::MTU, &[5, 120]),
            (option::RENEWAL, &[0, 0, 0, 60]),
        ]);
        let reply = Reply::parse(&bytes).unwrap();
        assert_eq!((reply.transaction, reply.hardware, reply.server), (7, HARDWARE, Ipv4Addr::new(10, 0, 2, 2)));
        let lease = offered(&bytes).unwrap();
        assert_eq!(lease.interface.to_string(), "10.0.2.15/24");
        // The first router is in another network.
        assert_eq!(lease.gateway, Some(Ipv4Addr::new(10, 0, 2, 2)));
        assert_eq!(lease.name_servers.len(), 2);
        assert_eq!(lease.time_servers, [Ipv4Addr::new(10, 0, 2, 5)]);
        assert_eq!(lease.mtu, Some(1400));
        assert_eq!(lease.time, Some(Duration::from_secs(86_400)));
        assert_eq!((lease.renewal, lease.rebinding), (Some(Duration::from_secs(60)), None));
    }

    #[test]
    fn options_may_continue_in_other_fields() {
        let mut bytes = offer(&[(option::OVERLOAD, &[1]), (option::NAME_SERVERS, &[10, 0])]);
        bytes[FILE][..5].copy_from_slice(&[option::NAME_SERVERS, 2, 2, 3, option::END]);
        assert_eq!(offered(&bytes).unwrap().name_servers, [Ipv4Addr::new(10, 0, 2, 3)]);
    }

    /// Regression: CoreDNS did not start with 16 name servers.
    #[test]
    fn the_first_servers_of_many_are_used() {
        let all: Vec<u8> = (1..=40).flat_map(|last| [10, 0, 2, last]).collect();
        let lease = offered(&offer(&[(option::NAME_SERVERS, &all), (option::TIME_SERVERS, &all)])).unwrap();
        let first: Vec<Ipv4Addr> = (1..=8).map(|last| Ipv4Addr::new(10, 0, 2, last)).collect();
        assert_eq!((lease.name_servers, lease.time_servers), (first.clone(), first));
    }

    #[test]
    fn an_unusable_offer_is_rejected() {
        for (option, value, reason) in [
            (option::MASK, &[255, 0, 255, 0][..], ReplyError::Unusable("network mask")),
            (option::MASK, &[0, 0, 0, 0], ReplyError::Unusable("address for the node")),
            (option::MASK, &[255], ReplyError::Unusable("network mask")),
            (option::LEASE_TIME, &[1], ReplyError::Unusable("lease time")),
            (option::SERVER, &[0, 0, 0, 0], ReplyError::NoServer),
            (option::KIND, &[DISCOVER], ReplyError::Other),
        ] {
            assert_eq!(Reply::parse(&offer(&[(option, value)])), Err(reason), "{option}: {value:?}");
        }
        let mut bytes = offer(&[]);
        bytes[16..20].copy_from_slice(&[127, 0, 0, 1]);
        assert_eq!(Reply::parse(&bytes), Err(ReplyError::Unusable("address for the node")));
        assert_eq!(Reply::parse(&bytes[..HEAD - 1]), Err(ReplyError::Short));
    }

    #[test]
    fn a_request_contains_device_and_requested_address() {
        let purpose = Purpose::Take { address: Ipv4Addr::new(10, 0, 2, 15), server: Ipv4Addr::new(10, 0, 2, 2) };
        let request = Request { purpose, transaction: 7, elapsed: Duration::from_secs(3), hardware: HARDWARE };
        let bytes = request.encode();
        assert!(bytes.len() >= SHORTEST);
        assert_eq!(bytes[..12], [1, 1, 6, 0, 0, 0, 0, 7, 0, 3, 0x80, 0]);
        assert_eq!(bytes[28..34], HARDWARE);
        let options = options(&bytes[..HEAD], bytes[HEAD..].strip_prefix(&COOKIE).unwrap());
        assert_eq!(options[&option::KIND], [REQUEST]);
        assert_eq!(options[&option::REQUESTED], [10, 0, 2, 15]);
        assert_eq!(options[&option::SERVER], [10, 0, 2, 2]);
        // To extend a lease, the client uses its address and receives unicasts.
        let purpose = Purpose::Keep { address: Ipv4Addr::new(10, 0, 2, 15) };
        let bytes = Request { purpose, ..request }.encode();
        assert_eq!(bytes[10..16], [0, 0, 10, 0, 2, 15]);
    }

    proptest! {
        #[test]
        fn parsing_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..600), tail: Vec<u8>) {
            let _ = Reply::parse(&bytes);
            let mut bytes = offer(&[]);
            bytes.pop();
            bytes.extend(tail);
            let _ = Reply::parse(&bytes);
        }
    }
}
