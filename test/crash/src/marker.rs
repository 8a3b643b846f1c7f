//! Data of pods: each line names its volume.

use crate::life::SLOT;
use crate::operation::Number;

const LINE: usize = 64;
const PAGE: usize = 4096;
const ZEROS: [u8; PAGE] = [0; PAGE];

pub fn content(volume: Number, slot: u16) -> Vec<u8> {
    let mut line = format!("{}slot {slot} ", prefix(volume)).into_bytes();
    line.resize(LINE - 1, b'.');
    line.push(b'\n');
    line.repeat((SLOT.get() / LINE as u64) as usize)
}

/// The first line that is neither empty nor of the volume whose marks a slot may have, if any, and where it is.
pub fn foreign(content: &[u8], owner: impl Fn(u16) -> Option<Number>) -> Option<(usize, String)> {
    let mut pages = content.chunks(PAGE).enumerate().filter(|(_, page)| *page != &ZEROS[..page.len()]);
    let (at, line) = pages.find_map(|(number, page)| {
        let begin = number * PAGE;
        let slot = u16::try_from(begin as u64 / SLOT.get()).unwrap_or(u16::MAX);
        let own = owner(slot).map(|owner| prefix(owner).into_bytes());
        let is_own = |line: &[u8]| own.as_ref().is_some_and(|own| line.starts_with(own));
        let mut lines = page.chunks(LINE).enumerate().map(|(line, text)| (begin + line * LINE, text));
        lines.find(|(_, line)| *line != &ZEROS[..line.len()] && !is_own(line))
    })?;
    Some((at, String::from_utf8_lossy(line).trim_end().to_owned()))
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
            prop_assert_eq!(foreign(&image, |_| Some(Number(volume))), None);
            let at = page * PAGE + line * LINE;
            image[at..at + LINE].copy_from_slice(&content(Number(other), slot)[..LINE]);
            let found = foreign(&image, |_| Some(Number(volume))).map(|(at, _)| at);
            prop_assert_eq!(found, (other != volume).then_some(at));
        }
    }

    #[test]
    fn each_slot_has_an_owner() {
        let image = [content(Number(1), 0), content(Number(2), 1)].concat();
        assert_eq!(foreign(&image, |slot| Some(Number(slot + 1))), None);
        for second in [None, Some(Number(1))] {
            let found =
                foreign(&image, |slot| if slot == 0 { Some(Number(1)) } else { second }).map(|(at, _)| at as u64);
            assert_eq!(found, Some(SLOT.get()));
        }
    }

    #[test]
    fn a_number_does_not_match_a_part_of_another() {
        assert!(foreign(&content(Number(12), 0), |_| Some(Number(1))).is_some());
        assert!(foreign(&content(Number(1), 0), |_| Some(Number(12))).is_some());
        assert!(foreign(b"anything else", |_| Some(Number(1))).is_some());
    }
}
