//! Sequences of operations on volumes. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use units::Bytes;

use crate::life::{Body, Life, Lives, after, is_shared, slots};
use crate::operation::{Action, Case, Number, Operation, Shape};
use crate::random::Random;
use crate::thin::with_thin_snapshots;

/// Sizes of volumes in MiB. They are small, because the check of each cut reads all volumes.
const SIZES: [u64; 4] = [1, 2, 3, 4];

/// Number of volumes at a time from which on no new one is created.
const CROWD: usize = 6;

/// Maximum number of random operations that run at once, so that they share forces of the log.
pub(crate) const PARALLEL: usize = 3;

/// Operations in rounds. The operations of a round are on different volumes, including their sources, and run at once.
/// A round begins when the round before it has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    rounds: Vec<Vec<Operation>>,
}

impl History {
    /// A history that runs these operations one after the other.
    pub fn sequence(operations: impl IntoIterator<Item = Operation>) -> Self {
        let all = Self { rounds: operations.into_iter().map(|operation| vec![operation]).collect() };
        assert_eq!(all.only(|_, _| true), all, "an operation is not possible where it stands");
        all
    }

    /// Case of each operation, in the order of their numbers.
    pub fn cases(&self) -> Vec<Case> {
        let (mut shapes, mut thin) = (BTreeMap::new(), BTreeSet::new());
        let case = |Operation { volume, action }: Operation| {
            let shape = match action {
                Action::Provision { shape, .. }
                | Action::Clone { shape, .. }
                | Action::RestoreSnapshot { shape, .. } => Some(shape),
                Action::Snapshot { source: of, .. }
                | Action::SnapshotGroup { source: of, .. }
                | Action::RollBack { volume: of, .. } => Some(shapes[&of]),
                _ => None,
            };
            if let Action::SnapshotGroup { second, second_source, .. } = action {
                shapes.insert(second, shapes[&second_source]);
            }
            shapes.extend(shape.map(|shape| (volume, shape)));
            if let Action::Snapshot { is_thin: true, .. } = action {
                thin.insert(volume);
            }
            let is_thin_removed = action == Action::RemoveSnapshot && thin.contains(&volume);
            (if is_thin_removed { Action::REMOVE_THIN } else { action.name() }, shapes[&volume])
        };
        self.operations().map(case).collect()
    }

    /// A random history of `count` operations, to which operations on thin snapshots are added.
    pub fn from_seed(seed: u64, count: usize) -> Self {
        let (rounds, mut random) = Self::without_thin_snapshots(seed, count);
        Self { rounds: with_thin_snapshots(rounds, &mut random) }
    }

    /// Operations of a seed in rounds, without those on thin snapshots, and the generator that continues with these.
    pub(crate) fn without_thin_snapshots(seed: u64, count: usize) -> (Vec<Vec<Operation>>, Random) {
        let mut random = Random::from_seed(seed);
        let mut lives = Lives::new();
        let (mut rounds, mut left, mut next) = (Vec::new(), count, 0);
        while left > 0 {
            let width = (1 + random.below(PARALLEL)).min(left);
            let before = lives.clone();
            let mut round: Vec<Operation> = Vec::new();
            for _ in 0..width {
                let there: Vec<Number> = before
                    .iter()
                    .filter(|(number, life)| {
                        !matches!(life, Life::Gone(_)) && !round.iter().any(|operation| operation.touches(**number))
                    })
                    .map(|(number, _)| *number)
                    .collect();
                let new = there.is_empty() || there.len() < CROWD && random.below(3) == 0;
                let chosen = if new { None } else { random.one_of(&there).copied() };
                let volume = chosen.unwrap_or(Number(next + 1));
                let life = before.get(&volume).cloned().unwrap_or_default();
                let action = match life {
                    Life::Unborn => first_action(volume, &there, &before, &mut random),
                    _ => next_action(volume, &life, &before, &mut random),
                };
                let Some(operation) = action.map(|action| Operation { volume, action }) else { continue };
                let Some(changed) = after(operation, &before) else { continue };
                next = changed.iter().fold(next, |next, (number, _)| next.max(number.0));
                lives.extend(changed);
                round.push(operation);
            }
            left = left.saturating_sub(round.len().max(1));
            if !round.is_empty() {
                rounds.push(round);
            }
        }
        (rounds, random)
    }

    /// Rounds of operations with their numbers, which increase through all rounds.
    pub fn rounds(&self) -> impl Iterator<Item = Vec<(usize, Operation)>> {
        let mut number = 0;
        self.rounds.iter().map(move |round| {
            let first = number;
            number += round.len();
            (first..).zip(round.iter().copied()).collect()
        })
    }

    /// All operations, in an order in which they could have run one after the other.
    pub fn operations(&self) -> impl Iterator<Item = Operation> {
        self.rounds.iter().flatten().copied()
    }

    /// Shorter histories, the shortest first: without one volume, then without one operation and the operations that
    /// are not possible without it.
    pub fn shorter(&self) -> impl Iterator<Item = Self> {
        let volumes: BTreeSet<Number> = self.operations().map(|operation| operation.volume).collect();
        let without_volume =
            volumes.into_iter().map(|volume| self.only(move |_, operation| operation.volume != volume));
        let total = self.operations().count();
        let without_operation = (0..total).rev().map(|gone| self.only(move |number, _| number != gone));
        without_volume.chain(without_operation)
    }

    /// The history without the operations that had not begun.
    pub fn begun(&self, begun: &BTreeSet<usize>) -> Self {
        self.only(|number, _| begun.contains(&number))
    }

    fn only(&self, keep: impl Fn(usize, Operation) -> bool) -> Self {
        let mut lives = Lives::new();
        let possible = |round: Vec<(usize, Operation)>| -> Vec<Operation> {
            let before = lives.clone();
            let kept = round.into_iter().filter(|(number, operation)| keep(*number, *operation));
            kept.filter_map(|(_, operation)| {
                lives.extend(after(operation, &before)?);
                Some(operation)
            })
            .collect()
        };
        let rounds = self.rounds().map(possible).filter(|round| !round.is_empty()).collect();
        Self { rounds }
    }
}

fn mebibytes(random: &mut Random) -> Option<Bytes> {
    random.one_of(&SIZES).map(|size| Bytes::new(size << 20))
}

/// First action on a new volume. Half of the new volumes are copies of an existing one, or keep the content of a volume
/// before its rollback.
fn first_action(new: Number, there: &[Number], lives: &Lives, random: &mut Random) -> Option<Action> {
    let source = |number: &Number| match &lives[number] {
        Life::Announced(body) | Life::Snapshot(body) => Some((*number, body)),
        _ => None,
    };
    let sources: Vec<_> = there.iter().filter_map(source).collect();
    let chosen = if random.below(2) == 0 { random.one_of(&sources) } else { None };
    match chosen {
        Some(&(source, body)) => {
            let back = |volume: &Number| Action::RollBack { volume: *volume, source };
            let is_possible = |action: &Action| after(Operation { volume: new, action: *action }, lives).is_some();
            let rollbacks: Vec<Action> = there.iter().map(back).filter(is_possible).collect();
            if let Some(rollback) = random.one_of(&rollbacks).filter(|_| random.below(2) == 0) {
                return Some(*rollback);
            }
            let shape = match body.shape {
                Shape::Filesystem => Shape::Filesystem,
                Shape::Thick | Shape::Thin => *random.one_of(&[Shape::Thick, Shape::Thin])?,
            };
            let size = body.size.bytes.saturating_add(Bytes::new((random.below(2) as u64) << 20));
            let is_other = |(number, body): &&(Number, &Body)| !body.is_snapshot && *number != source;
            let others: Vec<Number> = sources.iter().filter(is_other).map(|(number, _)| *number).collect();
            Some(match (body.is_snapshot, random.below(3), random.one_of(&others)) {
                (true, ..) => Action::RestoreSnapshot { source, shape, size },
                (false, 0, _) => Action::Clone { source, shape, size },
                (false, 1, Some(&second_source)) => {
                    Action::SnapshotGroup { source, second: Number(new.0 + 1), second_source }
                }
                (false, ..) => Action::Snapshot { source, is_thin: false },
            })
        }
        None => Some(Action::Provision { shape: *random.one_of(&Shape::ALL)?, size: mebibytes(random)? }),
    }
}

fn next_action(volume: Number, life: &Life, lives: &Lives, random: &mut Random) -> Option<Action> {
    match life {
        Life::Copying(body) if body.is_snapshot => {
            random.one_of(&[Action::Copy, Action::Copy, Action::RemoveSnapshot]).copied()
        }
        Life::Copying(_) => random.one_of(&[Action::Copy, Action::Copy, Action::Undo]).copied(),
        // A snapshot stays for a while, so that it is restored.
        Life::Snapshot(_) => (random.below(2) == 0).then_some(Action::RemoveSnapshot),
        Life::Staged(_) => {
            random.one_of(&[Action::Announce, Action::Announce, Action::Announce, Action::Undo]).copied()
        }
        Life::Announced(body) => {
            let to = body.size.bytes.saturating_add(mebibytes(random)?);
            let is_small = body.size.bytes < Bytes::new(16 << 20);
            let (written, free): (Vec<u16>, Vec<u16>) =
                (0..slots(body.size)).partition(|slot| body.written.contains_key(slot));
            // Sometimes the last free slot, which an expansion may have added, or a slot that was written before.
            let slot = *match random.below(4) {
                0 => free.last(),
                1 if !written.is_empty() => random.one_of(&written),
                _ => random.one_of(&free),
            }?;
            let (slot, turn) = (rewritten(volume, &written, lives, random).unwrap_or(slot), body.turn + 1);
            match random.below(9) {
                0 => Some(Action::Retire),
                1 => Some(Action::ExpandAndRetire { to }),
                2 if is_small => Some(Action::Expand { to }),
                3 if is_small => Some(Action::ExpandAndWrite { to, slot, turn }),
                4 if !body.opened => Some(Action::Open),
                5 if body.opened => Some(Action::Retain),
                _ => Some(Action::Write { slot, turn, leave: random.below(2) == 0 }),
            }
        }
        Life::Retired(body) if body.grown.is_some() => Some(Action::Discard),
        Life::Retired(_) => random.one_of(&[Action::Restore, Action::Discard, Action::Discard]).copied(),
        Life::Retained(_) => Some(Action::Adopt),
        Life::Unborn | Life::Gone(_) => None,
    }
}

/// Slot of a write to a volume that is being copied: mostly one that was written before, because the copy may share its
/// blocks, or have its own blocks only in memory. Takes no number from `random`, so that the other operations of a seed
/// do not depend on it.
fn rewritten(volume: Number, written: &[u16], lives: &Lives, random: &Random) -> Option<u16> {
    let mut aside = Random::from_seed(random.clone().number());
    let is_again = is_shared(volume, lives) && aside.below(4) > 0;
    aside.one_of(written).copied().filter(|_| is_again)
}

/// A line for each round, with the numbers of its operations.
impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for round in self.rounds() {
            let said: Vec<String> = round
                .iter()
                .map(|(number, Operation { volume, action })| format!("{number}: {volume} {action}"))
                .collect();
            writeln!(f, "  {}", said.join("  |  "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Whether each operation is possible in its place, and the operations of each round are on different volumes.
    pub(crate) fn is_possible(history: &History) -> bool {
        let mut lives = Lives::new();
        history.rounds.iter().all(|round| {
            let before = lives.clone();
            let touched = |operation: &Operation| operation.action.others().chain([operation.volume]);
            let volumes: Vec<Number> = round.iter().flat_map(touched).collect();
            let possible =
                round.iter().all(|operation| after(*operation, &before).map(|changed| lives.extend(changed)).is_some());
            possible && volumes.iter().collect::<BTreeSet<_>>().len() == volumes.len()
        })
    }

    proptest! {
        #[test]
        fn a_seed_gives_a_history_that_can_be(seed: u64, count in 0usize..80) {
            let history = History::from_seed(seed, count);
            prop_assert!(is_possible(&history));
            prop_assert_eq!(&history, &History::from_seed(seed, count));
            prop_assert!(history.operations().count() <= 2 * count + Shape::ALL.len());
            let marks: Vec<_> = history.operations().filter_map(|operation| Some(operation.written()?.1)).collect();
            let different = marks.iter().collect::<BTreeSet<_>>().len();
            prop_assert_eq!(different, marks.len(), "each write has content of its own");
        }

        #[test]
        fn what_is_shorter_is_shorter_and_can_be(seed: u64, count in 0usize..30) {
            let history = History::from_seed(seed, count);
            for shorter in history.shorter() {
                prop_assert!(is_possible(&shorter), "{shorter}");
                prop_assert!(shorter.operations().count() < history.operations().count());
            }
        }

        #[test]
        fn what_was_begun_was_possible_without_the_rest(seed: u64, count in 0usize..30, until in 0usize..30) {
            let history = History::from_seed(seed, count);
            let begun: BTreeSet<usize> = (0..history.operations().count().min(until)).collect();
            let operations: Vec<_> = history.operations().take(until).collect();
            prop_assert_eq!(history.begun(&begun).operations().collect::<Vec<_>>(), operations);
        }
    }

    #[test]
    fn operations_of_a_round_run_at_once() {
        let widest = (0..8).flat_map(|seed| History::from_seed(seed, 30).rounds).map(|round| round.len()).max();
        assert_eq!(widest, Some(PARALLEL));
    }

    #[test]
    fn sources_are_written_again_while_they_are_copied() {
        let shape = |operation: Operation, lives: &Lives| {
            let (slot, _) = operation.written()?;
            match lives.get(&operation.volume)? {
                Life::Announced(body) if is_shared(operation.volume, lives) && body.written.contains_key(&slot) => {
                    Some(body.shape)
                }
                _ => None,
            }
        };
        let mut found = BTreeSet::new();
        for seed in 0..100 {
            let mut lives = Lives::new();
            for operation in History::from_seed(seed, 36).operations() {
                found.extend(shape(operation, &lives));
                lives.extend(after(operation, &lives).unwrap_or_default());
            }
        }
        assert_eq!(found, BTreeSet::from(Shape::ALL));
    }
}
