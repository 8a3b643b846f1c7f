//! Forwards the output of a program in pieces of whole characters.

use std::io::{self, Read};
use std::str;

const PIECE: usize = 16 << 10;

/// Passes each piece to `report` as it arrives, until the end. Invalid UTF-8 becomes U+FFFD; a character is never cut.
pub(crate) fn forward(mut stream: impl Read, mut report: impl FnMut(String)) {
    let mut buffer = Vec::new();
    let mut piece = [0; PIECE];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => {
                buffer.extend_from_slice(&piece[..count]);
                let rest = buffer.split_off(whole(&buffer));
                if !buffer.is_empty() {
                    report(String::from_utf8_lossy(&buffer).into_owned());
                }
                buffer = rest;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    if !buffer.is_empty() {
        report(String::from_utf8_lossy(&buffer).into_owned());
    }
}

/// Length of `bytes` without a character that is cut at the end.
fn whole(bytes: &[u8]) -> usize {
    let rest = bytes.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
    let is_cut = str::from_utf8(rest).is_err_and(|error| error.error_len().is_none());
    bytes.len() - if is_cut { rest.len() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns one piece for each read, as a pipe may.
    struct Pieces<'a>(Vec<&'a [u8]>);

    impl Read for Pieces<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                return Ok(0);
            }
            let piece = self.0.remove(0);
            buffer[..piece.len()].copy_from_slice(piece);
            Ok(piece.len())
        }
    }

    fn pieces_of(pieces: Vec<&[u8]>) -> Vec<String> {
        let mut found = Vec::new();
        forward(Pieces(pieces), |text| found.push(text));
        found
    }

    #[test]
    fn a_character_is_not_cut_between_pieces() {
        let crab = "\u{1f980}".as_bytes();
        for cut in 1..crab.len() {
            assert_eq!(pieces_of(vec![b"a", &crab[..cut], &crab[cut..]]).concat(), "a\u{1f980}");
        }
    }

    #[test]
    fn a_piece_is_reported_at_once_even_within_a_line() {
        assert_eq!(pieces_of(vec![b"test a ... ", b"ok\n"]), ["test a ... ", "ok\n"]);
    }

    #[test]
    fn invalid_utf8_does_not_stop_the_rest() {
        assert_eq!(pieces_of(vec![b"a\xff", b"\xffb", b"\xe2\x82"]).concat(), "a\u{fffd}\u{fffd}b\u{fffd}");
    }
}
