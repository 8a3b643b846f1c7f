//! Synchronous netlink requests, netlink(7).
//!
//! The kernel processes a request before `send` returns, so its response is already queued.

use std::fmt::Debug;
use std::io;

use netlink_packet_core::{
    DecodeError, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader,
    NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use netlink_sys::Socket;
use netlink_sys::protocols::{NETLINK_GENERIC, NETLINK_ROUTE};
use nix::errno::Errno;

/// Maximum size of a response in bytes. The kernel splits dumps at 32 KiB, `netlink_dump`.
const LONGEST: usize = 64 << 10;

/// Maximum number of reads of a dump that changes during each read.
const DUMPS: u32 = 10;

#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("netlink socket failed")]
    Socket(#[from] io::Error),
    #[error("the kernel rejected the request")]
    Kernel(#[from] Errno),
    #[error("the answer of the kernel is invalid")]
    Decode(#[from] DecodeError),
    #[error("the answer of the kernel exceeds {LONGEST} bytes")]
    TooLong,
    /// A dump was inconsistent in all attempts.
    #[error("the listed objects changed during each of {DUMPS} reads")]
    Changing,
}

impl RequestError {
    pub(crate) fn is(&self, errno: Errno) -> bool {
        matches!(self, Self::Kernel(found) if *found == errno)
    }
}

pub(crate) struct Netlink {
    socket: Socket,
    number: u32,
}

impl Netlink {
    pub(crate) fn route() -> Result<Self, RequestError> {
        Self::open(NETLINK_ROUTE)
    }

    pub(crate) fn generic() -> Result<Self, RequestError> {
        Self::open(NETLINK_GENERIC)
    }

    fn open(protocol: isize) -> Result<Self, RequestError> {
        let socket = Socket::new(protocol)?;
        // Omit the request from error responses, because it may be larger than the receive buffer.
        socket.set_cap_ack(true)?;
        Ok(Self { socket, number: 0 })
    }

    pub(crate) fn request<M>(&mut self, message: M, flags: u16) -> Result<Vec<M>, RequestError>
    where
        M: NetlinkSerializable + NetlinkDeserializable + Debug,
    {
        self.send(message, NLM_F_ACK | flags)?;
        self.answer().map(|(answer, _)| answer)
    }

    pub(crate) fn dump<M>(&mut self, message: &M) -> Result<Vec<M>, RequestError>
    where
        M: NetlinkSerializable + NetlinkDeserializable + Debug + Clone,
    {
        for _ in 0..DUMPS {
            self.send(message.clone(), NLM_F_DUMP)?;
            if let (answer, Consistent::Yes) = self.answer()? {
                return Ok(answer);
            }
        }
        Err(RequestError::Changing)
    }

    fn send<M: NetlinkSerializable>(&mut self, message: M, flags: u16) -> Result<(), RequestError> {
        self.number += 1;
        self.socket.send(&frame(message, flags, self.number), 0)?;
        Ok(())
    }

    fn answer<M: NetlinkDeserializable + Debug>(&self) -> Result<(Vec<M>, Consistent), RequestError> {
        let mut found = Vec::new();
        let mut consistent = Consistent::Yes;
        loop {
            let mut bytes = Vec::with_capacity(LONGEST);
            let length = self.socket.recv(&mut bytes, 0)?;
            if length >= LONGEST {
                return Err(RequestError::TooLong);
            }
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let message = NetlinkMessage::<M>::deserialize(rest)?;
                // Messages are aligned to 4 bytes, except for the end of the last one.
                let length = (message.header.length as usize).next_multiple_of(4).clamp(4, rest.len().max(4));
                rest = rest.get(length..).unwrap_or_default();
                if message.header.sequence_number != self.number {
                    continue;
                }
                if message.header.flags & NLM_F_DUMP_INTR != 0 {
                    consistent = Consistent::No;
                }
                let end = match message.payload {
                    NetlinkPayload::InnerMessage(inner) => {
                        found.push(inner);
                        continue;
                    }
                    NetlinkPayload::Error(error) => error.raw_code(),
                    NetlinkPayload::Done(done) => done.code,
                    _ => continue,
                };
                return if end == 0 { Ok((found, consistent)) } else { Err(Errno::from_raw(-end).into()) };
            }
        }
    }
}

enum Consistent {
    Yes,
    No,
}

pub(crate) fn frame<M: NetlinkSerializable>(message: M, flags: u16, number: u32) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    header.sequence_number = number;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}
