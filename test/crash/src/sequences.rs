//! All short sequences of operations. Pure.

use units::Bytes;

use crate::history::History;
use crate::life::{Life, Lives, after};
use crate::operation::{Action, Number, Operation, Shape};

/// Number of operations in a sequence, of sequences in a part, and of volumes in a sequence.
const LENGTH: usize = 3;
const PART: usize = 8;
const CAST: usize = 4;

impl History {
    /// All sequences of [`LENGTH`] operations, for each kind of volume and each beginning. Their volumes have the
    /// numbers from 1 to [`CAST`].
    fn sequences() -> Vec<Vec<Operation>> {
        let of_shape =
            |shape| beginnings(shape).into_iter().flat_map(move |(begin, count)| longer(shape, begin, count));
        Shape::ALL.into_iter().flat_map(of_shape).collect()
    }

    /// Number of parts of [`History::of_sequences`].
    pub fn parts() -> usize {
        Self::sequences().len().div_ceil(PART)
    }

    /// A part of all sequences, one after the other, each on volumes of its own.
    pub fn of_sequences(part: usize) -> Self {
        Self::part(&Self::sequences(), part)
    }

    /// A thick image and a directory that are overwritten in place while their snapshots are copied. Blocks that the
    /// first call has copied are no longer shared, but XFS keeps this change in memory until it forces its log. The
    /// last image is overwritten while it has a thin snapshot, and again after the snapshot was removed.
    pub fn of_rewrites() -> Self {
        let volumes: [(u16, Shape, &[u16], bool); 3] = [
            // The snapshot of the image shares its second piece until the end.
            (1, Shape::Thick, &[0, 128], false),
            // The order in which files are copied is not known.
            (3, Shape::Filesystem, &[0], false),
            (5, Shape::Thick, &[0, 128], true),
        ];
        Self::sequence(volumes.into_iter().flat_map(|(number, shape, slots, is_thin)| {
            let [volume, snapshot] = [number, number + 1].map(Number);
            let provision = Action::Provision { shape, size: Bytes::new(2 << 20) };
            // The loop device stays attached, because attaching one syncs the image.
            let write = |(&slot, turn)| (volume, Action::Write { slot, turn, leave: true });
            let first = slots.iter().zip(1..).map(write);
            let [again, last] = [10, 11].map(|turn| write((&slots[0], turn)));
            let source = [(volume, provision), (volume, Action::Announce)].into_iter().chain(first);
            let taken = (snapshot, Action::Snapshot { source: volume, is_thin });
            let copied = if is_thin {
                vec![taken, again, (snapshot, Action::RemoveSnapshot), last]
            } else {
                vec![taken, again, (snapshot, Action::Copy)]
            };
            let actions: Vec<_> = source.chain(copied).collect();
            actions.into_iter().map(|(volume, action)| Operation { volume, action })
        }))
    }

    fn part(sequences: &[Vec<Operation>], part: usize) -> Self {
        let numbered = (0..).step_by(CAST).zip(sequences).skip(part * PART).take(PART);
        Self::sequence(
            numbered
                .flat_map(|(last, operations)| operations.iter().map(move |operation| operation.after_number(last))),
        )
    }
}

/// Operations before a sequence, and the number of operations that follow: on a new volume, on an opened volume, on
/// copies that share blocks with a written volume, on a volume that was rolled back, and on a group of two.
fn beginnings(shape: Shape) -> Vec<(Vec<Operation>, usize)> {
    let [volume, copy, restored, other] = [1, 2, 3, 4].map(Number);
    let size = Bytes::MIB;
    let write = Action::Write { slot: 0, turn: 1, leave: false };
    let begin = |operations: &[(Number, Action)]| -> Vec<Operation> {
        operations.iter().map(|&(volume, action)| Operation { volume, action }).collect()
    };
    let provision = [(volume, Action::Provision { shape, size }), (volume, Action::Announce)];
    let with = |more: &[(Number, Action)]| begin(&[&provision[..], more].concat());
    let mut beginnings = vec![(vec![], LENGTH), (with(&[(volume, Action::Open)]), LENGTH)];
    let clone = (copy, Action::Clone { source: volume, shape, size });
    let [snapshot, thin] = [false, true].map(|is_thin| (copy, Action::Snapshot { source: volume, is_thin }));
    let restore = (restored, Action::RestoreSnapshot { source: copy, shape, size });
    let later = (volume, Action::Write { slot: 1, turn: 2, leave: shape == Shape::Thin });
    let rollback = (restored, Action::RollBack { volume, source: copy });
    let copies: [&[_]; 7] = [
        &[clone],
        &[snapshot],
        &[thin],
        &[thin, restore],
        &[thin, later, rollback],
        &[snapshot, (copy, Action::Copy), restore],
        &[snapshot, (copy, Action::Copy), later, rollback],
    ];
    // The copy is the first operation of the sequence.
    beginnings.extend(copies.map(|copies| (with(&[&[(volume, write)], copies].concat()), LENGTH - 1)));
    let group = Action::SnapshotGroup { source: volume, second: restored, second_source: other };
    let group = [
        (volume, write),
        (other, Action::Provision { shape, size }),
        (other, Action::Announce),
        (other, write),
        (copy, group),
    ];
    // Four volumes have too many pairs of operations.
    beginnings.push((with(&group), LENGTH - 2));
    beginnings
}

/// The volumes after these operations. `None` if one of them is not possible in its place.
fn lives_after(operations: &[Operation]) -> Option<Lives> {
    operations.iter().try_fold(Lives::new(), |mut lives, operation| {
        lives.extend(after(*operation, &lives)?);
        Some(lives)
    })
}

/// All sequences that extend `begin` by `count` operations, or by fewer if no other operation is possible.
fn longer(shape: Shape, begin: Vec<Operation>, count: usize) -> Vec<Vec<Operation>> {
    let lives = lives_after(&begin).unwrap_or_default();
    let on_one = |(&volume, life): (&Number, &Life)| {
        life.candidates(volume, shape, &lives).map(|action| Operation { volume, action })
    };
    let candidates: Vec<Operation> = if lives.is_empty() {
        on_one((&Number(1), &Life::Unborn)).to_vec()
    } else {
        lives.iter().flat_map(on_one).collect()
    };
    let next: Vec<Vec<Operation>> = candidates
        .into_iter()
        .map(|operation| [&begin[..], &[operation]].concat())
        .filter(|operations| count > 0 && lives_after(operations).is_some())
        .collect();
    if next.is_empty() {
        vec![begin]
    } else {
        next.into_iter().flat_map(|next| longer(shape, next, count - 1)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::history::tests::is_possible;

    #[test]
    fn the_parts_have_each_pair_of_operations_that_can_follow_each_other() {
        assert!(is_possible(&History::of_rewrites()));
        let all = History::sequences();
        let parts: Vec<History> = (0..History::parts()).map(|part| History::part(&all, part)).collect();
        assert_eq!((all.len(), parts.len()), (1818, 228), "README.md has these numbers");
        assert!(parts.iter().all(is_possible));
        let cast = |part: &History| part.operations().map(|operation| (operation.volume.0 - 1) / CAST as u16).collect();
        let sequences: BTreeSet<u16> = parts.iter().flat_map(cast as fn(&History) -> BTreeSet<u16>).collect();
        assert_eq!(sequences.len(), all.len());
        let pairs = |history: &History| -> BTreeSet<_> {
            let mut last = BTreeMap::new();
            let cases = history.operations().zip(history.cases());
            cases.filter_map(|(operation, case)| Some((last.insert(operation.volume, case)?, case))).collect()
        };
        let found: BTreeSet<_> = parts.iter().flat_map(pairs).collect();
        let random = (0..200).flat_map(|seed| pairs(&History::from_seed(seed, 30)));
        assert_eq!(random.filter(|pair| !found.contains(pair)).collect::<BTreeSet<_>>(), BTreeSet::new());
    }
}
