//! Requests to the kernel, one after the other. netlink(7).
//!
//! Synchronous: the kernel does what a request says before `send` returns, and its answer waits already.

use std::fmt::Debug;
use std::io;

use netlink_packet_core::{
    DecodeError, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader,
    NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use netlink_sys::Socket;
use netlink_sys::protocols::{NETLINK_GENERIC, NETLINK_ROUTE};
use nix::errno::Errno;

/// The longest answer in bytes. The kernel makes dumps in pieces of at most 32 KiB, `netlink_dump`.
const LONGEST: usize = 64 << 10;

/// A list that changes while it is read is read again, so often.
const DUMPS: u32 = 10;

/// Why a request to the kernel failed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// No socket, or it fails.
    #[error("the netlink socket fails")]
    Socket(#[from] io::Error),
    /// The kernel's answer.
    #[error("the kernel refuses it")]
    Refused(#[from] Errno),
    /// The answer is not what it should be.
    #[error("the kernel's answer is not understood")]
    Decode(#[from] DecodeError),
    /// The answer is too long.
    #[error("the kernel's answer is longer than {LONGEST} bytes")]
    TooLong,
    /// A list changed whenever it was read.
    #[error("it changes whenever it is read, {DUMPS} times in a row")]
    Changing,
}

impl RequestError {
    /// The kernel said this.
    pub(crate) fn is(&self, errno: Errno) -> bool {
        matches!(self, Self::Refused(found) if *found == errno)
    }
}

/// A socket.
pub(crate) struct Netlink {
    socket: Socket,
    /// Of the last request.
    number: u32,
}

impl Netlink {
    /// For links, addresses and routes: rtnetlink(7).
    pub(crate) fn route() -> Result<Self, RequestError> {
        Self::open(NETLINK_ROUTE)
    }

    /// For what has no protocol of its own, such as WireGuard.
    pub(crate) fn generic() -> Result<Self, RequestError> {
        Self::open(NETLINK_GENERIC)
    }

    fn open(protocol: isize) -> Result<Self, RequestError> {
        let socket = Socket::new(protocol)?;
        // A refusal does not bring the request back: it may be larger than what is read here.
        socket.set_cap_ack(true)?;
        Ok(Self { socket, number: 0 })
    }

    /// Asks for something, or says what is to be done. `flags` are those of the request's kind.
    pub(crate) fn request<M>(&mut self, message: M, flags: u16) -> Result<Vec<M>, RequestError>
    where
        M: NetlinkSerializable + NetlinkDeserializable + Debug,
    {
        self.send(message, NLM_F_ACK | flags)?;
        self.answer().map(|(answer, _)| answer)
    }

    /// Asks for a list.
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

    /// Reads up to the last message of the answer.
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
                // Messages begin at multiples of 4; the last one may end anywhere.
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

/// Whether a list was read at one time, as it were.
enum Consistent {
    Yes,
    No,
}

/// A request as it is sent.
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
