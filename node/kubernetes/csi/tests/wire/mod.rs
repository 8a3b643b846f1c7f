//! A gRPC call that is encoded here, because Rust clients do not send the `:authority` of grpc-go.

use std::path::Path;

use loona_hpack::{Decoder, Encoder};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

type Field = (Vec<u8>, Vec<u8>);

/// Calls methods with an empty message, one after the other on one connection, with the socket's path as `:authority`,
/// percent-encoded as grpc-go does it. Returns the header fields and trailers of each answer.
pub async fn call(socket: &Path, methods: &[&str]) -> Vec<Vec<Field>> {
    let host = socket.display().to_string().replace('/', "%2F");
    let mut stream = UnixStream::connect(socket).await.expect("connect");
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("write");
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.expect("write");

    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
    let mut answers = Vec::new();
    for (method, id) in methods.iter().zip((1..).step_by(2)) {
        let fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", &host),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ];
        let block = encoder.encode(fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())));
        stream.write_all(&frame(HEADERS, END_HEADERS, id, &block)).await.expect("write");
        // An empty message, not compressed.
        stream.write_all(&frame(DATA, END_STREAM, id, &[0; 5])).await.expect("write");
        answers.push(answer(&mut stream, &mut decoder).await);
    }
    answers
}

/// Header fields of the answer on the one open stream. The server's header blocks are short: none needs a second frame.
async fn answer(stream: &mut UnixStream, decoder: &mut Decoder<'_>) -> Vec<Field> {
    let mut found = Vec::new();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.expect("a frame");
        let [long, middle, short, kind, flags, ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, long, middle, short]).try_into().expect("24 bits")];
        stream.read_exact(&mut payload).await.expect("its payload");
        match kind {
            HEADERS => found.extend(decoder.decode(&payload).expect("header fields")),
            RST_STREAM | GOAWAY => panic!("refused, with error {payload:?}"),
            _ => {}
        }
        if kind == HEADERS && flags & END_STREAM != 0 {
            return found;
        }
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short payload").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}
