//! Bytes that are not messages.

use std::io::Write as _;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use conformity::{Case, answer, connect, hold, with_case};
use futures::future::join_all;
use proptest::collection::vec;
use proptest::prelude::*;
use prost::bytes::{Buf as _, BufMut as _};
use proto::csi::ProbeRequest;
use proto::csi::identity_client::IdentityClient;
use proto::registration::InfoRequest;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::drawn::for_each;

const SEED: [u8; 32] = *b"bytes that are not messages.....";
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Fails unless the plugin answers on an existing connection, on a new one, and on the registration socket.
async fn goes_on(case: &Case<'_>) -> Result<(), Code> {
    let channel = connect(case.node().socket()).await.expect("connect");
    for mut client in [case.node().identity(), IdentityClient::new(channel)] {
        assert_eq!(answer(client.probe(ProbeRequest {}).await)?.ready, Some(true));
    }
    answer(case.node().registration().await.get_info(InfoRequest {}).await)?;
    Ok(())
}

fn sockets(case: &Case<'_>) -> [PathBuf; 2] {
    [case.node().socket(), case.node().registration_socket()]
}

fn open(socket: &Path) -> UnixStream {
    UnixStream::connect(socket).expect("connect")
}

/// Random bytes, also after a valid start of a connection. Each connection is shut down, or stays open without another
/// byte.
#[test]
fn noise_on_the_sockets_stops_nothing() {
    with_case(|case| {
        let beginning = prop_oneof![Just(0), Just(7), Just(PREFACE.len())];
        // Bytes that resemble frames: a length that may be wrong, a kind, flags, a stream.
        let frame = (0..64_u8, 0..12_u8, any::<u8>(), 0..8_u8, vec(any::<u8>(), 0..64)).prop_map(
            |(length, kind, flags, stream, payload)| {
                [&[0, 0, length, kind, flags, 0, 0, 0, stream][..], &payload].concat()
            },
        );
        let noise = prop_oneof![vec(any::<u8>(), 0..1024), vec(frame, 1..8).prop_map(|frames| frames.concat())];
        let strategy = vec((beginning, noise, any::<bool>()), 1..10);
        for_each(&SEED, &strategy, |connections| {
            let mut held = Vec::new();
            for (beginning, noise, whole) in connections {
                for socket in sockets(case) {
                    let mut stream = open(&socket);
                    // The server may have closed the connection.
                    let _ = stream.write_all(&PREFACE[..beginning]).and_then(|()| stream.write_all(&noise));
                    if whole {
                        let _ = stream.shutdown(Shutdown::Write);
                    }
                    held.push(stream);
                }
            }
            prop_assert_eq!(case.node().block_on(goes_on(case)), Ok(()));
            Ok(())
        });
    });
}

/// Clients that connect and then send nothing, or stop within the preface.
#[test]
fn half_open_connections_do_not_delay_others() {
    hold(async |case| {
        let mut held = Vec::new();
        for said in [0, 7, PREFACE.len()] {
            for socket in sockets(case) {
                let mut stream = open(&socket);
                stream.write_all(&PREFACE[..said]).expect("write");
                held.push(stream);
            }
        }
        goes_on(case).await.expect("it goes on");
        drop(held);
        goes_on(case).await.expect("it goes on");
    });
}

/// The server limits its connections. It serves further connections when accepted ones have ended.
#[test]
fn more_connections_than_there_are_places_end_nothing() {
    with_case(|case| {
        let held: Vec<_> = (0..100).flat_map(|_| sockets(case)).map(|socket| open(&socket)).collect();
        let ready = answer(case.node().block_on(case.node().identity().probe(ProbeRequest {})));
        assert_eq!(ready.expect("probe").ready, Some(true));
        drop(held);
        case.node().block_on(goes_on(case)).expect("it goes on");
    });
}

/// Codec that sends bytes unchanged, and accepts any answer.
#[derive(Clone, Copy, Debug, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = ();
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, bytes: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&bytes);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = ();
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
        buffer.advance(buffer.remaining());
        Ok(Some(()))
    }
}

pub async fn call(channel: Channel, path: &'static str, bytes: Vec<u8>) -> Code {
    let mut client = Grpc::new(channel);
    client.ready().await.expect("a connection");
    let answered = client.unary(Request::new(bytes), PathAndQuery::from_static(path), Raw).await;
    answered.map_or_else(|status| status.code(), |_| Code::Ok)
}

const METHODS: [&str; 4] = [
    "/csi.v1.Node/NodePublishVolume",
    "/csi.v1.Node/NodeUnpublishVolume",
    "/csi.v1.Node/NodeGetVolumeStats",
    "/csi.v1.Node/NodeExpandVolume",
];

/// The gRPC library rejects invalid protobuf with INTERNAL, as in other languages. Valid protobuf is a message without
/// the required fields.
#[test]
fn invalid_bytes_are_rejected() {
    with_case(|case| {
        let strategy = vec((0..METHODS.len(), vec(any::<u8>(), 0..300)), 1..10);
        for_each(&SEED, &strategy, |calls| {
            let calls = calls.into_iter().map(|(method, bytes)| call(case.node().channel(), METHODS[method], bytes));
            let codes = case.node().block_on(join_all(calls));
            let allowed = |code: &Code| matches!(code, Code::InvalidArgument | Code::Internal);
            prop_assert!(codes.iter().all(allowed), "{codes:?}");
            Ok(())
        });
        case.node().block_on(goes_on(case)).expect("it goes on");
    });
}

/// Field 1 is invalid UTF-8, a number, and longer than the message.
#[test]
fn fields_of_another_type_are_refused() {
    hold(async |case| {
        for bytes in [&[0x0a, 2, 0xff, 0xfe][..], &[0x08, 1], &[0x0a, 200, 1, b'p'], &[0x0f]] {
            for method in METHODS {
                let code = call(case.node().channel(), method, bytes.to_vec()).await;
                assert!(matches!(code, Code::InvalidArgument | Code::Internal), "{code:?} to {bytes:?}");
            }
        }
    });
}

/// Specification: Error Scheme, Call not implemented.
#[test]
fn unknown_methods_are_not_implemented() {
    hold(async |case| {
        for path in ["/csi.v1.Node/NodeDance", "/csi.v1.Unknown/Probe", "/csi.v0.Identity/Probe", "/"] {
            assert_eq!(call(case.node().channel(), path, Vec::new()).await, Code::Unimplemented, "{path}");
        }
    });
}

/// gRPC rejects messages above the plugin's limit of 1 MiB before it reads them.
#[test]
fn an_oversized_message_is_rejected() {
    hold(async |case| {
        let registration = connect(case.node().registration_socket()).await.expect("connect");
        for (channel, path) in [
            (case.node().channel(), "/csi.v1.Identity/Probe"),
            (case.node().channel(), "/csi.v1.Node/NodeGetInfo"),
            (registration, "/pluginregistration.Registration/GetInfo"),
        ] {
            for (size, code) in [(1 << 20, Code::Ok), ((1 << 20) + 2, Code::OutOfRange), (5 << 20, Code::OutOfRange)] {
                // Field 15, a number, which protobuf skips because no message has it.
                let bytes = [0x78_u8, 0].repeat(size / 2);
                assert_eq!(call(channel.clone(), path, bytes).await, code, "{path}: {size} bytes");
            }
        }
        goes_on(case).await.expect("it goes on");
    });
}
