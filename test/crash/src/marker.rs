//! Data of pods: each line names its volume.

use crate::history::{Number, SLOT};

const LINE: usize = 64;
const PAGE: usize = 4096;
const ZEROS: [u8; PAGE] = [0; PAGE];

/// The content of a slot.
pub fn content(volume: Number, slot: u16) -> Vec<u8> {
    let mut line = format!("{}slot {slot} ", prefix(volume)).into_bytes();
    line.resize(LINE - 1, b'.');
    line.push(b'\n');
    line.repeat((SLOT.get() / LINE as u64) as usize)
}

/// The first line that is neither empty nor this volume's own, and where it is.
pub fn foreign(content: &[u8], volume: Number) -> Option<(usize, String)> {
    let own = prefix(volume).into_bytes();
    let pages = content.chunks(PAGE).enumerate().filter(|(_, page)| *page != &ZEROS[..page.len()]);
    pages
        .flat_map(|(number, page)| {
            page.chunks(LINE).enumerate().map(move |(line, text)| (number * PAGE + line * LINE, text))
        })
        .find(|(_, line)| *line != &ZEROS[..line.len()] && !line.starts_with(&own))
        .map(|(at, line)| (at, String::from_utf8_lossy(line).trim_end().to_owned()))
}

fn prefix(volume: Number) -> String {
    format!("written by {volume} in ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_line_of_another_volume_is_found_wherever_it_is(
            volume: u16, other: u16, slot: u16, page in 0usize..8, line in 0usize..64,
        ) {
            let mut image = vec![0; 8 * PAGE];
            image[..SLOT.get() as usize].copy_from_slice(&content(Number(volume), slot));
            prop_assert_eq!(foreign(&image, Number(volume)), None);
            let at = page * PAGE + line * LINE;
            image[at..at + LINE].copy_from_slice(&content(Number(other), slot)[..LINE]);
            let found = foreign(&image, Number(volume)).map(|(at, _)| at);
            prop_assert_eq!(found, (other != volume).then_some(at));
        }
    }

    #[test]
    fn a_number_does_not_match_a_part_of_another() {
        assert!(foreign(&content(Number(12), 0), Number(1)).is_some());
        assert!(foreign(&content(Number(1), 0), Number(12)).is_some());
        assert!(foreign(b"anything else", Number(1)).is_some());
    }
}
