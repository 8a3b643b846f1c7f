//! Splits the bytes of a pipe into lines.

/// Maximum length of a line in bytes; the rest is cut. A program that never ends its line must not fill the memory.
pub(crate) const LONGEST: usize = 16 * 1024;

/// Extra bytes passed to the redactor, which are cut afterwards: a secret that begins before the cut is complete.
const MORE: usize = 8 * 1024;

#[derive(Default)]
pub(crate) struct Lines {
    partial: Vec<u8>,
}

impl Lines {
    /// Reads `bytes`, and passes every line that ends in them to `each`. Invalid UTF-8 is replaced.
    pub(crate) fn push(&mut self, bytes: &[u8], mut each: impl FnMut(&str)) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (line, ends) = piece.strip_suffix(b"\n").map_or((piece, false), |line| (line, true));
            let space = (LONGEST + MORE).saturating_sub(self.partial.len());
            self.partial.extend_from_slice(&line[..line.len().min(space)]);
            if ends {
                self.flush(&mut each);
            }
        }
    }

    pub(crate) fn end(&mut self, mut each: impl FnMut(&str)) {
        if !self.partial.is_empty() {
            self.flush(&mut each);
        }
    }

    fn flush(&mut self, each: &mut impl FnMut(&str)) {
        each(String::from_utf8_lossy(&self.partial).trim_end_matches('\r'));
        self.partial.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines(chunks: &[&[u8]]) -> Vec<String> {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        for chunk in chunks {
            lines.push(chunk, |line| found.push(line.to_owned()));
        }
        lines.end(|line| found.push(line.to_owned()));
        found
    }

    #[test]
    fn lines_end_where_they_end_and_the_last_needs_no_end() {
        assert_eq!(lines(&[b"a\nb", b"c\r\n\nd"]), ["a", "bc", "", "d"]);
    }

    #[test]
    fn of_a_line_without_end_the_beginning_is_kept() {
        let long = vec![b'x'; 100 * LONGEST];
        let lengths: Vec<usize> = lines(&[&long, &long, b"\nnext"]).iter().map(String::len).collect();
        assert_eq!(lengths, [LONGEST + MORE, 4]);
    }

    proptest! {
        #[test]
        fn the_size_of_the_reads_does_not_matter(text in "[a-zä\n]{0,200}", cut in 1_usize..20) {
            let chunks: Vec<&[u8]> = text.as_bytes().chunks(cut).collect();
            prop_assert_eq!(lines(&chunks), text.lines().map(str::to_owned).collect::<Vec<_>>());
        }
    }
}
