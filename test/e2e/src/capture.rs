//! Network frames in a pcap file of QEMU's `filter-dump`.

use etherparse::err::packet::SliceError;
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use launch::StepError;
use std::error::Error;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

/// Magic number of pcap with microseconds, in native byte order. The version, other numbers, and the link type follow.
const MAGIC: u32 = 0xa1b2_c3d4;
const HEAD: usize = 24;
const LINK: usize = 20;
const ETHERNET: u32 = 1;
/// Size of a record header: seconds, microseconds, length in the file, length on the wire.
const RECORD: usize = 16;
const LENGTH: usize = 8;

#[derive(Debug, Default)]
pub struct Capture {
    pub packets: Vec<Packet>,
    frames: Vec<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub transport: Transport,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Tcp(u16, u16),
    Udp(u16, u16),
    /// ICMPv6, which includes the neighbor discovery of IPv6 (RFC 4861).
    Icmpv6,
    Other,
}

impl Capture {
    /// Reads a capture, which QEMU may still write. An incomplete frame at the end is left out.
    pub fn read(path: &Path) -> Result<Self, StepError> {
        let step = format!("read the capture {}", path.display());
        let file = fs::read(path).map_err(StepError::of(&step))?;
        Self::parse(&file).map_err(StepError::of(step))
    }

    fn parse(file: &[u8]) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let (head, mut rest) = file.split_at_checked(HEAD).ok_or("it has no header")?;
        if number(head, 0) != Some(MAGIC) || number(head, LINK) != Some(ETHERNET) {
            return Err("it is not of Ethernet frames by a machine of this kind".into());
        }
        let mut capture = Self::default();
        while let Some((record, after)) = rest.split_at_checked(RECORD)
            && let Some(length) = number(record, LENGTH).and_then(|length| usize::try_from(length).ok())
            && let Some((frame, after)) = after.split_at_checked(length)
        {
            capture.packets.extend(packet(frame)?);
            capture.frames.push(frame.to_owned());
            rest = after;
        }
        Ok(capture)
    }

    /// Whether a frame contains the text unencrypted.
    pub fn shows(&self, text: &str) -> bool {
        self.frames.iter().any(|frame| frame.windows(text.len()).any(|part| part == text.as_bytes()))
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|number| u32::from_ne_bytes(*number))
}

fn packet(frame: &[u8]) -> Result<Option<Packet>, SliceError> {
    let sliced = SlicedPacket::from_ethernet(frame)?;
    let (source, destination) = match &sliced.net {
        Some(NetSlice::Ipv4(ip)) => (ip.header().source_addr().into(), ip.header().destination_addr().into()),
        Some(NetSlice::Ipv6(ip)) => (ip.header().source_addr().into(), ip.header().destination_addr().into()),
        Some(NetSlice::Arp(_)) | None => return Ok(None),
    };
    let transport = match &sliced.transport {
        Some(TransportSlice::Tcp(tcp)) => Transport::Tcp(tcp.source_port(), tcp.destination_port()),
        Some(TransportSlice::Udp(udp)) => Transport::Udp(udp.source_port(), udp.destination_port()),
        Some(TransportSlice::Icmpv6(_)) => Transport::Icmpv6,
        Some(TransportSlice::Icmpv4(_) | TransportSlice::Igmp(_)) | None => Transport::Other,
    };
    Ok(Some(Packet { source, destination, transport }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::PacketBuilder;

    const ONE: [u8; 4] = [192, 0, 2, 1];
    const TWO: [u8; 4] = [192, 0, 2, 2];

    fn frame(payload: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4(ONE, TWO, 64).udp(7838, 40);
        builder.write(&mut frame, payload).unwrap();
        frame
    }

    #[test]
    fn a_capture_is_read_to_its_last_whole_frame() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("capture.pcap");
        let mut written: Vec<u8> = [MAGIC, 0, 0, 0, 0, ETHERNET].into_iter().flat_map(u32::to_ne_bytes).collect();
        for payload in [&b"hello"[..], b"more"] {
            let frame = frame(payload);
            let length = u32::try_from(frame.len()).unwrap();
            written.extend([0, 0, length, length].into_iter().flat_map(u32::to_ne_bytes));
            written.extend(frame);
        }
        fs::write(&path, &written).unwrap();
        let whole = Capture::read(&path).unwrap();
        let wanted = Packet { source: ONE.into(), destination: TWO.into(), transport: Transport::Udp(7838, 40) };
        assert_eq!(whole.packets, [wanted; 2]);
        assert!(whole.shows("hello") && !whole.shows("hello, more"));

        fs::write(&path, &written[..written.len() - 1]).unwrap();
        assert_eq!(Capture::read(&path).unwrap().packets, [wanted]);
    }

    #[test]
    fn packets_of_ipv6_are_seen_too() {
        let [one, two] = [1, 2].map(|last| [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        let from = || PacketBuilder::ethernet2([2; 6], [4; 6]).ipv6(one, two, 255);
        let transport = |frame: &[u8]| packet(frame).unwrap().map(|packet| (packet.source, packet.transport));
        let mut frame = Vec::new();
        from().tcp(1, 2, 3, 4).write(&mut frame, b"hello").unwrap();
        assert_eq!(transport(&frame), Some((one.into(), Transport::Tcp(1, 2))));
        frame.clear();
        from().icmpv6_echo_request(1, 2).write(&mut frame, &[]).unwrap();
        assert_eq!(transport(&frame), Some((one.into(), Transport::Icmpv6)));
    }

    #[test]
    fn an_invalid_capture_is_named() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("capture.pcap");
        fs::write(&path, "no capture, and long enough for a head").unwrap();
        let error = envtest::chain(&Capture::read(&path).unwrap_err());
        assert!(error.contains("capture.pcap") && error.contains("it is not of Ethernet frames"), "{error}");
    }
}
