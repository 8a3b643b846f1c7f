//! Replaces the `:authority` of all requests on a connection with `localhost`.
//!
//! HTTP/2 requires a host in `:authority` (RFC 9113, 8.3.1). A Unix socket has none, and gRPC libraries fill the gap
//! differently. The kubelet's CSI client sends `localhost`. Its registration client sets no `:authority`, so grpc-go
//! sends the target that it dials: the socket's path, percent-encoded (`%2Fdata%2Fkubelet%2F…-reg.sock`), or unencoded
//! in older versions. Crate `http` rejects both, and `h2` resets the stream with `PROTOCOL_ERROR` before a service or a
//! tower layer receives the request. No setting of `h2`, `hyper` or `tonic` changes that, so the bytes are corrected
//! before they reach `h2`.
//!
//! Only header blocks change. HPACK is stateful, so all header blocks are decoded, and encoded again without the
//! dynamic table: whatever the client indexes, the server's table stays empty. Responses pass unchanged. The server
//! announces neither `SETTINGS_HEADER_TABLE_SIZE` nor a larger `SETTINGS_MAX_FRAME_SIZE`, so the limits below are RFC
//! 9113's defaults.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use loona_hpack::Decoder;
use loona_hpack::decoder::DecoderError;
use loona_hpack::encoder::encode_integer;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tonic::transport::server::Connected;

const NAME: &[u8] = b":authority";
const VALUE: &[u8] = b"localhost";

/// `PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n`, RFC 9113, 3.4. The server checks it.
const PREFACE: usize = 24;
/// Length (3), type, flags, stream (4), RFC 9113, 4.1.
const HEAD: usize = 9;
/// `SETTINGS_MAX_FRAME_SIZE`, RFC 9113, 6.5.2.
const MAX_FRAME: usize = 16_384;
/// Maximum size of a header block in bytes, before and after the change.
const MAX_BLOCK: usize = 65_536;
/// `SETTINGS_HEADER_TABLE_SIZE`, RFC 9113, 6.5.2.
const MAX_TABLE: usize = 4096;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// Dependency (4) and weight.
const PRIORITY_FIELDS: usize = 5;

/// The client violates HTTP/2 or the limits above. Its connection ends.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
enum Malformed {
    #[error("a frame has {0} bytes, more than the maximum of {MAX_FRAME}")]
    Frame(usize),
    #[error("a header block has more than {MAX_BLOCK} bytes")]
    Block,
    #[error("a header block is interrupted by another frame")]
    Interrupted,
    #[error("a header frame is shorter than its padding and priority")]
    Short,
    #[error("cannot decompress a header block")]
    Compression(#[source] DecoderError),
}

impl From<Malformed> for io::Error {
    fn from(reason: Malformed) -> Self {
        Self::new(io::ErrorKind::InvalidData, reason)
    }
}

#[derive(Clone, Copy, Debug)]
struct FrameHeader {
    length: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

impl FrameHeader {
    fn parse([long, middle, short, kind, flags, stream @ ..]: [u8; HEAD]) -> Self {
        let length = usize::from(long) << 16 | usize::from(middle) << 8 | usize::from(short);
        // The highest bit is reserved and must be ignored.
        Self { length, kind, flags, stream: u32::from_be_bytes(stream) & 0x7fff_ffff }
    }

    fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    fn write(self, out: &mut Vec<u8>) {
        // The length of every frame that is written here fits into 24 bits.
        let [.., long, middle, short] = self.length.to_be_bytes();
        out.extend([long, middle, short, self.kind, self.flags]);
        out.extend(self.stream.to_be_bytes());
    }
}

/// The part of the stream that the next byte belongs to.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// The preface, or a frame without headers: this number of bytes passes unchanged.
    Through(usize),
    Head,
    Headers(FrameHeader),
}

/// A header block that continues in the next frame.
#[derive(Debug)]
struct Block {
    stream: u32,
    /// Flags that are kept: `END_STREAM` or none.
    flags: u8,
    fragments: Vec<u8>,
}

/// Rewrites the requests of a connection, from the preface on. Pure: the output depends on the bytes, not on the pieces
/// in which they arrive.
struct Rewriter {
    decoder: Decoder<'static>,
    place: Place,
    /// Bytes of an incomplete head or header payload, which is parsed as a whole.
    partial: Vec<u8>,
    block: Option<Block>,
}

impl Rewriter {
    fn new() -> Self {
        let mut decoder = Decoder::new();
        decoder.set_max_allowed_table_size(MAX_TABLE);
        decoder.set_max_table_size(MAX_TABLE);
        Self { decoder, place: Place::Through(PREFACE), partial: Vec::new(), block: None }
    }

    /// Appends the bytes for the server to `out`, and returns the number of bytes that were read from the input. Stops
    /// after a header block, so that a small input never expands to more than one block. After an error, `out` has all
    /// bytes before the error, and the caller must not continue.
    fn feed(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize, Malformed> {
        let mut rest = input;
        loop {
            match self.place {
                Place::Through(0) => self.place = Place::Head,
                Place::Through(_) if rest.is_empty() => return Ok(input.len()),
                Place::Through(left) => {
                    let now = take(&mut rest, left);
                    out.extend(now);
                    self.place = Place::Through(left - now.len());
                }
                Place::Head => {
                    self.fill(&mut rest, HEAD);
                    let Ok(head) = <[u8; HEAD]>::try_from(&self.partial[..]) else { return Ok(input.len()) };
                    self.partial.clear();
                    self.place = self.begin(FrameHeader::parse(head), out)?;
                }
                Place::Headers(head) => {
                    self.fill(&mut rest, head.length);
                    if self.partial.len() < head.length {
                        return Ok(input.len());
                    }
                    self.finish(head, out)?;
                    self.partial.clear();
                    self.place = Place::Head;
                    if self.block.is_none() {
                        return Ok(input.len() - rest.len());
                    }
                }
            }
        }
    }

    fn fill(&mut self, input: &mut &[u8], wanted: usize) {
        let missing = wanted.saturating_sub(self.partial.len());
        self.partial.extend(take(input, missing));
    }

    fn begin(&self, head: FrameHeader, out: &mut Vec<u8>) -> Result<Place, Malformed> {
        if head.length > MAX_FRAME {
            return Err(Malformed::Frame(head.length));
        }
        match (&self.block, head.kind) {
            (None, HEADERS) => Ok(Place::Headers(head)),
            (Some(block), CONTINUATION) if block.stream == head.stream => Ok(Place::Headers(head)),
            (Some(_), _) => Err(Malformed::Interrupted),
            // A CONTINUATION without a block passes too: the server rejects it.
            (None, _) => {
                head.write(out);
                Ok(Place::Through(head.length))
            }
        }
    }

    fn finish(&mut self, head: FrameHeader, out: &mut Vec<u8>) -> Result<(), Malformed> {
        let mut block = match self.block.take() {
            Some(mut block) => {
                block.fragments.extend(&self.partial);
                block
            }
            None => Block {
                stream: head.stream,
                flags: head.flags & END_STREAM,
                fragments: fragment(head, &self.partial).ok_or(Malformed::Short)?.to_vec(),
            },
        };
        if block.fragments.len() > MAX_BLOCK {
            return Err(Malformed::Block);
        }
        if head.has(END_HEADERS) {
            block.fragments = self.rewrite(&block.fragments)?;
            block.write(out);
        } else {
            self.block = Some(block);
        }
        Ok(())
    }

    /// Encodes the same fields in the same order, as literals that do not enter a table. Only `:authority` has another
    /// value.
    fn rewrite(&mut self, fragments: &[u8]) -> Result<Vec<u8>, Malformed> {
        let mut fields = Vec::new();
        let mut fits = true;
        let decoded = self.decoder.decode_with_cb(fragments, |name, value| {
            let value = if *name == *NAME { VALUE } else { &*value };
            // One byte (an index) can expand to 4 KiB, so the limit is checked during decoding.
            fits = fits && fields.len() + name.len() + value.len() <= MAX_BLOCK;
            if fits {
                fields.push(0); // literal without indexing, new name: RFC 7541, 6.2.2
                for text in [&*name, value] {
                    fields.extend(encode_integer(text.len(), 7));
                    fields.extend(text);
                }
            }
        });
        decoded.map_err(Malformed::Compression)?;
        if fits { Ok(fields) } else { Err(Malformed::Block) }
    }
}

impl Block {
    fn write(&self, out: &mut Vec<u8>) {
        let (mut kind, mut flags) = (HEADERS, self.flags);
        let mut rest = &self.fragments[..];
        loop {
            let now = take(&mut rest, MAX_FRAME);
            if rest.is_empty() {
                flags |= END_HEADERS;
            }
            FrameHeader { length: now.len(), kind, flags, stream: self.stream }.write(out);
            out.extend(now);
            if rest.is_empty() {
                return;
            }
            (kind, flags) = (CONTINUATION, 0);
        }
    }
}

/// Removes at most `most` bytes from the start of `input`, and returns them.
fn take<'a>(input: &mut &'a [u8], most: usize) -> &'a [u8] {
    let (now, rest) = input.split_at(most.min(input.len()));
    *input = rest;
    now
}

/// The payload of a HEADERS frame without padding and priority, RFC 9113, 6.2.
fn fragment(head: FrameHeader, mut payload: &[u8]) -> Option<&[u8]> {
    if head.has(PADDED) {
        let (&padding, rest) = payload.split_first()?;
        payload = rest.get(..rest.len().checked_sub(padding.into())?)?;
    }
    if head.has(PRIORITY) {
        payload = payload.get(PRIORITY_FIELDS..)?;
    }
    Some(payload)
}

/// The server's end of a connection on which every request has `:authority: localhost`.
pub(crate) struct LocalhostStream<S> {
    stream: BufReader<S>,
    rewriter: Rewriter,
    /// Rewritten bytes. The server has read the first `read` of them.
    ready: Vec<u8>,
    read: usize,
    /// Error to return when the server has read all of `ready`.
    failed: Option<Malformed>,
}

impl<S: AsyncRead> LocalhostStream<S> {
    pub(crate) fn new(stream: S) -> Self {
        let stream = BufReader::new(stream);
        Self { stream, rewriter: Rewriter::new(), ready: Vec::new(), read: 0, failed: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LocalhostStream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.read == this.ready.len() {
            if let Some(reason) = this.failed {
                return Poll::Ready(Err(reason.into()));
            }
            this.ready.clear();
            this.read = 0;
            let mut stream = Pin::new(&mut this.stream);
            let input = ready!(stream.as_mut().poll_fill_buf(cx))?;
            if input.is_empty() {
                return Poll::Ready(Ok(()));
            }
            match this.rewriter.feed(input, &mut this.ready) {
                Ok(used) => stream.consume(used),
                Err(reason) => this.failed = Some(reason),
            }
        }
        let now = take(&mut &this.ready[this.read..], buf.remaining());
        buf.put_slice(now);
        this.read += now.len();
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for LocalhostStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<S: AsyncRead + Connected> Connected for LocalhostStream<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.get_ref().connect_info()
    }
}

#[cfg(test)]
mod tests {
    use loona_hpack::Encoder;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    const START: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const DATA: u8 = 0;
    const PATH: &[u8] = b"%2Fdata%2Fkubelet%2Fplugins_registry%2Flocal.granary.dev-reg.sock";

    type Field = (Vec<u8>, Vec<u8>);

    fn field(name: &[u8], value: &[u8]) -> Field {
        (name.to_vec(), value.to_vec())
    }

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        FrameHeader { length: payload.len(), kind, flags, stream }.write(&mut out);
        out.extend(payload);
        out
    }

    fn connection(frames: &[Vec<u8>]) -> Vec<u8> {
        [START, &frames.concat()].concat()
    }

    fn encoded(encoder: &mut Encoder<'_>, fields: &[Field]) -> Vec<u8> {
        encoder.encode(fields.iter().map(|(name, value)| (&name[..], &value[..])))
    }

    /// Output for input that arrives in pieces, and the error that ended it.
    fn rewritten<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<u8>, Option<Malformed>) {
        let (mut rewriter, mut out) = (Rewriter::new(), Vec::new());
        for mut piece in pieces {
            while !piece.is_empty() {
                match rewriter.feed(piece, &mut out) {
                    Ok(used) => piece = &piece[used..],
                    Err(reason) => return (out, Some(reason)),
                }
            }
        }
        (out, None)
    }

    fn refused(frames: &[Vec<u8>]) -> Option<Malformed> {
        rewritten([&connection(frames)[..]]).1
    }

    /// The frames after the preface.
    fn accepted(frames: &[Vec<u8>]) -> Vec<(FrameHeader, Vec<u8>)> {
        let (out, failed) = rewritten([&connection(frames)[..]]);
        assert_eq!(failed, None);
        let mut rest = out.strip_prefix(START).expect("the preface as it was");
        let mut found = Vec::new();
        while !rest.is_empty() {
            let head = FrameHeader::parse(take(&mut rest, HEAD).try_into().expect("a whole head"));
            found.push((head, take(&mut rest, head.length).to_vec()));
        }
        found
    }

    /// Fields of a block that refers to no other block.
    fn decoded(block: &[u8]) -> Vec<Field> {
        let mut decoder = Decoder::new();
        decoder.set_max_table_size(0);
        decoder.decode(block).expect("a header block")
    }

    #[test]
    fn each_host_is_localhost_also_an_indexed_one() {
        // :method POST, then :authority by index and with a new entry of the dynamic table.
        let first = [&[0x83, 0x41][..], &encode_integer(PATH.len(), 7), PATH].concat();
        let second = [0x83, 0x80 | 62];
        let found = accepted(&[frame(HEADERS, END_HEADERS, 1, &first), frame(HEADERS, END_HEADERS, 3, &second)]);
        assert_eq!(found.iter().map(|(head, _)| head.stream).collect::<Vec<_>>(), [1, 3]);
        for (_, block) in found {
            assert_eq!(decoded(&block), [field(b":method", b"POST"), field(b":authority", b"localhost")]);
        }
    }

    /// RFC 7541, C.4: Huffman code, and a name of the dynamic table.
    #[test]
    fn the_examples_of_the_specification_are_decoded() {
        let first = b"\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff";
        let second = b"\x82\x86\x84\xbe\x58\x86\xa8\xeb\x10\x64\x9c\xbf";
        let found = accepted(&[frame(HEADERS, END_HEADERS, 1, first), frame(HEADERS, END_HEADERS, 3, second)]);
        let mut want = vec![
            field(b":method", b"GET"),
            field(b":scheme", b"http"),
            field(b":path", b"/"),
            field(b":authority", b"localhost"),
        ];
        assert_eq!(decoded(&found[0].1), want);
        want.push(field(b"cache-control", b"no-cache"));
        assert_eq!(decoded(&found[1].1), want);
    }

    #[test]
    fn a_block_without_a_host_gets_none() {
        let trailers = [field(b"x-end", b"yes")];
        let block = encoded(&mut Encoder::new(), &trailers);
        let found = accepted(&[frame(HEADERS, END_HEADERS | END_STREAM, 5, &block)]);
        assert_eq!((found.len(), found[0].0.flags), (1, END_HEADERS | END_STREAM));
        assert_eq!(decoded(&found[0].1), trailers);
    }

    #[test]
    fn padding_and_priority_are_left_out() {
        let block = encoded(&mut Encoder::new(), &[field(b":authority", PATH)]);
        let payload = [&[3], &[0, 0, 0, 9, 200][..], &block, &[0; 3]].concat();
        let found = accepted(&[frame(HEADERS, END_HEADERS | END_STREAM | PADDED | PRIORITY, 1, &payload)]);
        assert_eq!(found[0].0.flags, END_HEADERS | END_STREAM);
        assert_eq!(decoded(&found[0].1), [field(b":authority", b"localhost")]);
        for (flags, payload) in [(PADDED, &[][..]), (PADDED, &[1]), (PRIORITY, &[0; 4]), (PADDED | PRIORITY, &[1; 6])] {
            assert_eq!(refused(&[frame(HEADERS, flags, 1, payload)]), Some(Malformed::Short), "{flags:#x} {payload:?}");
        }
    }

    #[test]
    fn a_long_block_goes_on_in_continuations() {
        let fields = [field(b":authority", PATH), field(b"x-long", &[b'a'; 40_000])];
        let block = encoded(&mut Encoder::new(), &fields);
        let (one, two) = block.split_at(MAX_FRAME);
        let (two, three) = two.split_at(100);
        let (three, four) = three.split_at(MAX_FRAME);
        let found = accepted(&[
            frame(HEADERS, END_STREAM, 7, one),
            frame(CONTINUATION, 0, 7, two),
            frame(CONTINUATION, 0, 7, three),
            frame(CONTINUATION, END_HEADERS, 7, four),
        ]);
        let heads: Vec<_> = found.iter().map(|(head, _)| (head.kind, head.flags, head.stream)).collect();
        assert_eq!(heads, [(HEADERS, END_STREAM, 7), (CONTINUATION, 0, 7), (CONTINUATION, END_HEADERS, 7)]);
        let whole: Vec<_> = found.into_iter().flat_map(|(_, fragment)| fragment).collect();
        assert_eq!(decoded(&whole), [field(b":authority", b"localhost"), fields[1].clone()]);
    }

    #[test]
    fn long_frames_and_blocks_end_the_connection() {
        assert_eq!(refused(&[frame(DATA, 0, 1, &[0; MAX_FRAME + 1])]), Some(Malformed::Frame(MAX_FRAME + 1)));
        let mut frames = vec![frame(CONTINUATION, 0, 1, &[0; MAX_FRAME]); 5];
        frames[0] = frame(HEADERS, 0, 1, &[0; MAX_FRAME]);
        assert_eq!(refused(&frames), Some(Malformed::Block));
    }

    #[test]
    fn a_small_block_that_expands_too_far_ends_the_connection() {
        let mut block = encoded(&mut Encoder::new(), &[field(b"x", &[b'a'; 4000])]);
        block.extend([0x80 | 62; 100]);
        assert_eq!(refused(&[frame(HEADERS, END_HEADERS, 1, &block)]), Some(Malformed::Block));
    }

    #[test]
    fn a_table_larger_than_the_server_allows_ends_the_connection() {
        let update = |size| {
            let mut block = encode_integer(size, 5);
            block[0] |= 0x20;
            block.push(0x82);
            frame(HEADERS, END_HEADERS, 1, &block)
        };
        assert_eq!(accepted(&[update(0), update(MAX_TABLE)]).len(), 2);
        let reason = Malformed::Compression(DecoderError::InvalidMaxDynamicSize);
        assert_eq!(refused(&[update(MAX_TABLE + 1)]), Some(reason));
    }

    #[test]
    fn nothing_may_interrupt_a_header_block() {
        let begun = frame(HEADERS, 0, 1, &[0x82]);
        for other in [frame(DATA, 0, 1, &[]), frame(HEADERS, END_HEADERS, 1, &[]), frame(CONTINUATION, 4, 3, &[])] {
            assert_eq!(refused(&[begun.clone(), other]), Some(Malformed::Interrupted));
        }
    }

    #[tokio::test]
    async fn frames_before_an_error_are_read_first() {
        let (mut client, server) = duplex(1 << 16);
        let good = connection(&[frame(DATA, 0, 1, b"some data")]);
        client.write_all(&good).await.expect("write");
        client.write_all(&frame(HEADERS, END_HEADERS, 1, &[0x80])).await.expect("write");
        let mut server = LocalhostStream::new(server);
        let mut found = Vec::new();
        for _ in 0..2 {
            let reason = server.read_to_end(&mut found).await.expect_err("index 0 does not exist");
            assert_eq!(reason.kind(), io::ErrorKind::InvalidData);
        }
        assert_eq!(found, good);
    }

    /// Random frames, many of which are valid.
    fn frames() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let kind = prop_oneof![Just(HEADERS), Just(CONTINUATION), Just(DATA), any::<u8>()];
        let flags = prop_oneof![Just(END_HEADERS), Just(0), any::<u8>()];
        let payload = prop_oneof![
            vec(any::<u8>(), 0..64),
            Just(encoded(&mut Encoder::new(), &[field(b":authority", PATH), field(b"te", b"trailers")])),
        ];
        vec(
            (kind, flags, 0_u32..3, payload)
                .prop_map(|(kind, flags, stream, payload)| frame(kind, flags, stream, &payload)),
            0..8,
        )
    }

    fn texts() -> impl Strategy<Value = Vec<Field>> {
        let name = prop_oneof![Just(b":authority".to_vec()), Just(b":path".to_vec()), vec(any::<u8>(), 0..20)];
        vec((name, vec(any::<u8>(), 0..200)), 0..10)
    }

    proptest! {
        #[test]
        fn no_bytes_are_a_panic(bytes in vec(any::<u8>(), 0..400)) {
            rewritten([START, &bytes]);
            rewritten([START, &frame(HEADERS, END_HEADERS, 1, &bytes)]);
        }

        #[test]
        fn the_pieces_do_not_matter(frames in frames(), cuts in vec(any::<prop::sample::Index>(), 0..8)) {
            let input = connection(&frames);
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(input.len())).chain([0, input.len()]).collect();
            cuts.sort_unstable();
            let whole = rewritten([&input[..]]);
            prop_assert_eq!(&rewritten(cuts.windows(2).map(|ends| &input[ends[0]..ends[1]])), &whole);
            prop_assert_eq!(&rewritten(input.chunks(1)), &whole);
        }

        #[test]
        fn all_other_fields_stay(blocks in vec(texts(), 1..5)) {
            let mut encoder = Encoder::new();
            let sent: Vec<_> =
                blocks.iter().map(|fields| frame(HEADERS, END_HEADERS, 1, &encoded(&mut encoder, fields))).collect();
            let found = accepted(&sent);
            prop_assert_eq!(found.len(), blocks.len());
            for ((_, block), fields) in found.iter().zip(blocks) {
                let local = |(name, value): Field| if name == NAME { (name, VALUE.to_vec()) } else { (name, value) };
                prop_assert_eq!(decoded(block), fields.into_iter().map(local).collect::<Vec<_>>());
            }
        }
    }
}
