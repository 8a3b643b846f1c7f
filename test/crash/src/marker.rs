//! Data of pods. Each line names its volume and the number of the write.

use crate::life::SLOT;
use crate::operation::{Mark, Number};

const LINE: usize = 64;
/// Size that a disk writes atomically.
const SECTOR: usize = 512;
const PAGE: usize = 4096;
const ZEROS: [u8; PAGE] = [0; PAGE];

/// The marks that a slot may have: the last one that was synced, and the one that is being written.
pub type Marks = [Option<Mark>; 2];

pub fn content(mark: Mark, slot: u16) -> Vec<u8> {
    let mut line = format!("{}slot {slot} ", prefix(mark)).into_bytes();
    line.resize(LINE - 1, b'.');
    line.push(b'\n');
    line.repeat((SLOT.get() / LINE as u64) as usize)
}

/// The first line that is neither empty nor of the marks of its slot, with its offset.
pub fn foreign(content: &[u8], marks: impl Fn(u16) -> Marks) -> Option<(usize, String)> {
    let mut pages = content.chunks(PAGE).enumerate().filter(|(_, page)| *page != &ZEROS[..page.len()]);
    let (at, line) = pages.find_map(|(number, page)| {
        let begin = number * PAGE;
        let own = marks(slot_at(begin as u64)).map(|mark| mark.map(prefix));
        let is_own = |line: &[u8]| own.iter().flatten().any(|own| line.starts_with(own.as_bytes()));
        let mut lines = page.chunks(LINE).enumerate().map(|(line, text)| (begin + line * LINE, text));
        lines.find(|(_, line)| *line != &ZEROS[..line.len()] && !is_own(line))
    })?;
    Some((at, String::from_utf8_lossy(line).trim_end().to_owned()))
}

/// Slot of the image that contains this byte.
pub fn slot_at(byte: u64) -> u16 {
    u16::try_from(byte / SLOT.get()).unwrap_or(u16::MAX)
}

/// Whether each sector of this slot was written with one of these marks.
pub fn is_of(found: &[u8], slot: u16, marks: Marks) -> bool {
    let whole = marks.map(|mark| mark.map(|mark| content(mark, slot)));
    let is_at = |whole: &[u8], at: usize, sector: &[u8]| whole.get(at..).is_some_and(|rest| rest.starts_with(sector));
    let mut sectors = (0..).step_by(SECTOR).zip(found.chunks(SECTOR));
    sectors.all(|(at, sector)| whole.iter().flatten().any(|whole| is_at(whole, at, sector)))
}

fn prefix(Mark { volume, turn }: Mark) -> String {
    format!("written by {volume} in write {turn} of ")
}

pub fn mark(line: &str) -> Option<Mark> {
    let (volume, rest) = line.strip_prefix("written by pvc-")?.split_once(" in write ")?;
    let (turn, _) = rest.split_once(" of ")?;
    Some(Mark { volume: Number(volume.parse().ok()?), turn: turn.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn of(volume: u16, turn: u16) -> Mark {
        Mark { volume: Number(volume), turn }
    }

    proptest! {
        #[test]
        fn a_line_of_another_write_is_found_wherever_it_is(
            volume: u16, other: u16, turn: u16, another: u16, is_other: bool,
            slot: u16, page in 0usize..8, line in 0usize..64,
        ) {
            let (own, found) = (of(volume, turn), if is_other { of(other, turn) } else { of(volume, another) });
            let mut image = vec![0; 8 * PAGE];
            image[..SLOT.get() as usize].copy_from_slice(&content(own, slot));
            prop_assert_eq!(foreign(&image, |_| [Some(own), None]), None);
            let at = page * PAGE + line * LINE;
            image[at..at + LINE].copy_from_slice(&content(found, slot)[..LINE]);
            let first = foreign(&image, |_| [Some(own), None]);
            prop_assert_eq!(first.as_ref().map(|(at, _)| *at), (own != found).then_some(at));
            prop_assert_eq!(first.map(|(_, line)| mark(&line)), (own != found).then_some(Some(found)));
            prop_assert_eq!(foreign(&image, |_| [Some(own), Some(found)]), None);
        }

        #[test]
        fn each_line_names_its_write(volume: u16, turn: u16, slot: u16) {
            let whole = content(of(volume, turn), slot);
            prop_assert_eq!(whole.len() as u64, SLOT.get());
            for line in whole.chunks(LINE) {
                prop_assert_eq!(mark(std::str::from_utf8(line).unwrap()), Some(of(volume, turn)));
            }
        }

        #[test]
        fn each_sector_may_be_of_either_write(kept in prop::collection::vec(any::<bool>(), 16)) {
            let [former, new] = [1, 2].map(|turn| of(1, turn));
            let [before, after] = [former, new].map(|mark| content(mark, 3));
            let sectors = before.chunks(SECTOR).zip(after.chunks(SECTOR)).zip(&kept);
            let found = sectors.map(|((before, after), kept)| if *kept { after } else { before });
            let found = found.collect::<Vec<_>>().concat();
            prop_assert!(is_of(&found, 3, [Some(former), Some(new)]));
            prop_assert_eq!(is_of(&found, 3, [Some(former), None]), !kept.contains(&true));
            prop_assert_eq!(is_of(&found, 3, [None, Some(new)]), !kept.contains(&false));
        }
    }

    #[test]
    fn zeros_half_sectors_and_another_slot_are_not_what_was_written() {
        let marks = [1, 2].map(|turn| Some(of(1, turn)));
        let whole = content(of(1, 1), 3);
        let holed = [&ZEROS[..SECTOR], &whole[SECTOR..]].concat();
        let torn = [&content(of(1, 2), 3)[..LINE], &whole[LINE..]].concat();
        for found in [holed, torn, content(of(1, 1), 4)] {
            assert!(!is_of(&found, 3, marks));
        }
    }

    #[test]
    fn each_slot_has_marks_of_its_own() {
        let image = [content(of(1, 1), 0), content(of(2, 1), 1)].concat();
        assert_eq!(foreign(&image, |slot| [Some(of(slot + 1, 1)), None]), None);
        for second in [None, Some(of(1, 1))] {
            let first = |slot: u16| [if slot == 0 { Some(of(1, 1)) } else { second }, None];
            assert_eq!(foreign(&image, first).map(|(at, _)| at as u64), Some(SLOT.get()));
        }
    }

    #[test]
    fn a_number_does_not_match_a_part_of_another() {
        for (written, own) in [((12, 1), (1, 1)), ((1, 1), (12, 1)), ((1, 12), (1, 1)), ((1, 1), (1, 12))] {
            let [written, own] = [written, own].map(|(volume, turn)| of(volume, turn));
            assert!(foreign(&content(written, 0), |_| [Some(own), None]).is_some());
        }
        assert!(foreign(b"anything else", |_| [Some(of(1, 1)), None]).is_some());
        assert_eq!(mark("anything else"), None);
    }
}
