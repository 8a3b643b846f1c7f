//! All short sequences of operations. Pure.

use units::Bytes;

use crate::history::History;
use crate::life::{Life, Lives, after};
use crate::operation::{Action, Number, Operation, Shape};

/// Number of operations in a sequence, of sequences in a part, and of volumes in a sequence.
const LENGTH: usize = 3;
const PART: usize = 8;
const CAST: usize = 8;

/// Step from one sequence of the parts to the next. It and the number of sequences have no common divisor, so that each
/// sequence is in one part. It is near the golden section of that number, so that the parts from any one on are an even
/// sample.
const STRIDE: usize = 3754;

impl History {
    /// All sequences of [`LENGTH`] operations, for each kind of volume and each beginning. Their volumes have the
    /// numbers from 1 to [`CAST`].
    fn sequences() -> Vec<Vec<Operation>> {
        let of_shape = |shape| {
            let on_one = move |(begin, count)| longer(shape, begin, count, None);
            beginnings(shape).into_iter().flat_map(on_one).chain(with_groups(shape))
        };
        Shape::ALL.into_iter().flat_map(of_shape).collect()
    }

    /// Number of parts of [`History::of_sequences`].
    pub fn parts() -> usize {
        Self::sequences().len().div_ceil(PART)
    }

    /// A part of all sequences, one after the other, each on volumes of its own. It has each kind of volume.
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
        let numbered = (0..).step_by(CAST).zip(of_part(part, sequences.len()).map(|at| &sequences[at]));
        Self::sequence(
            numbered
                .flat_map(|(last, operations)| operations.iter().map(move |operation| operation.after_number(last))),
        )
    }
}

/// Indexes of the sequences of a part, of `count` sequences.
fn of_part(part: usize, count: usize) -> impl Iterator<Item = usize> {
    (part * PART..count).take(PART).map(move |at| at * STRIDE % count)
}

/// Operations before a sequence, and the number of operations that follow: on an empty disk, where two of them create
/// the volume; on a written volume; on a restored snapshot that shares blocks; and on a volume that was rolled back.
fn beginnings(shape: Shape) -> Vec<(Vec<Operation>, usize)> {
    let [volume, copy, restored] = [1, 2, 3].map(Number);
    let [snapshot, thin] = [false, true].map(|is_thin| (copy, Action::Snapshot { source: volume, is_thin }));
    let complete = (copy, Action::Copy);
    let restore = (restored, Action::RestoreSnapshot { source: copy, shape, size: Bytes::MIB });
    let later = (volume, Action::Write { slot: 1, turn: 2, leave: shape == Shape::Thin });
    let rollback = (restored, Action::RollBack { volume, source: copy });
    let with = |more: &[(Number, Action)]| operations(&[&written(volume, shape)[..], more].concat());
    let copies: [&[_]; 4] = [
        &[thin, restore],
        &[thin, later, rollback],
        &[snapshot, complete, restore],
        &[snapshot, complete, later, rollback],
    ];
    let mut beginnings = vec![(vec![], LENGTH + 1), (with(&[]), LENGTH)];
    // The restored volume or the rollback is the first operation of the sequence.
    beginnings.extend(copies.map(|copies| (with(copies), LENGTH - 1)));
    beginnings
}

/// Sequences on two written volumes that have a group of both. The volumes are alike and independent: the second one
/// has no other operations.
fn with_groups(shape: Shape) -> Vec<Vec<Operation>> {
    let [volume, partner] = [1, 2].map(Number);
    let begin = operations(&[written(volume, shape), written(partner, shape)].concat());
    let mut all = longer(shape, begin, LENGTH, Some(partner));
    all.retain(|sequence| sequence.iter().any(is_group));
    all
}

fn written(volume: Number, shape: Shape) -> [(Number, Action); 3] {
    let write = Action::Write { slot: 0, turn: 1, leave: false };
    [Action::Provision { shape, size: Bytes::MIB }, Action::Announce, write].map(|action| (volume, action))
}

fn operations(actions: &[(Number, Action)]) -> Vec<Operation> {
    actions.iter().map(|&(volume, action)| Operation { volume, action }).collect()
}

fn is_group(operation: &Operation) -> bool {
    matches!(operation.action, Action::SnapshotGroup { .. })
}

/// The volumes after these operations. `None` if one of them is not possible in its place.
fn lives_after(operations: &[Operation]) -> Option<Lives> {
    operations.iter().try_fold(Lives::new(), |mut lives, operation| {
        lives.extend(after(*operation, &lives)?);
        Some(lives)
    })
}

/// All sequences that extend `begin` by `count` operations, or by fewer if no other operation is possible. The only
/// operations on `partner` are groups.
fn longer(shape: Shape, begin: Vec<Operation>, count: usize, partner: Option<Number>) -> Vec<Vec<Operation>> {
    if count == 0 {
        return vec![begin];
    }
    let lives = lives_after(&begin).unwrap_or_default();
    let is_possible = |operation: &Operation| {
        let is_apart = partner.is_none_or(|partner| is_group(operation) || !operation.touches(partner));
        is_apart && after(*operation, &lives).is_some()
    };
    let next: Vec<Operation> = candidates(shape, &lives).into_iter().filter(is_possible).collect();
    if next.is_empty() {
        return vec![begin];
    }
    let with = |operation| longer(shape, [&begin[..], &[operation]].concat(), count - 1, partner);
    next.into_iter().flat_map(with).collect()
}

/// Operations that may follow. Not all of them are possible.
fn candidates(shape: Shape, lives: &Lives) -> Vec<Operation> {
    if lives.is_empty() {
        return operations(&[(Number(1), Action::Provision { shape, size: Bytes::MIB })]);
    }
    let on_one = |(&volume, life): (&Number, &Life)| {
        life.candidates(volume, shape, lives).map(|action| Operation { volume, action })
    };
    lives.iter().flat_map(on_one).chain(copies(lives)).collect()
}

/// Each operation that begins a copy of a volume or snapshot, in its kind and size. Not all of them are possible.
fn copies(lives: &Lives) -> Vec<Operation> {
    let last = lives.keys().next_back().map_or(0, |last| last.0);
    let [new, second] = [last + 1, last + 2].map(Number);
    let mut copies = Vec::new();
    for (&source, life) in lives {
        match life {
            Life::Announced(body) => {
                copies.push(Action::Clone { source, shape: body.shape, size: body.size.bytes });
                copies.extend([false, true].map(|is_thin| Action::Snapshot { source, is_thin }));
                let group = |(&second_source, _)| Action::SnapshotGroup { source, second, second_source };
                copies.extend(lives.range(source..).map(group));
                copies.extend(lives.keys().map(|&from| Action::RollBack { volume: source, source: from }));
            }
            Life::Snapshot(body) => {
                copies.push(Action::RestoreSnapshot { source, shape: body.shape, size: body.size.bytes });
            }
            _ => {}
        }
    }
    copies.into_iter().map(|action| Operation { volume: new, action }).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::history::tests::is_possible;
    use crate::life::{has_thin_snapshot, is_shared};

    #[test]
    fn the_parts_have_each_pair_of_operations_that_can_follow_each_other() {
        assert!(is_possible(&History::of_rewrites()));
        let all = History::sequences();
        let parts: Vec<History> = (0..History::parts()).map(|part| History::part(&all, part)).collect();
        assert_eq!((all.len(), parts.len()), (6075, 760), "README.md has these numbers");
        assert!(parts.iter().all(is_possible));
        let pairs = |history: &History| -> BTreeSet<_> {
            let mut last = BTreeMap::new();
            let cases = history.operations().zip(history.cases());
            cases.filter_map(|(operation, case)| Some((last.insert(operation.volume, case)?, case))).collect()
        };
        let found: BTreeSet<_> = parts.iter().flat_map(pairs).collect();
        let random = (0..200).flat_map(|seed| pairs(&History::from_seed(seed, 30)));
        assert_eq!(random.filter(|pair| !found.contains(pair)).collect::<BTreeSet<_>>(), BTreeSet::new());
    }

    #[test]
    fn each_part_is_an_even_sample_of_the_sequences() {
        let all = History::sequences();
        let chosen: BTreeSet<usize> = (0..History::parts()).flat_map(|part| of_part(part, all.len())).collect();
        assert_eq!(chosen.len(), all.len(), "each sequence is in one part");
        let numbers = |operation: &Operation| operation.action.others().chain([operation.volume]);
        assert_eq!(all.iter().flatten().flat_map(numbers).max(), Some(Number(CAST as u16)));
        for part in 0..all.len() / PART {
            let cases = History::part(&all, part).cases();
            let shapes: BTreeSet<Shape> = cases.into_iter().map(|(_, shape)| shape).collect();
            assert_eq!(shapes, BTreeSet::from(Shape::ALL), "part {part}");
        }
        let total: usize = all.iter().map(Vec::len).sum();
        let sample: usize = (0..20).map(|part| History::part(&all, part).operations().count()).sum();
        let expected = total * 20 * PART / all.len();
        assert!(sample.abs_diff(expected) * 100 < expected, "{sample} operations, {expected} expected");
    }

    #[test]
    fn sources_of_thin_snapshots_are_overwritten_in_place() {
        let mut found = BTreeSet::new();
        for sequence in History::sequences() {
            let mut lives = Lives::new();
            for operation in sequence {
                if let Some((slot, _)) = operation.written()
                    && let Some(Life::Announced(body)) = lives.get(&operation.volume)
                    && has_thin_snapshot(operation.volume, &lives)
                    && !is_shared(operation.volume, &lives)
                    && body.written.contains_key(&slot)
                {
                    found.insert(body.shape);
                }
                lives.extend(after(operation, &lives).unwrap_or_default());
            }
        }
        assert_eq!(found, BTreeSet::from(Shape::ALL));
    }

    #[test]
    fn copies_begin_before_and_after_each_other_and_a_write() {
        let all = History::sequences();
        let pairs = all.iter().flat_map(|sequence| sequence.windows(2));
        let found: BTreeSet<_> = pairs.map(|pair| [pair[0].action.name(), pair[1].action.name()]).collect();
        let names = ["write", "clone", "snapshot", "thin snapshot", "snapshot group", "restore snapshot"];
        for pair in names.into_iter().flat_map(|one| names.map(|other| [one, other])) {
            assert!(found.contains(&pair), "{pair:?}");
        }
        // A rollback waits for other copies of its volume.
        for other in ["write", "thin snapshot", "restore snapshot", "rollback"] {
            assert!(found.contains(&[other, "rollback"]) && found.contains(&["rollback", other]), "{other}");
        }
    }
}
