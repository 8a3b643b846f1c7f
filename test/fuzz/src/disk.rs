//! The ends of a disk, by which the node classifies the disk as its own, empty or foreign.

use localstorage::{Content, Ends, LABEL, Mark, Signature, Usage};
use units::Bytes;

/// Only zeros may be classified as empty, and only the node's label as the node's disk; foreign content must exist. An
/// input is a byte (the number of marks that `blkid` found), eight bytes (the size of the disk), and the two ends,
/// which have the same length.
pub fn check(input: &[u8]) {
    let Some((disk, marks)) = disk(input) else { return };
    match disk.content(&marks) {
        Content::Empty => {
            assert!(marks.is_empty() && disk.head.iter().chain(disk.tail).all(|byte| *byte == 0));
        }
        Content::Data(geometry) => {
            assert_eq!(disk.geometry(), Some(geometry));
            assert_eq!(&disk.head[..4], b"XFSB");
            assert_eq!(&disk.head[108..120], LABEL.as_bytes());
            assert_eq!(
                geometry.block,
                Bytes::new(u32::from_be_bytes(*disk.head[4..].first_chunk().expect("512")).into())
            );
        }
        Content::Unfinished => {
            assert_eq!(disk.geometry(), None);
            assert_eq!(&disk.head[..4], b"XFSB");
        }
        Content::Foreign(Signature::Known(known)) => assert!(!known.is_empty() && known == marks),
        Content::Foreign(Signature::Unknown { at }) => {
            let begin = disk.size.get().saturating_sub(disk.tail.len() as u64);
            let in_head = usize::try_from(at).ok().and_then(|at| disk.head.get(at));
            let in_tail = at.checked_sub(begin).and_then(|at| disk.tail.get(usize::try_from(at).ok()?));
            assert!(in_head.is_some_and(|byte| *byte != 0) || in_tail.is_some_and(|byte| *byte != 0), "{at}");
        }
        Content::Unexamined => panic!("the disk was examined"),
    }
}

fn disk(input: &[u8]) -> Option<(Ends<'_>, Vec<Mark>)> {
    let (marks, rest) = input.split_first()?;
    let (size, ends) = rest.split_first_chunk()?;
    let (head, tail) = ends.split_at(ends.len() / 2);
    let mark = Mark { format: "xfs".to_owned(), usage: Usage::Filesystem, label: None };
    Some((Ends { head, tail, size: Bytes::new(u64::from_le_bytes(*size)) }, vec![mark; usize::from(marks % 3)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_what_their_names_say() {
        for (name, seed) in crate::seeds("disk") {
            check(&seed);
            let (disk, marks) = disk(&seed).expect("a disk");
            let found = disk.content(&marks);
            match name.as_str() {
                "empty" => assert_eq!(found, Content::Empty),
                "ours" => assert!(matches!(found, Content::Data(_)), "{found:?}"),
                "unfinished" => assert_eq!(found, Content::Unfinished),
                "xfs" => assert!(matches!(found, Content::Foreign(Signature::Known(_))), "{found:?}"),
                "tail" => assert!(matches!(found, Content::Foreign(Signature::Unknown { .. })), "{found:?}"),
                _ => {} // The fuzzer has found this seed.
            }
        }
    }
}
