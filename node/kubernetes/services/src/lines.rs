//! Bytes of a pipe become lines.

/// Longer lines are cut into pieces: a program that never ends its line must not fill the memory.
const LONGEST: usize = 16 * 1024;

/// Collects bytes until a line is whole.
#[derive(Default)]
pub(crate) struct Lines {
    begun: Vec<u8>,
}

impl Lines {
    /// Takes `bytes`, and gives every line that ends in them to `each`. What is no UTF-8 is replaced.
    pub(crate) fn push(&mut self, bytes: &[u8], mut each: impl FnMut(&str)) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let mut rest = piece;
            while !rest.is_empty() {
                let (part, later) = rest.split_at(rest.len().min(LONGEST - self.begun.len()));
                self.begun.extend_from_slice(part);
                rest = later;
                if self.begun.ends_with(b"\n") || self.begun.len() == LONGEST {
                    self.flush(&mut each);
                }
            }
        }
    }

    /// Gives the line that has no end.
    pub(crate) fn end(&mut self, mut each: impl FnMut(&str)) {
        if !self.begun.is_empty() {
            self.flush(&mut each);
        }
    }

    fn flush(&mut self, each: &mut impl FnMut(&str)) {
        each(String::from_utf8_lossy(&self.begun).trim_end_matches(['\n', '\r']));
        self.begun.clear();
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
    fn a_line_without_end_is_cut() {
        let long = vec![b'x'; 2 * LONGEST + 5];
        let lengths: Vec<usize> = lines(&[&long]).iter().map(String::len).collect();
        assert_eq!(lengths, [LONGEST, LONGEST, 5]);
    }

    proptest! {
        #[test]
        fn the_size_of_the_reads_does_not_matter(text in "[a-zä\n]{0,200}", cut in 1_usize..20) {
            let chunks: Vec<&[u8]> = text.as_bytes().chunks(cut).collect();
            prop_assert_eq!(lines(&chunks), text.lines().map(str::to_owned).collect::<Vec<_>>());
        }
    }
}
