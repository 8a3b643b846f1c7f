//! The states of each volume after a power cut, and the state that the cluster wants. Pure.

use std::collections::{BTreeMap, BTreeSet};

use fsquota::Limits;
use units::Bytes;

use crate::history::History;
use crate::life::{Body, Life, Lives, Origin, Size, after};
use crate::operation::{Action, Case, Mark, Number, Operation, Shape};

/// Operations that had begun, and operations that had ended, when the power failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    begun: BTreeSet<usize>,
    ended: BTreeSet<usize>,
}

/// Mark in the log of writes before an operation.
pub fn begin(operation: usize) -> String {
    format!("begin {operation}")
}

/// Mark after an operation, whose durable results must be on the disk from this mark on.
pub fn end(operation: usize) -> String {
    format!("end {operation}")
}

/// Operations that may flush nothing. The last two flush for files, but need not flush for images.
const QUIET: [&str; 6] = ["announce", "open", "retain", "adopt", "clone", "restore snapshot"];

impl Progress {
    /// Progress at a cut, from the marks before it.
    pub fn from_marks<'a>(marks: impl Iterator<Item = &'a str>) -> Self {
        let mut progress = Self::default();
        for mark in marks {
            match mark.split_once(' ').map(|(word, number)| (word, number.parse())) {
                Some(("begin", Ok(number))) => progress.begun.insert(number),
                Some(("end", Ok(number))) => progress.ended.insert(number),
                _ => false,
            };
        }
        progress
    }

    /// Numbers of the operations that had begun.
    pub fn begun(&self) -> &BTreeSet<usize> {
        &self.begun
    }

    /// Cases that a cut interrupts. Announcing, opening, retaining and adopting may write nothing, and the first call
    /// of a clone may flush nothing: the log then has its writes after the next flush. Therefore any cut before the
    /// next operation on the volume also counts for these operations.
    pub fn shown(&self, history: &History) -> BTreeSet<Case> {
        let mut last = BTreeMap::new();
        for (number, Operation { volume, .. }) in history.rounds().flatten() {
            if self.begun.contains(&number) {
                last.insert(volume, number);
            }
        }
        let cases = history.cases();
        let is_shown = |number: &usize| !self.ended.contains(number) || QUIET.contains(&cases[*number].0);
        last.into_values().filter(is_shown).map(|number| cases[number]).collect()
    }
}

impl Body {
    /// Limits of a volume or snapshot of this kind with this size. An image and a snapshot may use their size, one
    /// block of 4 KiB in 124 for the maps of extents, and 2.5 MiB: see "Reserved space" in the README of
    /// `//node/kubernetes/volume`.
    pub fn limits(&self, Size { bytes, inodes }: Size) -> Limits {
        let map = bytes.div_ceil::<4096>().div_ceil(124) << 12;
        let bytes = match self.shape {
            Shape::Filesystem if !self.is_snapshot => bytes,
            Shape::Filesystem | Shape::Thick | Shape::Thin => Bytes::new(bytes.get() + map + (5 << 19)),
        };
        Limits { bytes: Some(bytes), inodes: Some(inodes) }
    }
}

/// Directory of the store that contains a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Register {
    Pending,
    Records,
}

/// Directory of the store that contains the directory of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Staging,
    Live,
    Trash,
}

/// Places of a volume's record and directory. No state allows a directory without a record.
pub type Spot = Option<(Register, Option<Place>)>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    pub body: Option<Body>,
    /// Slot that is being written, and its new mark. Each sector has the new content or the former one.
    pub writing: Option<(u16, Mark)>,
    /// Like `writing`, for the source of a copy that may not be on the disk. Such a copy begins again, from the present
    /// content of its source.
    pub source_writing: Option<(u16, Mark)>,
    pub spots: BTreeSet<Spot>,
    pub sizes: BTreeSet<Size>,
    /// Origin of a copy whose blocks may be shared, and for which the limit of the source may be raised. A thin
    /// snapshot has it until its end.
    pub sharing: Option<Origin>,
    /// Whether a part of the data may be missing, because it is being removed.
    pub fading: bool,
    pub rollback: Option<Rollback>,
    /// Whether the first call of a copy is under way: the copy has any part of its source, and its instant may differ
    /// from that of the rest of its group.
    pub is_begun: bool,
    pub wants: Wants,
}

/// A rollback that is under way, of the volume or of the snapshot that keeps the former content. Before the exchange,
/// that snapshot is a copy of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollback {
    pub kept: Number,
    pub volume: Number,
    pub source: Number,
    pub exchanged: Box<Expected>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wants {
    /// A claim waits, and no PV exists yet.
    Claimed,
    /// The PV stays, and its claim requests this size.
    Bound(Size),
    /// The PV is to be deleted with its data.
    Released,
    /// Neither a PV nor a claim exists, and the volume stays.
    Kept,
    /// The content object of the snapshot exists.
    Taken,
    #[default]
    Nothing,
}

pub fn expected(history: &History, progress: &Progress) -> BTreeMap<Number, Expected> {
    let (mut lives, mut under_way) = (Lives::new(), BTreeMap::new());
    for round in history.rounds() {
        let before = lives.clone();
        for (number, operation) in round {
            let changed = after(operation, &before).unwrap_or_default();
            if progress.ended.contains(&number) {
                lives.extend(changed);
            } else if progress.begun.contains(&number) {
                for (volume, _) in changed {
                    under_way.insert(volume, operation);
                    lives.entry(volume).or_default();
                }
            }
        }
    }
    let one = |(&volume, life): (&Number, &Life)| {
        let expected = match under_way.get(&volume) {
            None => settled(life)?,
            Some(&operation) => during(volume, life, operation, &lives)?,
        };
        let is_volatile = expected.body.as_ref().is_some_and(|body| !body.is_complete_at_once());
        let origin = expected.sharing.filter(|_| is_volatile);
        let source_writing = origin.and_then(|origin| under_way.get(&origin.source)?.written());
        Some((volume, Expected { source_writing, ..expected }))
    };
    lives.iter().filter_map(one).collect()
}

const ABSENT: Spot = None;

const fn at(register: Register, place: Place) -> Spot {
    Some((register, Some(place)))
}

/// A record without data, which does not exist yet or is removed.
const fn bare(register: Register) -> Spot {
    Some((register, None))
}

/// Expected state of a volume without an operation under way. `None` before the first operation.
fn settled(life: &Life) -> Option<Expected> {
    let (body, spots, wants) = match life {
        Life::Unborn => return None,
        Life::Copying(body) => (body, copying(body), if body.is_snapshot { Wants::Taken } else { Wants::Claimed }),
        Life::Snapshot(body) => (body, [at(Register::Records, Place::Live)].into(), Wants::Taken),
        Life::Staged(body) => (body, [at(Register::Pending, Place::Live)].into(), Wants::Claimed),
        Life::Announced(body) => (body, registers(body, Place::Live), Wants::Bound(body.size)),
        Life::Retired(body) => (body, registers(body, Place::Trash), Wants::Released),
        Life::Retained(body) => (body, registers(body, Place::Live), Wants::Kept),
        // The limit of the source was lowered, but this change may not be durable.
        Life::Gone(origin) => return Some(Expected { sharing: *origin, ..Expected::nothing() }),
    };
    let sizes = [body.size].into_iter().chain(body.grown).collect();
    let sharing = body.origin.filter(|_| body.is_thin || matches!(life, Life::Copying(_)));
    Some(Expected { sizes, body: Some(body.clone()), spots, sharing, wants, ..Expected::nothing() })
}

/// Places of a copy between its calls. Files and snapshots are durable when the first call returns. A clone of an image
/// need not be durable before the last call, which completes the copy.
fn copying(body: &Body) -> BTreeSet<Spot> {
    use Register::{Pending, Records};

    let begun: &[Spot] = if body.is_complete_at_once() { &[] } else { &[ABSENT, bare(Pending)] };
    let copied = [at(Pending, Place::Staging), at(Pending, Place::Live)];
    let finished = body.is_snapshot.then_some(at(Records, Place::Live));
    begun.iter().copied().chain(copied).chain(finished).collect()
}

/// Places after an announcement, which moves the record without a force of the log. Opening the volume makes the move
/// durable.
fn registers(body: &Body, place: Place) -> BTreeSet<Spot> {
    let records = at(Register::Records, place);
    if body.opened { [records].into() } else { [at(Register::Pending, place), records].into() }
}

/// Expected state of a volume during an operation: the state before it, the state after it, or any of its steps.
fn during(volume: Number, life: &Life, operation: Operation, lives: &Lives) -> Option<Expected> {
    use Register::{Pending, Records};

    let before = settled(life);
    let (_, life) = after(operation, lives)?.into_iter().find(|(number, _)| *number == volume)?;
    let after = settled(&life)?;
    let action = operation.action;
    let steps: &[Spot] = match action {
        Action::Provision { .. }
        | Action::Clone { .. }
        | Action::Snapshot { .. }
        | Action::SnapshotGroup { .. }
        | Action::RestoreSnapshot { .. } => {
            &[ABSENT, bare(Pending), at(Pending, Place::Staging), at(Pending, Place::Live)]
        }
        Action::Undo => &[at(Pending, Place::Trash), bare(Pending)],
        Action::Discard => &[bare(Pending), bare(Records)],
        Action::RemoveSnapshot => &[at(Pending, Place::Trash), bare(Pending), at(Records, Place::Trash), bare(Records)],
        Action::Announce
        | Action::Open
        | Action::Write { .. }
        | Action::Expand { .. }
        | Action::ExpandAndWrite { .. }
        | Action::ExpandAndRetire { .. }
        | Action::Retain
        | Action::Adopt
        | Action::Retire
        | Action::Restore
        | Action::Copy => &[],
        Action::RollBack { volume, source } => {
            return rolling_back(
                Rollback { kept: operation.volume, volume, source, exchanged: after.into() },
                before,
                lives,
            );
        }
    };
    let sharing = before.as_ref().and_then(|before| before.sharing).or(after.sharing);
    let body = before.as_ref().map_or(after.body, |before| before.body.clone());
    let (spots, sizes) = before.map_or_else(Default::default, |before| (before.spots, before.sizes));
    Some(Expected {
        body,
        writing: operation.written(),
        is_begun: matches!(
            action,
            Action::Clone { .. }
                | Action::Snapshot { .. }
                | Action::SnapshotGroup { .. }
                | Action::RestoreSnapshot { .. }
        ),
        spots: spots.into_iter().chain(after.spots).chain(steps.iter().copied()).collect(),
        sizes: sizes.into_iter().chain(after.sizes).collect(),
        sharing,
        fading: matches!(action, Action::Discard | Action::Undo | Action::RemoveSnapshot),
        wants: after.wants,
        ..Expected::default()
    })
}

/// Expected state during a rollback; without a state before, that of the kept snapshot. The log has the exchange, then
/// the records, then the other changes.
fn rolling_back(mut rollback: Rollback, before: Option<Expected>, lives: &Lives) -> Option<Expected> {
    use Register::{Pending, Records};

    if let Some(before) = before {
        return Some(Expected { rollback: Some(rollback), ..before });
    }
    let Life::Snapshot(source) = lives.get(&rollback.source)? else { return None };
    let kept = rollback.exchanged.body.as_ref()?;
    let copy = source.copy(rollback.source, kept.shape, kept.size.bytes)?;
    let copy = Body { is_snapshot: true, size: kept.size, ..copy };
    rollback.exchanged.spots = [at(Pending, Place::Staging), at(Pending, Place::Live), at(Records, Place::Live)].into();
    Some(Expected {
        spots: [ABSENT, bare(Pending), at(Pending, Place::Staging)].into(),
        sizes: rollback.exchanged.sizes.clone(),
        sharing: copy.origin,
        body: Some(copy),
        is_begun: true,
        wants: rollback.exchanged.wants,
        rollback: Some(rollback),
        ..Expected::nothing()
    })
}

impl Expected {
    pub(crate) fn nothing() -> Self {
        Self { spots: [ABSENT].into(), ..Self::default() }
    }

    pub fn reconciled(&self) -> Self {
        if let Some(Rollback { exchanged, .. }) = &self.rollback {
            return exchanged.reconciled();
        }
        let (size, wants) = match (self.wants, &self.body) {
            (Wants::Claimed, Some(body)) => (body.size, Wants::Bound(body.size)),
            (Wants::Bound(size), Some(_)) => (size, self.wants),
            (Wants::Kept | Wants::Taken, Some(body)) => (body.size, self.wants),
            (_, None) | (Wants::Released | Wants::Nothing, _) => return Self::nothing(),
        };
        Self {
            body: self.body.clone(),
            writing: self.writing.or(self.source_writing),
            spots: [at(Register::Records, Place::Live)].into(),
            sizes: [size].into(),
            sharing: self.body.as_ref().filter(|body| body.is_thin).and_then(|body| body.origin),
            wants,
            ..Self::nothing()
        }
    }

    /// The space that the ledger reserves for a volume after a comparison.
    pub fn reserved(&self) -> Bytes {
        let Some(body) = self.body.as_ref().filter(|body| !body.is_thin) else { return Bytes::ZERO };
        let of_size = |size: &Size| {
            let Limits { bytes, inodes } = body.limits(*size);
            bytes.unwrap_or_default().saturating_add(Bytes::new(inodes.unwrap_or_default().get() * 512))
        };
        self.sizes.iter().map(of_size).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A moment of a history: all operations of some rounds have ended; of the next round, some operations have begun
    /// and some have ended.
    fn moment() -> impl Strategy<Value = (History, Progress, Option<usize>)> {
        (any::<u64>(), 1usize..40, any::<prop::sample::Index>(), any::<u8>(), any::<u8>()).prop_map(
            |(seed, count, at, begun, ended)| {
                let history = History::from_seed(seed, count);
                let rounds: Vec<_> = history.rounds().collect();
                let now = at.index(rounds.len());
                let mut progress = Progress::default();
                for (number, _) in rounds[..now].iter().flatten() {
                    progress.begun.insert(*number);
                    progress.ended.insert(*number);
                }
                let mut under_way = None;
                for (bit, (number, _)) in rounds[now].iter().enumerate() {
                    if begun & 1 << bit != 0 {
                        progress.begun.insert(*number);
                        if ended & 1 << bit != 0 {
                            progress.ended.insert(*number);
                        } else {
                            under_way = Some(*number);
                        }
                    }
                }
                (history, progress, under_way)
            },
        )
    }

    proptest! {
        #[test]
        fn whatever_may_be_before_or_after_an_operation_may_be_during_it((history, progress, under_way) in moment()) {
            let Some(number) = under_way else { return Ok(()) };
            let volume = history.operations().nth(number).map(|operation| operation.volume).unwrap();
            let (mut before, mut after) = (progress.clone(), progress.clone());
            before.begun.remove(&number);
            after.ended.insert(number);
            let during = &expected(&history, &progress)[&volume];
            let later = during.rollback.as_ref().map(|rollback| &*rollback.exchanged);
            let has = |spot: &Spot| [Some(during), later].into_iter().flatten().any(|during| during.spots.contains(spot));
            prop_assert_eq!(during.wants, expected(&history, &after)[&volume].wants, "the cluster is never behind");
            for settled in [before, after].map(|progress| expected(&history, &progress).remove(&volume)) {
                match settled {
                    Some(settled) => {
                        prop_assert!(settled.spots.iter().all(has));
                        prop_assert!(settled.sizes.is_subset(&during.sizes));
                    }
                    None => prop_assert!(has(&ABSENT)),
                }
            }
        }

        /// A rollback keeps the former data in a snapshot.
        #[test]
        fn synced_data_is_never_given_up_but_by_a_removal((history, progress, _) in moment()) {
            let synced = history
                .rounds()
                .flatten()
                .filter(|(number, _)| progress.ended.contains(number))
                .filter_map(|(_, operation)| operation.written());
            let expected = expected(&history, &progress);
            for (slot, Mark { volume, turn }) in synced {
                let keeps = |kept: &Operation| matches!(kept.action, Action::RollBack { volume: of, .. } if of == volume);
                let kept = history.operations().filter(keeps).filter_map(|Operation { volume, .. }| expected.get(&volume));
                let is_it = |mark: &Mark| mark.volume == volume && mark.turn >= turn;
                let has = |Expected { body, fading, .. }: &Expected| {
                    *fading || body.as_ref().is_none_or(|body| body.written.get(&slot).is_some_and(is_it))
                };
                prop_assert!(kept.chain([&expected[&volume]]).any(has));
            }
        }

        #[test]
        fn after_a_comparison_nothing_is_left_open((history, progress, _) in moment()) {
            for expected in expected(&history, &progress).values() {
                let done = expected.reconciled();
                prop_assert_eq!(&done.reconciled(), &done);
                prop_assert!(done.spots.len() == 1 && done.sizes.len() <= 1);
                let is_thin = done.body.as_ref().is_some_and(|body| body.is_thin);
                prop_assert!(done.sharing.is_some() == is_thin && done.rollback.is_none());
                let data = done.body.map(|body| body.written);
                let kept = matches!(expected.wants, Wants::Claimed | Wants::Bound(_) | Wants::Kept | Wants::Taken);
                let last = expected.rollback.as_ref().map_or(expected, |rollback| &rollback.exchanged);
                prop_assert_eq!(data, last.body.as_ref().filter(|_| kept).map(|body| body.written.clone()));
            }
        }

        #[test]
        fn marks_are_read_as_they_are_written(numbers in prop::collection::btree_set(0usize..99, 0..20)) {
            let marks: Vec<String> = numbers.iter().flat_map(|number| [begin(*number), end(*number)]).collect();
            let progress = Progress::from_marks(marks.iter().map(String::as_str).chain(["something else"]));
            prop_assert_eq!(progress, Progress { begun: numbers.clone(), ended: numbers });
        }
    }

    /// Progress in which all operations before this one have ended, and it has begun.
    fn within(operation: usize) -> Progress {
        Progress { begun: (0..=operation).collect(), ended: (0..operation).collect() }
    }

    const SOURCE: Number = Number(1);
    const COPY: Number = Number(2);

    /// A thick image: slot 0 is written, the image is copied, and slot 0 is written again.
    fn written_again(copy: Action) -> History {
        let write = |turn| (SOURCE, Action::Write { slot: 0, turn, leave: false });
        let provision = Action::Provision { shape: Shape::Thick, size: Bytes::MIB };
        let actions =
            [(SOURCE, provision), (SOURCE, Action::Announce), write(1), (COPY, copy), write(2), (COPY, Action::Copy)];
        History::sequence(actions.map(|(volume, action)| Operation { volume, action }))
    }

    #[test]
    fn a_copy_has_the_content_of_its_instant() {
        let [first, second] = [1, 2].map(|turn| Mark { volume: SOURCE, turn });
        let history = written_again(Action::Snapshot { source: SOURCE, is_thin: false });
        let written = |expected: &Expected| expected.body.as_ref().map(|body| body.written.clone());
        for (operation, of_source, writing) in [(4, first, Some((0, second))), (5, second, None)] {
            let expected = expected(&history, &within(operation));
            assert_eq!(written(&expected[&SOURCE]), Some(BTreeMap::from([(0, of_source)])));
            assert_eq!(expected[&SOURCE].writing, writing);
            for copy in [&expected[&COPY], &expected[&COPY].reconciled()] {
                assert_eq!(written(copy), Some(BTreeMap::from([(0, first)])));
                assert_eq!((copy.writing, copy.source_writing), (None, None));
            }
        }
    }

    #[test]
    fn a_clone_that_begins_again_has_its_source_as_it_is() {
        let history = written_again(Action::Clone { source: SOURCE, shape: Shape::Thick, size: Bytes::MIB });
        let during = &expected(&history, &within(4))[&COPY];
        assert_eq!(during.writing, None, "one that is on the disk does not begin again");
        assert_eq!(during.reconciled().writing, Some((0, Mark { volume: SOURCE, turn: 2 })));
        assert_eq!(expected(&history, &within(5))[&COPY].reconciled().writing, None);
    }
}
